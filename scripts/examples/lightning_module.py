"""Run it: python scripts/examples/lightning_module.py fit --config scripts/examples/lightning_cli.yaml"""

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from gpuloader.trainers.lightning import GPULoaderDataModule


def stage(inputs: int, outputs: int, kernel: int = 3) -> nn.Module:
    """A stage from (B, inputs, H, W) to (B, outputs, H / 2, W / 2)."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=2, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class Classifier(LightningModule):
    """A small net and its steps; nothing in it knows of the loader."""

    def __init__(self, classes: int = 10, learning_rate: float = 0.006) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        stages = stage(3, 24, kernel=5), stage(24, 48), stage(48, 96), stage(96, 192)
        self.net = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, classes))
        self.accuracy = MulticlassAccuracy(classes, average="micro")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.accuracy.update(self.net(images), labels)
        self.log("accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = torch.optim.AdamW(self.parameters())
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    cli = LightningCLI(Classifier, GPULoaderDataModule)
    if cli.subcommand == "fit":
        cli.trainer.print(f"accuracy {cli.trainer.callback_metrics['accuracy']:.1%}")
