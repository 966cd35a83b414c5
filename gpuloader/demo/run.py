"""From nothing to a trained net: shards, loaders, a training loop, an exact evaluation, a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image, ImageDraw
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from torch import nn

from gpuloader.demo.network import small_net
from gpuloader.demo.pictures import CLASSES, write_shards
from gpuloader.errors import ConfigError
from gpuloader.loader import GPULoader

TRAIN_PICTURES = 1600
TEST_PICTURES = 400
BATCH_SIZE = 32
EPOCHS = 6
PEAK_LEARNING_RATE = 6e-3

TRAIN: Mapping[str, Any] = {"RandomResizedCrop": {"size": 96, "scale": [0.35, 1.0]}}
EVALUATE: Mapping[str, Any] = {"Resize": {"size": 110}, "CenterCrop": {"size": 96}}

Device = int | Literal["auto"] | None


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration measured.

    Attributes:
        device: where the pictures were decoded and the net trained.
        accuracy: share of the test pictures that the net names rightly, in [0, 1].
        evaluated: how many those were: each once.
        train_images_per_second: over all epochs, the net's work included.
        waiting_share: share of the training time that the net waited for pictures.
    """

    device: str
    accuracy: float
    evaluated: int
    train_images_per_second: float
    waiting_share: float


def run_demo(folder: Path, picture: Path, device_id: Device = "auto", seed: int = 0) -> DemoResult:
    """Makes the shards in `folder`, trains, evaluates, and writes a grid of training images to `picture`."""
    if picture.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise ConfigError(f"{picture}: allowed is a picture that ends in .png, .jpg or .jpeg")
    if not picture.parent.is_dir():
        raise ConfigError(f"{picture}: there is no folder {picture.parent}; name a picture in one that exists")
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    ) as progress:
        train, test = _make_shards(folder, seed, progress)
        with GPULoader(train, BATCH_SIZE, device_id, preset_overrides=TRAIN, seed=seed) as loader:
            net = _train(loader, seed, progress)
            stats = loader.stats()
        with GPULoader(
            test, BATCH_SIZE, device_id, preset="imagenet_eval", preset_overrides=EVALUATE, output="dict"
        ) as loader:
            accuracy, evaluated = _evaluate(net, loader)
    _draw_grid(train, picture, seed)
    return DemoResult(
        device=str(loader.device),
        accuracy=accuracy,
        evaluated=evaluated,
        train_images_per_second=stats.samples / stats.elapsed_seconds,
        waiting_share=stats.waiting_seconds / stats.elapsed_seconds,
    )


def _make_shards(folder: Path, seed: int, progress: Progress) -> tuple[list[Path], list[Path]]:
    task = progress.add_task("making pictures", total=TRAIN_PICTURES + TEST_PICTURES, note="")
    train = write_shards(
        folder, "train", TRAIN_PICTURES, seed, progress=lambda done: progress.update(task, completed=done)
    )
    test = write_shards(
        folder,
        "test",
        TEST_PICTURES,
        seed + 1,
        progress=lambda done: progress.update(task, completed=TRAIN_PICTURES + done),
    )
    return train, test


def _train(loader: GPULoader, seed: int, progress: Progress) -> nn.Module:
    torch.manual_seed(seed)
    net = small_net(len(CLASSES)).to(loader.device)
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=EPOCHS * len(loader))
    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        task = progress.add_task(f"epoch {epoch + 1}/{EPOCHS}", total=len(loader), note="")
        before, loss_sum, right, seen = loader.stats(), 0.0, 0, 0
        for images, labels in loader:
            scores = net(images)
            loss = criterion(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            loss_sum += loss.item() * len(labels)
            right += int((scores.argmax(1) == labels).sum())
            seen += len(labels)
            now = loader.stats()
            elapsed = now.elapsed_seconds - before.elapsed_seconds
            waiting = (now.waiting_seconds - before.waiting_seconds) / elapsed
            progress.update(
                task,
                advance=1,
                note=f"loss {loss_sum / seen:.2f}  accuracy {right / seen:.0%}  "
                f"{seen / elapsed:.0f} images/s  waiting {waiting:.0%}",
            )
    return net


@torch.no_grad()
def _evaluate(net: nn.Module, loader: GPULoader) -> tuple[float, int]:
    net.eval()
    seen: set[int] = set()
    right = 0
    for batch in loader:
        right += int((net(batch["image"]).argmax(1) == batch["label"]).sum())
        seen.update(batch["index"].tolist())
    return right / len(seen), len(seen)


def _draw_grid(shards: list[Path], picture: Path, seed: int, rows: int = 4, columns: int = 8) -> None:
    """Training images as the net gets them, before they are normalised, with their labels."""
    overrides = {"RandomResizedCrop": {**TRAIN["RandomResizedCrop"], "size": 144}, "dtype": "uint8", "Normalize": None}
    with GPULoader(shards, rows * columns, None, preset_overrides=overrides, seed=seed) as loader:
        images, labels = next(iter(loader))
    side, gap, text = 144, 8, 18
    grid = Image.new("RGB", (gap + columns * (side + gap), gap + rows * (side + text + gap)), "white")
    canvas = ImageDraw.Draw(grid)
    for place, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        row, column = divmod(place, columns)
        left, top = gap + column * (side + gap), gap + row * (side + text + gap)
        grid.paste(Image.fromarray(image.permute(1, 2, 0).numpy()), (left, top))
        canvas.text((left, top + side + 2), CLASSES[label], fill="black", font_size=13)
    grid.save(picture)
