"""`GenericTrainer`: the loop over several loaders; and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn.functional import cross_entropy

from gpuloader.compat.hooks import HookManager
from gpuloader.compat.mixing import MultiDataLoaderConfig, SamplingStrategy
from gpuloader.errors import ConfigError
from gpuloader.helpers.late_imports import import_late
from gpuloader.helpers.text import counted

if TYPE_CHECKING:
    from gpuloader.loading.mixed_loader import MixedLoader

Step: TypeAlias = Callable[["GenericTrainer", Any, int, int, str], Mapping[str, Any]]
"""(trainer, batch, its number in the epoch, its loader's number, its loader's name) -> metrics, with the "loss"."""


@dataclass(frozen=True)
class TrainingConfig:
    """The numbers of a run.

    Example:
        >>> from gpuloader.compat import TrainingConfig
        >>> TrainingConfig(batch_size=64).epochs
        10
    """

    batch_size: int = 32
    epochs: int = 10
    learning_rate: float = 5e-5
    random_seed: int = 42


@dataclass(frozen=True)
class PerformanceConfig:
    """How a step is computed, and settings for making loaders.

    Attributes:
        use_amp: use float16 where it is enough, on a GPU, with a GradScaler.
        gradient_accumulation_steps: the number of batches for one step of the optimizers.
        dataloader_num_workers: for your code that makes the loaders, like the next three.
        pin_memory: whether batches are copied to the GPU without waiting.
        persistent_workers: whether workers stay from epoch to epoch.
        prefetch_factor: the number of batches that each worker makes ahead.

    Example:
        >>> from gpuloader.compat import PerformanceConfig
        >>> PerformanceConfig(use_amp=False, gradient_accumulation_steps=4).pin_memory
        True
    """

    use_amp: bool = True
    gradient_accumulation_steps: int = 1
    dataloader_num_workers: int = 4
    pin_memory: bool = True
    persistent_workers: bool = True
    prefetch_factor: int = 2


@dataclass(frozen=True)
class GenericTrainerConfig:
    """The settings of a `GenericTrainer` for its loaders and its steps.

    Example:
        >>> from gpuloader.compat import GenericTrainerConfig, PerformanceConfig
        >>> config = GenericTrainerConfig(performance=PerformanceConfig(use_amp=False))
        >>> config.val_loader_config.sampling_strategy.value
        'sequential'
    """

    train_loader_config: MultiDataLoaderConfig = field(default_factory=MultiDataLoaderConfig)
    val_loader_config: MultiDataLoaderConfig = field(
        default_factory=lambda: MultiDataLoaderConfig(SamplingStrategy.SEQUENTIAL)
    )
    performance: PerformanceConfig = field(default_factory=PerformanceConfig)


class GenericTrainer:
    """Trains a model on one loader or several: mixed precision, accumulation of gradients, hooks.

    Args:
        config: for the loaders and the steps.
        model: on its device.
        optimizers: all of them take a step together.
        training_step: returns the metrics of a batch; the mean of "loss" is minimised. None moves a pair
            (inputs, labels) to the model's device and returns the cross entropy.
        validation_step: the same for validation; None uses `training_step`.

    Attributes:
        hook_manager: register hooks here.
        epoch: the current or next one; `fit` resumes there.

    Example:
        >>> import torch
        >>> from gpuloader.compat import GenericTrainer, GenericTrainerConfig
        >>> model = torch.nn.Linear(4, 2)
        >>> trainer = GenericTrainer(GenericTrainerConfig(), model, [torch.optim.SGD(model.parameters(), lr=0.1)])
        >>> batches = [(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))] * 3
        >>> history = trainer.fit([batches], [batches], max_epochs=2)
        >>> history[1]["train_loss"] < history[0]["train_loss"], sorted(history[0])
        (True, ['train_loss', 'val_loss'])
    """

    def __init__(
        self,
        config: GenericTrainerConfig,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        training_step: Step | None = None,
        validation_step: Step | None = None,
    ) -> None:
        self.config, self.model, self.optimizers = config, model, list(optimizers)
        self.training_step = training_step or _cross_entropy
        self.validation_step = validation_step or self.training_step
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
        train = mix(self.config.train_loader_config, train_loaders)
        val = mix(self.config.val_loader_config, val_loaders) if val_loaders else None
        history = []
        self.hook_manager.call("on_train_start", self)
        while self.epoch < max_epochs:
            self.hook_manager.call("on_epoch_start", self, self.epoch)
            train.set_epoch(self.epoch)
            losses = {"train_loss": self._train(train)}
            if val is not None:
                losses["val_loss"] = self._validate(val)
            history.append(losses)
            self.hook_manager.call("on_epoch_end", self, self.epoch)
            self.epoch += 1
        self.hook_manager.call("on_train_end", self)
        return history

    def _train(self, mixed: MixedLoader[Any]) -> float:
        self.model.train()
        numbers = {name: number for number, name in enumerate(mixed.loaders)}
        together, batches = self.config.performance.gradient_accumulation_steps, len(mixed)
        grouped = batches - batches % together
        losses = []
        for index, (name, batch) in enumerate(mixed):
            place = (self, batch, index, numbers[name], name)
            self.hook_manager.call("on_train_batch_start", *place)
            metrics = self._run(self.training_step, place)
            self._scaler.scale(metrics["loss"] / (together if index < grouped else batches - grouped)).backward()
            losses.append(metrics["loss"].detach())
            if (index + 1) % together == 0 or index + 1 == batches:
                for optimizer in self.optimizers:
                    self._scaler.step(optimizer)
                    optimizer.zero_grad()
                self._scaler.update()
            self.hook_manager.call("on_train_batch_end", *place, metrics)
        return _mean(losses)

    @torch.no_grad()
    def _validate(self, mixed: MixedLoader[Any]) -> float:
        self.model.eval()
        numbers = {name: number for number, name in enumerate(mixed.loaders)}
        steps = ((self, batch, index, numbers[name], name) for index, (name, batch) in enumerate(mixed))
        return _mean([self._run(self.validation_step, step)["loss"] for step in steps])

    def _run(self, step: Step, place: tuple[GenericTrainer, Any, int, int, str]) -> Mapping[str, Any]:
        with torch.autocast(self._device.type, enabled=self._amp):
            return step(*place)


def mix(config: MultiDataLoaderConfig, loaders: Sequence[Any]) -> MixedLoader[Any]:
    """Makes one loader of several.

    Raises:
        ConfigError: the number of names or weights is not that of the loaders; also what `MixedLoader` raises.
    """
    names = list(config.dataloader_names) or [f"loader_{number}" for number in range(len(loaders))]
    weighted = config.sampling_strategy is SamplingStrategy.WEIGHTED
    weights = config.dataloader_weights or [1.0] * len(loaders)
    for name, values in (("dataloader_names", names), ("dataloader_weights", weights if weighted else names)):
        if len(values) != len(loaders):
            raise ConfigError(f"{name}={values!r}: allowed is one value for each of {counted(len(loaders), 'loader')}")
    cycles = config.cycle_short_loaders and config.sampling_strategy in (
        SamplingStrategy.ROUND_ROBIN,
        SamplingStrategy.WEIGHTED,
    )
    return import_late("gpuloader.loading.mixed_loader").MixedLoader(
        dict(zip(names, loaders)),
        config.sampling_strategy.value,
        weights=dict(zip(names, weights)) if weighted else None,
        stop="cycle" if cycles else "first",
        seed=config.seed,
    )


def _cross_entropy(trainer: GenericTrainer, batch: Any, *_: object) -> dict[str, torch.Tensor]:  # noqa: ANN401
    inputs, labels = (part.to(trainer._device, non_blocking=True) for part in batch)
    return {"loss": cross_entropy(trainer.model(inputs), labels)}


def _mean(losses: Sequence[torch.Tensor]) -> float:
    return float(torch.stack(list(losses)).float().mean()) if losses else float("nan")
