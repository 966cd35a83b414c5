"""What memory a loader needs, from the index and the recipe alone: no image is read."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from gpuloader.helpers.cores import available_memory_bytes
from gpuloader.helpers.units import format_bytes
from gpuloader.internals.dali import is_out_of_memory
from gpuloader.loading.run import Run
from gpuloader.plan import Draws
from gpuloader.recipe import Preset
from gpuloader.shards import ShardSet

_SAMPLED = 10_000
_ARENA_GROWTH = 1.25
_log = logging.getLogger("gpuloader")


@dataclass(frozen=True)
class MemoryEstimate:
    """What a loader needs beside the 0.5 GB of Python, torch and DALI; measured on a CPU, it was mostly within 25 %.

    Attributes:
        preset, batch_size, prefetch: the loader's.
        index_bytes: where the samples are.
        encoded_bytes: the images as read, in host memory: 2 * prefetch + 2 batches, and a quarter to grow.
        decoded_bytes: the decoded parts that the crops need, of two batches, on the device; None where no image's size
            is known.
        worst_batch_bytes: the most that the decoded images of one batch can take: those of the largest images that the
            recipe's `max_pixels` allows, of those whose size is known.
        machine_bytes: the memory that this process may take of its machine.
        output_bytes: the views that the loop gets, of prefetch + 2 batches, on the device.
    """

    preset: str
    batch_size: int
    prefetch: int
    index_bytes: int
    encoded_bytes: int
    decoded_bytes: int | None
    worst_batch_bytes: int
    machine_bytes: int
    output_bytes: int


def estimate_memory(shards: ShardSet, recipe: Preset, preset: str, batch_size: int, prefetch: int) -> MemoryEstimate:
    """What a loader over these shards needs; `preset` is the recipe's name in the estimate."""
    heights, widths, sizes = (
        np.concatenate([getattr(index, column) for _, index in shards.indexes])
        for column in ("height", "width", "image_size")
    )
    pixels = heights.astype(np.int64) * widths
    decoded = None
    some = np.flatnonzero((pixels > 0) & (pixels <= recipe.max_pixels))
    if len(some):
        some = some[np.linspace(0, len(some) - 1, min(_SAMPLED, len(some))).astype(np.int64)]
        drawn = recipe.arrays(Draws(0, 0, some), heights[some].astype(np.int64), widths[some].astype(np.int64))
        decoded = int(2 * batch_size * 3 * drawn["region_shape"].astype(np.int64).prod(axis=1).mean())
    values = sum(3 * prod(shape) for shape in recipe.shapes(epoch=0))
    columns = (column for _, index in shards.indexes for column in vars(index).values())
    return MemoryEstimate(
        preset=preset,
        batch_size=batch_size,
        prefetch=prefetch,
        index_bytes=sum(column.nbytes for column in columns if isinstance(column, np.ndarray)),
        encoded_bytes=int((2 * prefetch + 2) * _ARENA_GROWTH * batch_size * float(sizes.mean())),
        decoded_bytes=decoded,
        worst_batch_bytes=sum(_largest_images_bytes(shards, recipe, batch_size)),
        machine_bytes=available_memory_bytes(),
        output_bytes=(prefetch + 2) * batch_size * values * np.dtype(recipe.dtype).itemsize,
    )


def excess_of_a_batch(shards: ShardSet, recipe: Preset, batch_size: int, memory_bytes: int) -> str | None:
    """What to lower, where the decoded images of one batch can take over half of so much memory."""
    height, width = shards.largest_image(recipe.max_pixels)
    if 6 * batch_size * height * width <= memory_bytes:
        return None
    taken_bytes = _largest_images_bytes(shards, recipe, batch_size)
    if 2 * sum(taken_bytes) <= memory_bytes:
        return None
    fitting = int((2 * np.cumsum(taken_bytes) <= memory_bytes).sum())
    lower = f"batch_size to {fitting}, or the recipe's max_pixels" if fitting else "the recipe's max_pixels"
    return (
        f"the decoded images of one batch can take {format_bytes(sum(taken_bytes))}, over half of the "
        f"{format_bytes(memory_bytes)} of memory: lower {lower} (batch_size={batch_size}, "
        f"max_pixels={recipe.max_pixels}; the largest image has {taken_bytes[0] // 3:,} pixels)"
    )


def warn_of_memory(run: Run) -> None:
    """Logs a warning, in one process of a machine, where the decoded images of a batch can take over half of it all."""
    if run.decoded or run.world.local_rank:
        return
    memory_bytes = available_memory_bytes()
    if run.device_id is not None:
        memory_bytes = torch.cuda.get_device_properties(run.device_id).total_memory
    if excess := excess_of_a_batch(run.shards, run.recipe, run.plan.batch_size, memory_bytes):
        _log.warning("%s", excess)


def explain_lack_of_memory(run: Run, message: str) -> str:
    """What took the memory, and what to lower, for an error of DALI's that `is_out_of_memory`."""
    height, width = run.shards.largest_image(run.recipe.max_pixels)
    batch_size, prefetch = run.plan.batch_size, run.decoder.prefetch
    needed = estimate_memory(run.shards, run.recipe, "", batch_size, prefetch)
    said = next(line for line in message.splitlines() if is_out_of_memory(line))
    return (
        f"{run.device} has no memory left for batch_size={batch_size}, prefetch={prefetch} and images of "
        f"up to {width}x{height} pixels: this loader needs about "
        f"{format_bytes(needed.output_bytes)} for finished batches and {format_bytes(needed.decoded_bytes or 0)} for "
        f"decoded images. Take a smaller batch_size or prefetch, or smaller images (gpuloader pack --max-size). "
        f"DALI says: {said.strip()}"
    )


def _largest_images_bytes(shards: ShardSet, recipe: Preset, batch_size: int) -> list[int]:
    """What each of the largest images that a recipe allows takes decoded; as many as a batch has, the largest first."""
    pixels = np.concatenate([index.height.astype(np.int64) * index.width for _, index in shards.indexes])
    allowed = pixels[pixels <= recipe.max_pixels]
    return (3 * np.sort(allowed)[::-1][:batch_size]).tolist()
