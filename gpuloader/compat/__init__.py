"""Interfaces of other loaders, for code that moves here: data modules, collators, loaders, a small trainer.

turboloader's names are in `gpuloader.compat.turboloader`, because some of them are also torch's.
"""

from gpuloader.compat.cellmap import CellMapDataLoader
from gpuloader.compat.checkpoints import CheckpointManager
from gpuloader.compat.collators import CollatorRegistry, LanguageModelingDataCollator, TaskSpec
from gpuloader.compat.data_module import DataModuleProtocol, UniversalDataModule
from gpuloader.compat.loaders import DataLoaderConfig, DataLoaderFactory
from gpuloader.compat.trainer import (
    GenericTrainer,
    GenericTrainerConfig,
    MultiDataLoaderConfig,
    PerformanceConfig,
    SamplingStrategy,
    TrainerHooks,
    TrainingConfig,
)
from gpuloader.compat.vision import VisionDataCollator

__all__ = [
    "CellMapDataLoader",
    "CheckpointManager",
    "CollatorRegistry",
    "DataLoaderConfig",
    "DataLoaderFactory",
    "DataModuleProtocol",
    "GenericTrainer",
    "GenericTrainerConfig",
    "LanguageModelingDataCollator",
    "MultiDataLoaderConfig",
    "PerformanceConfig",
    "SamplingStrategy",
    "TaskSpec",
    "TrainerHooks",
    "TrainingConfig",
    "UniversalDataModule",
    "VisionDataCollator",
]
