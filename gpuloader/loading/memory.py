"""Estimates the memory of a loader from the index and the recipe, without reading images."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gpuloader.base.cores import available_memory_bytes
from gpuloader.base.dali import is_out_of_memory
from gpuloader.base.text import format_bytes
from gpuloader.chain.settings import Decoder
from gpuloader.loading.parts import Parts, bytes_of_pixel, mean_pixels
from gpuloader.loading.run import Run
from gpuloader.pipelines import decoder_buffers
from gpuloader.plan import Draws
from gpuloader.recipe import Recipe, choose_factors
from gpuloader.recipe.model import Ints
from gpuloader.shards import ShardSet
from gpuloader.shards.accepted_sizes import stored_sizes

_SAMPLED = 10_000
_ARENA_GROWTH = 1.25
_log = logging.getLogger("gpuloader")


@dataclass(frozen=True)
class MemoryEstimate:
    """The estimated memory of a loader, without the 0.5 GB of Python, torch and DALI. On a CPU, mostly within 25 %.

    Attributes:
        preset, batch_size, prefetch: the arguments of the loader.
        index_bytes: the index in memory. If it is large, all processes of a machine share it.
        encoded_bytes: the encoded images in host memory, and a quarter more to grow: 2 * prefetch + 2 batches, or the
            parts of batches that are read and decoded ahead, see `gpuloader.loading.parts`. Parts that the recipe's
            `oversampling` decodes at a part of their size count only while they are read.
        decoded_bytes: the decoded regions of two parts, on the device, and the whole images if the decoder decodes
            these; of JPEGs that are decoded at a part of their size, all parts that are made ahead. None if no image's
            size is known.
        worst_part_bytes: the maximum for the decoded images of one part: the largest images with a known size that the
            recipe's `max_pixels` allows, at the sizes at which they are decoded.
        machine_bytes: the memory of the machine that this process may use.
        output_bytes: the delivered views of prefetch + 2 batches, or of 2 batches and the parts ahead, on the device,
            in the epoch with the largest images. Images of different sizes count with their mean size, or padded to the
            largest, with their `pixel_mask`; 0 if no image's size is known.
        decoder_bytes: the memory that a GPU's decoder reserves with its threads, on the device; up to twice as much in
            pinned host memory.
    """

    preset: str
    batch_size: int
    prefetch: int
    index_bytes: int
    encoded_bytes: int
    decoded_bytes: int | None
    worst_part_bytes: int
    machine_bytes: int
    output_bytes: int
    decoder_bytes: int


def estimate_memory(
    shards: ShardSet, recipe: Recipe, preset: str, batch_size: int, decoder: Decoder, parts: Parts
) -> MemoryEstimate:
    """Estimates the memory of a loader over these shards.

    Args:
        preset: the name of the recipe in the estimate.
        decoder: the settings on the loader's device, from `Decoder.on`.
    """
    rows = batch_size / len(parts.typical(batch_size))
    prefetch, num_threads = decoder.prefetch, decoder.num_threads or 1
    read_ahead, ahead = parts.ahead(batch_size, prefetch)
    with_files = float(read_ahead + 1 + ahead)
    heights, widths, sizes = map(shards.index.column, ("height", "width", "image_size"))
    pixels = heights.astype(np.int64) * widths
    recipe = recipe.at(recipe.largest_epoch)
    decoded, params = None, recipe.params_for_none
    some = np.flatnonzero((pixels > 0) & (pixels <= recipe.max_pixels))
    if len(some):
        some = some[np.linspace(0, len(some) - 1, min(_SAMPLED, len(some))).astype(np.int64)]
        params = recipe.draw(Draws(0, 0, some), stored_sizes(shards.index, some))
        region_bytes, file_bytes, is_scaled = _decoded_bytes(recipe, parts, some)
        rows = batch_size / len(parts.of_rows(np.full(batch_size, file_bytes.mean())))
        if decoder.region is False and not shards.seekable:  # regions are then cut from whole images, and both are kept
            region_bytes = region_bytes + 3 * pixels[some]
        arrays = (read_ahead + ahead) * (region_bytes if shards.seekable else file_bytes)
        decoded = int(rows * np.where(is_scaled, arrays, 2 * region_bytes).mean())
        with_files = 1 + (with_files - 1) * (1 - is_scaled.mean() ** rows)  # the others have only arrays
    largest = shards.index.largest_image(recipe.max_pixels)
    return MemoryEstimate(
        preset=preset,
        batch_size=batch_size,
        prefetch=prefetch,
        index_bytes=shards.index.file_bytes,
        encoded_bytes=int(with_files * _ARENA_GROWTH * rows * float(sizes.mean())),
        decoded_bytes=decoded,
        worst_part_bytes=round(sum(_largest_images_bytes(recipe, batch_size, parts))),
        machine_bytes=available_memory_bytes(),
        output_bytes=int((2 * batch_size + ahead * rows) * mean_pixels(params) * bytes_of_pixel(recipe)),
        decoder_bytes=(num_threads + 1) * decoder_buffers(*largest)["device_memory_padding"],
    )


def excess_of_a_part(recipe: Recipe, batch_size: int, parts: Parts, memory_bytes: int) -> str | None:
    """Returns advice if the decoded images of one part can exceed half of `memory_bytes`; otherwise None."""
    height, width = parts.shards.index.largest_image(recipe.max_pixels)
    if 6 * batch_size * height * width <= memory_bytes:
        return None
    taken_bytes = _largest_images_bytes(recipe, batch_size, parts)
    if 2 * sum(taken_bytes) <= memory_bytes:
        return None
    fitting = int((2 * np.cumsum(taken_bytes) <= memory_bytes).sum())
    lower = f"batch_size to {fitting}, or the recipe's max_pixels" if fitting else "the recipe's max_pixels"
    return (
        f"the images that are decoded at once can take {format_bytes(sum(taken_bytes))}, over half of the "
        f"{format_bytes(memory_bytes)} of memory: lower {lower} (batch_size={batch_size}, "
        f"max_pixels={recipe.max_pixels}; the largest image has {height * width:,} pixels)"
    )


def warn_of_memory(run: Run) -> None:
    """Logs a warning if the decoded images of one part can exceed half of the memory."""
    if run.decoded:
        return
    memory_bytes = available_memory_bytes()
    if run.device_id is not None:
        memory_bytes = torch.cuda.get_device_properties(run.device_id).total_memory
    if excess := excess_of_a_part(run.recipe, run.plan.batch_size, run.parts, memory_bytes):
        _log.warning("%s", excess)


def explain_lack_of_memory(run: Run, message: str) -> str:
    """Returns a message for an out-of-memory error of DALI: what took the memory, and what to lower."""
    height, width = run.shards.index.largest_image(run.recipe.max_pixels)
    batch_size, prefetch = run.plan.batch_size, run.decoder.prefetch
    needed = estimate_memory(run.shards, run.largest, "", batch_size, run.decoder, run.parts)
    reserved = "" if run.device_id is None else f", and its decoder reserves {format_bytes(needed.decoder_bytes)}"
    cause = next(line for line in message.splitlines() if is_out_of_memory(line))
    return (
        f"{run.device} has no memory left for batch_size={batch_size}, prefetch={prefetch} and images of up to "
        f"{width}x{height} pixels: this loader needs about {format_bytes(needed.output_bytes)} for finished batches "
        f"and {format_bytes(needed.decoded_bytes or 0)} for decoded images{reserved}. Take a smaller batch_size or "
        f"prefetch, or smaller images (gpuloader pack --max-size). DALI says: {cause.strip()}"
    )


def _decoded_bytes(recipe: Recipe, parts: Parts, samples: Ints) -> tuple[Ints, NDArray[np.number], NDArray[np.bool_]]:
    """Returns (n,) the decoded bytes of regions and of files, and whether JPEGs are decoded at a part of their size."""
    graph = recipe.at(recipe.largest_epoch).graphs[0]
    params = graph.draw(Draws(0, 0, samples), stored_sizes(parts.shards.index, samples))
    factors = np.ones_like(samples) if parts.oversampling is None else choose_factors(params, parts.oversampling)
    region = params.decoded_at(factors).region
    region_bytes = 3 * (region[:, 2:] - region[:, :2]).prod(axis=1)
    return region_bytes, parts.decoded_bytes(samples, np.zeros_like(samples), factors), factors > 1


def _largest_images_bytes(recipe: Recipe, batch_size: int, parts: Parts) -> list[float]:
    """Returns the decoded bytes of the largest allowed images, largest first, at most one part of them."""
    index = parts.shards.index
    pixels = index.column("height").astype(np.int64) * index.column("width")
    largest = np.argsort(-pixels * (pixels <= recipe.max_pixels))[:batch_size]
    _, of_images, _ = _decoded_bytes(recipe, parts, largest[pixels[largest] > 0])
    parts_of_images = parts.of_rows(of_images)
    return of_images[parts_of_images[0] if parts_of_images else slice(0)].tolist()
