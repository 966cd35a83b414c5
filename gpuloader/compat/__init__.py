"""Names of other loaders' pages, for code that moves here: data modules, collators, loaders, a small trainer.

`gpuloader.compat.turboloader` has turboloader's names, because some of them are also torch's.
"""

from gpuloader.compat.cellmap import CellMapDataLoader
from gpuloader.compat.checkpoints import CheckpointManager
from gpuloader.compat.data_module import DataModuleProtocol, UniversalDataModule
from gpuloader.compat.device_loader import DeviceLoader
from gpuloader.compat.hooks import DataLoaderProfilingHook, HookManager, TrainerHooks
from gpuloader.compat.loaders import (
    DataLoaderConfig,
    DataLoaderFactory,
    create_optimized_dataloader,
    ensure_deterministic_dataloader,
    set_reproducible_training,
    worker_init_fn,
)
from gpuloader.compat.mixing import MultiDataLoaderConfig, SamplingStrategy, create_multi_dataloaders
from gpuloader.compat.registry import CollatorRegistry, DefaultCollator, TaskSpec
from gpuloader.compat.sizing import calculate_optimal_batch_size, diagnose_dataloader_speed, get_optimal_num_workers
from gpuloader.compat.text import TextCollator
from gpuloader.compat.trainer import GenericTrainer, GenericTrainerConfig, PerformanceConfig, TrainingConfig
from gpuloader.compat.vision import VisionCollator

LanguageModelingDataCollator, VisionDataCollator = TextCollator, VisionCollator

__all__ = [
    "CellMapDataLoader",
    "CheckpointManager",
    "CollatorRegistry",
    "DataLoaderConfig",
    "DataLoaderFactory",
    "DataLoaderProfilingHook",
    "DataModuleProtocol",
    "DefaultCollator",
    "DeviceLoader",
    "GenericTrainer",
    "GenericTrainerConfig",
    "HookManager",
    "LanguageModelingDataCollator",
    "MultiDataLoaderConfig",
    "PerformanceConfig",
    "SamplingStrategy",
    "TaskSpec",
    "TextCollator",
    "TrainerHooks",
    "TrainingConfig",
    "UniversalDataModule",
    "VisionCollator",
    "VisionDataCollator",
    "calculate_optimal_batch_size",
    "create_multi_dataloaders",
    "create_optimized_dataloader",
    "diagnose_dataloader_speed",
    "ensure_deterministic_dataloader",
    "get_optimal_num_workers",
    "set_reproducible_training",
    "worker_init_fn",
]
