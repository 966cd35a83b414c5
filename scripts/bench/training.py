"""Measures what a loader costs a training run on a GPU: (step with it - step on a resident batch) / the latter.

`python training.py --shards TARS [--model resnet50]` prints a line of JSON. It says so if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from systems import floors, gpuloader_
from systems.common import Images, Loader, Task

MODELS = ("resnet18", "resnet50")
_WARM_UP_STEPS = 20


def main() -> None:
    """Measures the steps of both, in turn, and prints the medians' ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", nargs="+", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, nargs="+", default=MODELS)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stdout.write(json.dumps({"status": "not measured: this machine has no GPU"}) + "\n")
        return
    task = Task(
        arguments.shards, antialias=True, batch=arguments.batch, threads=len(os.sched_getaffinity(0)), device="cuda"
    )
    systems = {"loader": gpuloader_.make(task), "resident": floors.make(replace(task, variant="resident"))}
    for model in arguments.model:
        step = _training_step(model)
        seconds: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(arguments.rounds):
            for name, loader in systems.items():
                seconds[name].append(_step_seconds(step, _batches(loader, arguments.batch), arguments.steps))
        with_loader, resident = (sorted(seconds[name])[arguments.rounds // 2] for name in systems)
        result = {"model": model, "batch": arguments.batch, "step_seconds": seconds}
        sys.stdout.write(json.dumps(result | {"overhead": (with_loader - resident) / resident}) + "\n")


def _training_step(model: str) -> Any:  # noqa: ANN401
    """A function of a batch: forward, backward and update, bfloat16, channels_last."""
    from torchvision import models

    network = getattr(models, model)().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)

    def step(images: torch.Tensor) -> None:
        labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(
                network(images.contiguous(memory_format=torch.channels_last)), labels
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _batches(loader: Loader, batch: int) -> Iterator[Images]:
    """Whole batches, one epoch after another."""
    epoch = 0
    while True:
        yield from (images for images in loader.epoch(epoch) if len(images) == batch)
        epoch += 1


def _step_seconds(step: Any, batches: Iterator[Images], steps: int) -> float:  # noqa: ANN401
    for _ in range(_WARM_UP_STEPS):
        step(next(batches))
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        step(next(batches))
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps


if __name__ == "__main__":
    main()
