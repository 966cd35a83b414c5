"""Lower bounds for every system: reading alone, decoding alone, decoding and resizing, and no loader at all.

They use this library's reader and its recipe's draws, so that the same windows are decoded, and DALI's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from gpuloader.chain.batch import Batch
from gpuloader.chain.settings import Decoder
from gpuloader.loading.loader_chain import make_chain
from gpuloader.loading.run import Run
from gpuloader.pipelines import read_cached
from gpuloader.plan import Cursor, Plan, all_samples
from gpuloader.recipe import Recipe, load_preset
from gpuloader.shards import Arena, ShardSet
from systems.common import SIZE, Images, Loader, Task, main

FLOORS = ("read", "decode", "decode-resize", "resident")
_PREFETCH = 2


def make(task: Task) -> Loader:
    """The floor that the task's variant names."""
    shards = ShardSet.open(sorted(task.shards), read_cached=read_cached)
    preset = load_preset(f"imagenet_{task.recipe}")
    plan = Plan(all_samples(len(shards), preset.default_shuffle), task.batch, last_batch="partial")
    making: dict[str, Callable[[], Callable[[int], Iterator[Images]]]] = {
        "read": lambda: _read(shards, plan),
        # Of seekable images the reader leaves the region; to decode that whole costs less than to slice it again.
        "decode": lambda: decode(
            task, shards, plan, preset, resize=False, whole=shards.seekable or not task.decodes_regions
        ),
        "decode-resize": lambda: decode(task, shards, plan, preset, resize=True),
        "resident": lambda: _resident(task, plan),
    }
    return Loader(
        making[task.variant](),
        {"num_threads": task.threads},
        ("gpuloader", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "torch"),
    )


def _read(shards: ShardSet, plan: Plan) -> Callable[[int], Iterator[Images]]:
    """The encoded bytes in memory, in the epoch's order; nothing looks at them."""
    arena = Arena()

    def epoch(number: int) -> Iterator[Images]:
        cursor = Cursor(number)
        while plan.steps_left(cursor):
            yield shards.read_images(plan.batch(cursor).ids, arena)
            cursor = plan.after(cursor)

    return epoch


def _resident(task: Task, plan: Plan) -> Callable[[int], Iterator[Images]]:
    """One synthetic batch, delivered again and again."""
    images = torch.rand((plan.batch_size, 3, SIZE, SIZE), device=task.device)

    def epoch(number: int) -> Iterator[Images]:
        for first in range(0, plan.length, plan.batch_size):
            yield images[: plan.length - first]

    return epoch


def decode(
    task: Task,
    shards: ShardSet,
    plan: Plan,
    preset: Recipe,
    *,
    resize: bool,
    whole: bool = False,
) -> Callable[[int], Iterator[Images]]:
    """Decoding alone, or with resizing; what comes out is one pixel of each image.

    Args:
        task: its threads, batch and device.
        whole: whole files, not only the regions that the recipe needs.
    """
    run = Run(plan, shards, preset, decoder=Decoder(num_threads=1, prefetch=_PREFETCH))
    parts = make_chain(run, set()).ahead
    parts.seek(Cursor())
    in_flight: list[Batch] = []  # they hold the files until DALI has decoded them

    def source() -> tuple[Any, ...]:
        batch = parts.next()
        assert batch is not None  # as epoch follows epoch
        in_flight.append(batch)
        start, end = np.split(batch.params.region, 2, axis=1)
        window = ((start - batch.params.origin).astype(np.int32), (end - start).astype(np.int32))
        return (batch.images[0],) if whole else (batch.images[0], *window)

    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=task.batch,
        num_threads=task.threads,
        device_id=None if task.device == "cpu" else 0,
        prefetch_queue_depth=_PREFETCH,
    )
    def graph() -> Any:  # noqa: ANN401
        dtypes = [types.UINT8] if whole else [types.UINT8, types.INT32, types.INT32]
        encoded, *window = fn.external_source(
            source=source, num_outputs=len(dtypes), dtype=dtypes, ndim=[1] * len(dtypes), no_copy=True
        )
        options = {"device": "cpu" if task.device == "cpu" else "mixed", "adjust_orientation": False}
        if whole or not task.decodes_regions:
            image = fn.decoders.image(encoded, **options)
            if not whole:
                image = fn.slice(
                    image, window[0], window[1], axes=(0, 1), normalized_anchor=False, normalized_shape=False
                )
        else:
            image = fn.decoders.image_slice(encoded, start=window[0], shape=window[1], axes=(0, 1), **options)
        if resize:
            image = fn.resize(image, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=task.antialias)
        return fn.transpose(image[0:1, 0:1], perm=[2, 0, 1])

    iterator = DALIGenericIterator(graph(), ["image"], prepare_first_batch=False)

    def epoch(number: int) -> Iterator[Images]:
        left = plan.length
        while left > 0:
            [output] = next(iterator)
            left -= len(in_flight.pop(0))
            yield output["image"]

    return epoch


if __name__ == "__main__":
    main(make, FLOORS)
