"""Runs a part of the loading for a while, and measures its cost."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any, Literal, TypeAlias

import torch

from gpuloader.errors import ConfigError
from gpuloader.helpers.text import counted
from gpuloader.loading.loader import GPULoader
from gpuloader.loading.selection import Sources
from gpuloader.recipe import load_preset
from gpuloader.tools.limits import Cost

LARGEST_BATCH = 128
"""The batch size of a measurement, unless one is given or there are fewer samples."""

_WARM_UP_BATCHES = 3
_WARM_UP_SHARE = 0.2

Batches: TypeAlias = Generator[int, None, None]
"""Does a part's work batch by batch, and yields the number of images in each."""


def fitting_batch_size(batch_size: int | None, samples: int) -> int:
    """Returns the given batch size; for None 128, or the largest power of two that the samples fill.

    Raises:
        ConfigError: the given batch size is larger than the number of samples.
    """
    if batch_size is None:
        return min(LARGEST_BATCH, 1 << (samples.bit_length() - 1))
    if isinstance(batch_size, int) and batch_size > samples:
        raise ConfigError(
            f"batch_size={batch_size}: the shards have {counted(samples, 'sample')}; give at most that, or leave it out"
        )
    return batch_size


def with_output(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments of `GPULoader`, with the `output` that images of different sizes, or replacements, may need."""
    recipe = load_preset(arguments.get("preset", "imagenet_train"))
    in_tuple = recipe.batch == "dense" and (recipe.random or "on_error" not in arguments)
    return {**({} if in_tuple else {"output": "dict"}), **arguments}


def count_samples(tar: Sources, device_id: int | Literal["auto"] | None, arguments: Mapping[str, Any]) -> int:
    """Counts the samples of an epoch on one rank, for any arguments of `GPULoader`."""
    with GPULoader(tar, 2, device_id, **{**arguments, "last_batch": "pad"}) as loader:  # 2: some recipes mix pairs
        return max(1, loader.num_samples // loader.world.world_size)


def measure(batches: Batches, seconds: float) -> Cost:
    """Measures the cost of a stage for at least this long and one batch, after warming up."""
    started, done = time.perf_counter(), 0
    while done < _WARM_UP_BATCHES or time.perf_counter() - started < _WARM_UP_SHARE * seconds:
        next(batches)
        if done == 0:  # the first batch may have built the graph
            started = time.perf_counter()
        done += 1
    images, started, cpu_started = 0, time.perf_counter(), time.process_time()
    for count in batches:
        images += count
        if time.perf_counter() - started >= seconds:
            break
    thousands = images / 1000
    return Cost((time.perf_counter() - started) / thousands, (time.process_time() - cpu_started) / thousands)


def load_epochs(loader: GPULoader) -> Batches:
    """Runs the loader itself, epoch after epoch, and waits for each batch."""
    before = loader.stats().samples
    while True:
        for _ in loader:
            if loader.device.type == "cuda":
                torch.cuda.current_stream(loader.device).synchronize()
            now = loader.stats().samples
            yield now - before
            before = now
