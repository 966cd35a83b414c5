"""A small trainer over several loaders, its hooks, and checkpoints. For more, use Lightning or Accelerate."""

from gpuloader.data import MultiDataLoaderConfig, SamplingStrategy
from gpuloader.training.checkpoints import CheckpointManager
from gpuloader.training.hooks import DataLoaderProfilingHook, HookManager, TrainerHooks
from gpuloader.training.trainer import GenericTrainer, GenericTrainerConfig, PerformanceConfig, TrainingConfig

__all__ = [
    "CheckpointManager",
    "DataLoaderProfilingHook",
    "GenericTrainer",
    "GenericTrainerConfig",
    "HookManager",
    "MultiDataLoaderConfig",
    "PerformanceConfig",
    "SamplingStrategy",
    "TrainerHooks",
    "TrainingConfig",
]
