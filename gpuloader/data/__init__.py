"""Data other than shards: data modules, collators, and torch's DataLoader set up for a GPU."""

from gpuloader.data.cellmap import CellMapDataLoader
from gpuloader.data.dataloaders import (
    DataLoaderConfig,
    DataLoaderFactory,
    create_optimized_dataloader,
    ensure_deterministic_dataloader,
    set_reproducible_training,
    worker_init_fn,
)
from gpuloader.data.device_loader import DeviceLoader
from gpuloader.data.mixing import MultiDataLoaderConfig, SamplingStrategy, create_multi_dataloaders
from gpuloader.data.module import DataModuleProtocol, UniversalDataModule
from gpuloader.data.registry import CollatorRegistry, DefaultCollator, TaskSpec
from gpuloader.data.sizing import calculate_optimal_batch_size, diagnose_dataloader_speed, get_optimal_num_workers
from gpuloader.data.text import TextCollator
from gpuloader.data.vision import VisionCollator

LanguageModelingDataCollator, VisionDataCollator = TextCollator, VisionCollator

__all__ = [
    "CellMapDataLoader",
    "CollatorRegistry",
    "DataLoaderConfig",
    "DataLoaderFactory",
    "DataModuleProtocol",
    "DefaultCollator",
    "DeviceLoader",
    "LanguageModelingDataCollator",
    "MultiDataLoaderConfig",
    "SamplingStrategy",
    "TaskSpec",
    "TextCollator",
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
