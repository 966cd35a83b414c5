"""Run it: python scripts/examples/lightning_module.py fit --config scripts/examples/lightning_cli.yaml"""

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from gpuloader.trainers.lightning import GPULoaderDataModule


class Classifier(LightningModule):
    """A small net and its steps; nothing in it knows of the loader."""

    def __init__(self, classes: int = 10, learning_rate: float = 0.1) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, classes)
        )
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

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)


if __name__ == "__main__":
    LightningCLI(Classifier, GPULoaderDataModule)
