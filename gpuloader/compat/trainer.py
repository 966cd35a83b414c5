"""`GenericTrainer`: a small loop over several loaders, its settings and hooks. Lightning and Accelerate do more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn.functional import cross_entropy

from gpuloader.base.late_imports import import_late
from gpuloader.base.text import counted
from gpuloader.errors import ConfigError

if TYPE_CHECKING:
    from gpuloader.loading.mixed_loader import MixedLoader

Step: TypeAlias = Callable[["GenericTrainer", Any, int, int, str], Mapping[str, Any]]
"""(trainer, batch, its number in the epoch, its loader's number, its loader's name) -> metrics, with the "loss"."""


class SamplingStrategy(Enum):
    """The order of batches from several loaders: the strategies of `MixedLoader`."""

    ROUND_ROBIN = "round_robin"
    WEIGHTED = "weighted"
    SEQUENTIAL = "sequential"
    ALTERNATING = "alternate"


@dataclass(frozen=True)
class MultiDataLoaderConfig:
    """How several loaders make one epoch.

    Attributes:
        sampling_strategy: the order of the batches.
        dataloader_weights: one for each loader, for `SamplingStrategy.WEIGHTED`; None weighs all equally.
        dataloader_names: one for each loader; if empty, they are numbered.
        cycle_short_loaders: whether a loader that has ended starts again until the longest has ended; otherwise the
            epoch ends when one has no batch left. It applies if loaders are drawn at random or take turns.
    """

    sampling_strategy: SamplingStrategy = SamplingStrategy.ROUND_ROBIN
    dataloader_weights: Sequence[float] | None = None
    dataloader_names: Sequence[str] = ()
    cycle_short_loaders: bool = True


@dataclass(frozen=True)
class TrainingConfig:
    """The numbers of a run, for your code."""

    batch_size: int = 32
    epochs: int = 10
    learning_rate: float = 5e-5
    random_seed: int = 42


@dataclass(frozen=True)
class PerformanceConfig:
    """How a step is computed, and settings for your code that makes loaders.

    Attributes:
        use_amp: use float16 where it is enough, on a GPU, with a GradScaler.
        dataloader_num_workers: for your code, like the next two.
        pin_memory: whether batches are in memory that a GPU copies from without waiting.
        persistent_workers: whether workers stay from epoch to epoch.
    """

    use_amp: bool = True
    dataloader_num_workers: int = 4
    pin_memory: bool = True
    persistent_workers: bool = True


@dataclass(frozen=True)
class GenericTrainerConfig:
    """The settings of a `GenericTrainer` for its loaders and its steps."""

    train_loader_config: MultiDataLoaderConfig = field(default_factory=MultiDataLoaderConfig)
    performance: PerformanceConfig = field(default_factory=PerformanceConfig)


class TrainerHooks:
    """The methods that a trainer calls, and when. Override what you need."""

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
    """The hooks of a trainer, in the order in which they were registered."""

    def __init__(self) -> None:
        self._hooks: list[TrainerHooks] = []

    def register_hook(self, hook: TrainerHooks) -> None:
        self._hooks.append(hook)

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        for hook in self._hooks:
            getattr(hook, name)(*arguments)


class GenericTrainer:
    """A training loop over one or several loaders, with mixed precision and hooks.

    Args:
        config: for the loaders and the steps.
        model: on its device.
        optimizers: they step together.
        training_step: returns the metrics of a batch; the mean of "loss" is minimised. None moves a pair
            (inputs, labels) to the model's device and returns the cross entropy.

    Attributes:
        hook_manager: register hooks here.
        epoch: the current or next epoch; `fit` resumes there.
    """

    def __init__(
        self,
        config: GenericTrainerConfig,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        training_step: Step | None = None,
    ) -> None:
        self.config, self.model, self.optimizers = config, model, list(optimizers)
        self.training_step = training_step or _cross_entropy
        self.hook_manager = HookManager()
        self.epoch = 0
        self._device = next(model.parameters()).device
        self._amp = config.performance.use_amp and self._device.type == "cuda"
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=self._amp)

    def fit(
        self, train_loaders: Sequence[Any], val_loaders: Sequence[Any] = (), max_epochs: int = 1
    ) -> list[dict[str, float]]:
        """Trains up to `max_epochs`, with validation after each epoch.

        Returns:
            For each epoch "train_loss" and, with validation, "val_loss": the means over its batches.
        """
        train = _mix(self.config.train_loader_config, train_loaders)
        val = _mix(MultiDataLoaderConfig(SamplingStrategy.SEQUENTIAL), val_loaders) if val_loaders else None
        history = []
        while self.epoch < max_epochs:
            train.set_epoch(self.epoch)
            losses = {"train_loss": self._train(train)}
            if val is not None:
                losses["val_loss"] = self._validate(val)
            history.append(losses)
            self.hook_manager.call("on_epoch_end", self, self.epoch)
            self.epoch += 1
        return history

    def _train(self, mixed: MixedLoader[Any]) -> float:
        self.model.train()
        losses = []
        for place in self._places(mixed):
            self.hook_manager.call("on_train_batch_start", *place)
            metrics = self._run(place)
            self._scaler.scale(metrics["loss"]).backward()
            for optimizer in self.optimizers:
                self._scaler.step(optimizer)
                optimizer.zero_grad()
            self._scaler.update()
            losses.append(metrics["loss"].detach())
            self.hook_manager.call("on_train_batch_end", *place, metrics)
        return _mean(losses)

    @torch.no_grad()
    def _validate(self, mixed: MixedLoader[Any]) -> float:
        self.model.eval()
        return _mean([self._run(place)["loss"] for place in self._places(mixed)])

    def _places(self, mixed: MixedLoader[Any]) -> Iterator[tuple[GenericTrainer, Any, int, int, str]]:
        numbers = {name: number for number, name in enumerate(mixed.loaders)}
        return ((self, batch, index, numbers[name], name) for index, (name, batch) in enumerate(mixed))

    def _run(self, place: tuple[GenericTrainer, Any, int, int, str]) -> Mapping[str, Any]:
        with torch.autocast(self._device.type, enabled=self._amp):
            return self.training_step(*place)


def _mix(config: MultiDataLoaderConfig, loaders: Sequence[Any]) -> MixedLoader[Any]:
    """Combines loaders into one; raises ConfigError if there are fewer or more names or weights than loaders."""
    strategy = config.sampling_strategy
    names = list(config.dataloader_names) or [f"loader_{number}" for number in range(len(loaders))]
    weighted = strategy is SamplingStrategy.WEIGHTED
    weights = config.dataloader_weights or [1.0] * len(loaders)
    for name, values in (("dataloader_names", names), ("dataloader_weights", weights if weighted else names)):
        if len(values) != len(loaders):
            raise ConfigError(f"{name}={values!r}: allowed is one value for each of {counted(len(loaders), 'loader')}")
    cycles = config.cycle_short_loaders and strategy in (SamplingStrategy.ROUND_ROBIN, SamplingStrategy.WEIGHTED)
    return import_late("gpuloader.loading.mixed_loader").MixedLoader(
        dict(zip(names, loaders)),
        strategy.value,
        weights=dict(zip(names, weights)) if weighted else None,
        stop="cycle" if cycles else "first",
    )


def _cross_entropy(trainer: GenericTrainer, batch: Any, *_: object) -> dict[str, torch.Tensor]:  # noqa: ANN401
    inputs, labels = (part.to(trainer._device, non_blocking=True) for part in batch)
    return {"loss": cross_entropy(trainer.model(inputs), labels)}


def _mean(losses: Sequence[torch.Tensor]) -> float:
    return float(torch.stack(list(losses)).float().mean()) if losses else float("nan")
