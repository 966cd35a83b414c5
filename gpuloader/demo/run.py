"""Runs the demo: pictures, loaders, a training loop, an exact evaluation, and a picture of predictions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from gpuloader.base.progress import progress_bar, say
from gpuloader.demo.pictures import CLASSES, write_shards
from gpuloader.errors import StateError
from gpuloader.loading.loader import GPULoader
from gpuloader.tools.outputs import PICTURES, check_output
from gpuloader.tools.sheet import Sheet, as_picture, fitting_tile

PHOTOS, SHARDS = "photos", "shards"
TRAIN_FOLDER, VAL_FOLDER = "train", "val"
TRAIN_PICTURES = 1200
VAL_PICTURES = 300
PICTURES_PER_SHARD = 300
BATCH_SIZE = 32
EPOCHS = 5
PEAK_LEARNING_RATE = 6e-3
ROWS, COLUMNS = 4, 6
RIGHT, WRONG = "#1a7f37", "#c62828"

TRAIN: Mapping[str, Any] = {"imagenet_train": {"RandomResizedCrop": {"size": 72, "scale": [0.35, 1.0]}}}
EVALUATE: Mapping[str, Any] = {"imagenet_eval": {"Resize": {"size": 82}, "CenterCrop": {"size": 72}}}
SHOW: Mapping[str, Any] = {  # the part that EVALUATE cuts out
    "imagenet_eval": {"Resize": {"size": 164}, "CenterCrop": {"size": 144}, "Normalize": None}
}


def run_demo(
    folder: Path, picture: Path, device_id: int | Literal["auto"] | None = "auto", seed: int = 0
) -> dict[str, str]:
    """Makes pictures, trains, evaluates, and draws predictions in `picture`. Shows the progress on stderr.

    The pictures are `folder`/photos/train/CLASS/000000.jpg and following, and the same in photos/val. They are also in
    the shards `folder`/shards/train/train-0000.tar and following, and `folder`/shards/val/val-0000.tar.

    It returns texts by name: the device; the accuracy for the pictures in val; and over all epochs, with the net's
    work, the speed and the share of the time that the net waited for pictures.

    Args:
        folder: where the pictures and shards are written.
        picture: the picture of predictions to write.
        device_id: as `GPULoader` takes it.
        seed: decides the pictures, their order and the net.

    Raises:
        ConfigError: `picture` is not a .png or .jpg in a folder that exists.
        StateError: `folder` has photos or shards already.
    """
    check_output(picture, PICTURES)
    if there := next((name for name in (PHOTOS, SHARDS) if (folder / name).exists()), None):
        raise StateError(f"{folder / there} exists already: give an empty folder")
    train, val = _make_shards(folder, seed)
    training: dict[str, Any] = {"preset": TRAIN, "seed": seed}
    with GPULoader(train, BATCH_SIZE, device_id, **training) as loader:
        threads = torch.get_num_threads()
        torch.set_num_threads(max(1, threads // 2))  # the loader has the rest: with more, they wait for each other
        net = _train(loader, seed)
        torch.set_num_threads(threads)
        stats = loader.stats()
    with GPULoader(val, BATCH_SIZE, device_id, preset=EVALUATE, output="dict") as loader:
        predicted, truth, evaluated = _predict(net, loader)
    with GPULoader(val, BATCH_SIZE, device_id, preset=SHOW, output="dict") as loader:
        images = torch.cat([batch["image"].cpu() for batch in loader])
    _draw_predictions(images, predicted, truth, picture)
    accuracy = float((predicted == truth).float().mean())
    return {
        "device": str(loader.device),
        "accuracy": f"{accuracy:.1%} of {evaluated} pictures that it had not seen, each once",
        "training": f"{stats.samples / stats.elapsed_seconds:.0f} images/s",
        "waiting for data": f"{stats.waiting_seconds / stats.elapsed_seconds:.0%} of the training time",
    }


def _make_shards(folder: Path, seed: int) -> tuple[list[Path], list[Path]]:
    with progress_bar(sys.stderr.isatty()) as bar:
        say(bar, f"making {TRAIN_PICTURES + VAL_PICTURES:,} pictures of {len(CLASSES)} classes")
        task = bar.add_task("pictures", total=TRAIN_PICTURES + VAL_PICTURES)

        def write(name: str, count: int, seed: int) -> list[Path]:
            shards, photos = folder / SHARDS / name, folder / PHOTOS / name
            return write_shards(shards, name, count, seed, PICTURES_PER_SHARD, lambda _: bar.advance(task), photos)

        return write(TRAIN_FOLDER, TRAIN_PICTURES, seed), write(VAL_FOLDER, VAL_PICTURES, seed + 1)


def stage(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Makes a stage from (B, inputs, H, W) to (B, outputs, H / 2 / stride, W / 2 / stride)."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
    )


def small_net(classes: int = 10) -> nn.Module:
    """Makes a network from normalised pictures, (B, 3, 72, 72) float32, to scores of classes, (B, classes) float32."""
    return nn.Sequential(
        stage(3, 24, kernel=5, stride=2),
        stage(24, 64),
        stage(64, 128),
        stage(128, 256),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


def _train(loader: GPULoader, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = small_net(len(CLASSES)).to(loader.device)
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=EPOCHS * len(loader))
    criterion = nn.CrossEntropyLoss()
    with progress_bar(sys.stderr.isatty()) as bar:
        task = bar.add_task("training", total=EPOCHS * len(loader))
        for epoch in range(1, EPOCHS + 1):
            right = seen = 0
            for images, labels in loader:
                scores = net(images)
                loss = criterion(scores, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.advance(task)
                right += int((scores.argmax(1) == labels).sum())
                seen += len(labels)
            stats = loader.stats()
            rate, waiting = stats.samples / stats.elapsed_seconds, stats.waiting_seconds / stats.elapsed_seconds
            say(bar, f"epoch {epoch}/{EPOCHS}  accuracy {right / seen:.0%}  {rate:.0f} images/s  waiting {waiting:.0%}")
    return net


@torch.no_grad()
def _predict(net: nn.Module, loader: GPULoader) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Returns the class that the net predicts for each picture, the true ones, and the number of different pictures."""
    net.eval()
    predicted, truth = [], []
    seen: set[int] = set()
    for batch in loader:
        predicted.append(net(batch["image"]).argmax(1).cpu())
        truth.append(batch["label"].cpu())
        seen.update(batch["index"].tolist())
    return torch.cat(predicted), torch.cat(truth), len(seen)


def _draw_predictions(images: torch.Tensor, predicted: torch.Tensor, truth: torch.Tensor, picture: Path) -> None:
    """Draws a grid of some images; each has its prediction below, and a frame that shows whether it is right."""
    right = predicted == truth
    title = f"Predictions for pictures that the net had not seen: {int(right.sum())} of {len(right)} are right."
    if not right.all():
        title += " Wrong ones come first, in red."
    sheet = Sheet(fitting_tile(images.shape[2:]), COLUMNS, ROWS, [title])
    wrong = (~right).nonzero().flatten().tolist()
    shown = [*wrong[:COLUMNS], *right.nonzero().flatten().tolist(), *wrong[COLUMNS:]]
    for place, number in enumerate(shown[: ROWS * COLUMNS]):
        is_right = bool(right[number])
        caption = [CLASSES[predicted[number]], *([] if is_right else [f"truth: {CLASSES[truth[number]]}"])]
        row, column = divmod(place, COLUMNS)
        sheet.put(row, column, as_picture(images[number]), caption, frame=RIGHT if is_right else WRONG)
    sheet.image.save(picture)
