"""`GPULoaderDataModule` and `GPULoaderWaitMonitor` for the Trainer of `lightning`."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningDataModule

from gpuloader.trainers.datamodule import TrainerLoaders
from gpuloader.trainers.wait_callback import WaitLogging

__all__ = ["GPULoaderDataModule", "GPULoaderWaitMonitor"]


class GPULoaderDataModule(TrainerLoaders, LightningDataModule):
    """A data module with a `GPULoader` for each stage, see `gpuloader.trainers.datamodule.TrainerLoaders`."""


class GPULoaderWaitMonitor(WaitLogging, Callback):
    """A callback that logs how long training waits for data, see `gpuloader.trainers.wait_callback.WaitLogging`."""
