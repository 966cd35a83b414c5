"""`GPULoaderDataModule` for the Trainer of `lightning`."""

from __future__ import annotations

from lightning.pytorch import LightningDataModule

from gpuloader.datamodule import TrainerLoaders


class GPULoaderDataModule(TrainerLoaders, LightningDataModule):
    """A `GPULoader` for each stage of a Trainer; `gpuloader.datamodule.TrainerLoaders` has its arguments."""
