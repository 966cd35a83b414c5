"""`GPULoaderDataModule` for the Trainer of `pytorch_lightning`."""

from __future__ import annotations

from pytorch_lightning import LightningDataModule

from gpuloader.datamodule import TrainerLoaders


class GPULoaderDataModule(TrainerLoaders, LightningDataModule):
    """A `GPULoader` for each stage of a Trainer; `gpuloader.datamodule.TrainerLoaders` has its arguments."""
