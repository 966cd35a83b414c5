"""`GPULoaderDataModule` and `GPULoaderWaitMonitor` for the Trainer of `pytorch_lightning`."""

from __future__ import annotations

from pytorch_lightning import Callback, LightningDataModule

from gpuloader.trainers.datamodule import TrainerLoaders
from gpuloader.trainers.wait_callback import WaitLogging

__all__ = ["GPULoaderDataModule", "GPULoaderWaitMonitor"]


class GPULoaderDataModule(TrainerLoaders, LightningDataModule):
    """A `GPULoader` for each stage of a Trainer; `gpuloader.trainers.datamodule.TrainerLoaders` has its arguments."""


class GPULoaderWaitMonitor(WaitLogging, Callback):
    """Logs how long training waits for data; `gpuloader.trainers.wait_callback.WaitLogging` has its arguments."""
