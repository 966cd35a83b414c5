"""`loader.sampler`, for scripts that were written for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.utils.data import SequentialSampler

from gpuloader.errors import LoaderError
from gpuloader.plan import Plan


class EpochSampler(SequentialSampler):
    """What scripts ask of a loader's sampler: its length, and `set_epoch`, which is the loader's.

    Lightning replaces samplers of other kinds where `overfit_batches` asks it to turn shuffling off, and can do so in
    torch's DataLoader alone. So this one is a `SequentialSampler`, whatever the order is.
    """

    def __init__(self, plan: Plan, set_epoch: Callable[[int], None]) -> None:
        super().__init__(range(plan.samples))
        self._plan = plan
        self.set_epoch = set_epoch

    def __len__(self) -> int:
        """The samples of a rank in an epoch. Where they cannot be shared evenly, those of the rank that has most."""
        return min(self._plan.steps() * self._plan.batch_size, -(-self._plan.epoch_samples // self._plan.world_size))

    def __iter__(self) -> Iterator[int]:
        """An error: the loader itself keeps the order."""
        raise LoaderError('the sampler of a GPULoader gives no ids: with output="dict" a batch has them, under "index"')
