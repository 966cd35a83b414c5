"""Hooks that a trainer calls."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuloader.compat.trainer import GenericTrainer


class TrainerHooks:
    """The methods that a trainer calls, and when. Override what you need.

    Example:
        >>> import torch
        >>> from gpuloader.compat import GenericTrainer, GenericTrainerConfig, TrainerHooks
        >>> class Counting(TrainerHooks):
        ...     batches = 0
        ...
        ...     def on_train_batch_end(self, trainer, batch, batch_idx, dataloader_idx, dataloader_name, metrics):
        ...         self.batches += 1
        >>> model, counting = torch.nn.Linear(4, 2), Counting()
        >>> trainer = GenericTrainer(GenericTrainerConfig(), model, [torch.optim.SGD(model.parameters(), lr=0.1)])
        >>> trainer.hook_manager.register_hook(counting)
        >>> _ = trainer.fit([[(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))] * 3])
        >>> counting.batches
        3
    """

    def on_train_start(self, trainer: GenericTrainer) -> None: ...

    def on_train_end(self, trainer: GenericTrainer) -> None: ...

    def on_epoch_start(self, trainer: GenericTrainer, epoch: int) -> None: ...

    def on_epoch_end(self, trainer: GenericTrainer, epoch: int) -> None: ...

    def on_train_batch_start(
        self,
        trainer: GenericTrainer,
        batch: Any,  # noqa: ANN401 - of any loader
        batch_idx: int,
        dataloader_idx: int,
        dataloader_name: str,
    ) -> None: ...

    def on_train_batch_end(
        self,
        trainer: GenericTrainer,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
        dataloader_idx: int,
        dataloader_name: str,
        metrics: dict[str, Any],
    ) -> None: ...


class HookManager:
    """The hooks of a trainer, in the order in which they were registered.

    Example:
        >>> from gpuloader.compat import HookManager, TrainerHooks
        >>> class Saying(TrainerHooks):
        ...     def on_train_start(self, trainer):
        ...         print("it begins")
        >>> manager = HookManager()
        >>> manager.register_hook(Saying())
        >>> manager.call("on_train_start", None)
        it begins
    """

    def __init__(self) -> None:
        self._hooks: list[TrainerHooks] = []

    def register_hook(self, hook: TrainerHooks) -> None:
        self._hooks.append(hook)

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        for hook in self._hooks:
            getattr(hook, name)(*arguments)


class DataLoaderProfilingHook(TrainerHooks):
    """Prints how long the trainer waits for batches.

    Args:
        slow_seconds: a longer wait is printed on its own.
        every_batches: how often the mean of the last waits is printed.

    Attributes:
        batch_load_times: seconds, for this epoch's batches except the first.

    Example:
        >>> import torch
        >>> from gpuloader.compat import DataLoaderProfilingHook, GenericTrainer, GenericTrainerConfig
        >>> model = torch.nn.Linear(4, 2)
        >>> trainer = GenericTrainer(GenericTrainerConfig(), model, [torch.optim.SGD(model.parameters(), lr=0.1)])
        >>> trainer.hook_manager.register_hook(DataLoaderProfilingHook())
        >>> batches = [(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))] * 3
        >>> _ = trainer.fit([batches])  # doctest: +ELLIPSIS
        Epoch 0 - Avg load time: 0...s
    """

    def __init__(self, slow_seconds: float = 1.0, every_batches: int = 100) -> None:
        self.batch_load_times: list[float] = []
        self._slow_seconds, self._every_batches = slow_seconds, every_batches
        self._ended: float | None = None

    def on_train_batch_start(
        self, trainer: GenericTrainer, batch: object, batch_idx: int, dataloader_idx: int, dataloader_name: str
    ) -> None:
        if self._ended is None:
            return
        waited = time.perf_counter() - self._ended
        self.batch_load_times.append(waited)
        if waited > self._slow_seconds:
            print(f"Slow batch {batch_idx} of {dataloader_name}: {waited:.2f}s")
        if batch_idx % self._every_batches == 0:
            print(f"Avg load time (last {self._every_batches}): {_mean(self.batch_load_times[-self._every_batches :])}")

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        self._ended = time.perf_counter()

    def on_epoch_end(self, trainer: GenericTrainer, epoch: int) -> None:
        print(f"Epoch {epoch} - Avg load time: {_mean(self.batch_load_times)}")
        self.batch_load_times, self._ended = [], None


def _mean(seconds: list[float]) -> str:
    return f"{sum(seconds) / len(seconds):.3f}s" if seconds else "no batch"
