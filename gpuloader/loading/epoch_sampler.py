"""`loader.sampler`, for scripts that were written for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.utils.data import SequentialSampler

from gpuloader.errors import LoaderError
from gpuloader.plan import Plan


class EpochSampler(SequentialSampler):
    """The part of a sampler that scripts use: its length, and `set_epoch`, which calls the loader's.

    With `overfit_batches`, Lightning turns shuffling off by replacing every sampler of another class, which works only
    in torch's DataLoader. So this is a `SequentialSampler`, whatever the order is.
    """

    def __init__(self, plan: Plan, set_epoch: Callable[[int], None]) -> None:
        super().__init__(range(plan.samples))
        self._plan = plan
        self.set_epoch = set_epoch

    def __len__(self) -> int:
        """The samples of a rank in an epoch; of the rank with the most, if they cannot be shared evenly."""
        return min(self._plan.steps * self._plan.batch_size, -(-self._plan.epoch_samples // self._plan.world_size))

    def __iter__(self) -> Iterator[int]:
        """Raises LoaderError: the order is inside the loader."""
        raise LoaderError('the sampler of a GPULoader gives no ids: use output="dict" and read batch["index"]')
