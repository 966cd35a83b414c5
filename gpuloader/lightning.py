"""`GPULoaderDataModule`, `GPULoaderWaitMonitor` and `UniversalDataModule` for the Trainer of `lightning`."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningDataModule

from gpuloader.data import module
from gpuloader.trainers.datamodule import TrainerLoaders
from gpuloader.trainers.wait_callback import WaitLogging

__all__ = ["GPULoaderDataModule", "GPULoaderWaitMonitor", "UniversalDataModule"]


class GPULoaderDataModule(TrainerLoaders, LightningDataModule):
    """A `GPULoader` for each stage of a Trainer; `gpuloader.trainers.datamodule.TrainerLoaders` has its arguments."""


class GPULoaderWaitMonitor(WaitLogging, Callback):
    """Logs how long training waits for data; `gpuloader.trainers.wait_callback.WaitLogging` has its arguments."""


class UniversalDataModule(module.UniversalDataModule, LightningDataModule):
    """`gpuloader.data.UniversalDataModule` as a Trainer takes it for its `datamodule`."""
