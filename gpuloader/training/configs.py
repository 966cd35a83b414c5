"""Settings of a training."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuloader.data import MultiDataLoaderConfig, SamplingStrategy


@dataclass(frozen=True)
class TrainingConfig:
    """The numbers of a run.

    Example:
        >>> from gpuloader.training import TrainingConfig
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
        >>> from gpuloader.training import PerformanceConfig
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
        >>> from gpuloader.training import GenericTrainerConfig, PerformanceConfig
        >>> config = GenericTrainerConfig(performance=PerformanceConfig(use_amp=False))
        >>> config.val_loader_config.sampling_strategy.value
        'sequential'
    """

    train_loader_config: MultiDataLoaderConfig = field(default_factory=MultiDataLoaderConfig)
    val_loader_config: MultiDataLoaderConfig = field(
        default_factory=lambda: MultiDataLoaderConfig(SamplingStrategy.SEQUENTIAL)
    )
    performance: PerformanceConfig = field(default_factory=PerformanceConfig)
