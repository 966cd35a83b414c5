"""A script: trains an epoch on two devices, which write what they were given; a checkpoint after the third step."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lightning.pytorch as lightning
from lightning.pytorch.strategies import ModelParallelStrategy
from trainers import SMALL, Noting, trainer

from gpuloader.trainers.lightning import GPULoaderDataModule


class Writing(Noting, lightning.LightningModule):
    """Writes its steps to the Trainer's folder."""

    def configure_model(self) -> None:
        """Is asked for by `ModelParallelStrategy`; the net is whole on each device."""

    def on_train_end(self) -> None:
        Path(self.trainer.default_root_dir, f"{self.global_rank}.json").write_text(json.dumps(self.steps))


def main(shards: str, folder: str, name: str) -> None:
    strategy = ModelParallelStrategy(1, 2, False, "gloo") if name == "model_parallel" else name
    save = lightning.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=3)
    data = GPULoaderDataModule(shards, shards, batch_size=4, **SMALL)
    run = trainer(lightning, Path(folder), devices=2, strategy=strategy, max_epochs=1, callbacks=[save])
    run.fit(Writing(), datamodule=data)


if __name__ == "__main__":
    main(*sys.argv[1:])
