"""What the tests of Lightning run: a model that notes what it is given, and quiet Trainers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

SMALL = {
    "preset": {"imagenet_train": {"RandomResizedCrop": {"size": 32}}},
    "eval_loader": {"preset": {"imagenet_eval": {"Resize": {"size": 36}, "CenterCrop": {"size": 32}}}},
    "output": "dict",
}


class Step(NamedTuple):
    """A step as Lightning counts it, and the ids of its samples."""

    epoch: int
    batch_idx: int
    ids: list[int]


class Noting:
    """The steps of a LightningModule that notes them."""

    def __init__(self, asks_for_the_number_of_steps: bool = False) -> None:
        super().__init__()
        self.net = torch.nn.Linear(3, 10)
        self.steps: dict[str, list[Step]] = {"train": [], "val": [], "test": [], "predict": []}
        self.asks_for_the_number_of_steps = asks_for_the_number_of_steps

    def note(self, stage: str, batch: Mapping[str, Any], batch_idx: int) -> None:
        ids = batch["index"][batch["valid"]].tolist()
        self.steps[stage].append(Step(self.trainer.current_epoch, batch_idx, ids))

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> torch.Tensor:
        self.note("train", batch, batch_idx)
        return torch.nn.functional.cross_entropy(self.net(batch["image"].mean((2, 3))), batch["label"])

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            self.note("val", batch, batch_idx)

    def test_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        self.note("test", batch, batch_idx)

    def predict_step(self, batch: Mapping[str, Any], batch_idx: int) -> torch.Tensor:
        self.note("predict", batch, batch_idx)
        return batch["index"]

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        if not self.asks_for_the_number_of_steps:
            return {"optimizer": optimizer}
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def model(lightning: ModuleType, **kwargs: Any) -> Any:  # noqa: ANN401
    """A model for the Trainer of either package."""
    return type("Model", (Noting, lightning.LightningModule), {})(**kwargs)


def trainer(lightning: ModuleType, folder: Path, **kwargs: Any) -> Any:  # noqa: ANN401
    """A Trainer on the CPU that writes nothing but what its callbacks do."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"max_epochs": 2, "enable_checkpointing": bool(kwargs.get("callbacks")), **quiet, **kwargs}
    return lightning.Trainer(accelerator="cpu", default_root_dir=folder, **{"devices": 1, **given})
