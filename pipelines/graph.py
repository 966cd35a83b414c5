"""The graph: a pure function of (encoded bytes, drawn arrays), the same for training and evaluation.

    encoded, region -> decode -> resize, cut, flip -> [jitter] -> normalise -> images

What is in it depends on the recipe alone: a training crop is a drawn region, an evaluation crop the region that the
centre needs, and an operation that the recipe lacks has no node. On the CPU one kernel does all behind the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import Pipeline

from gpuloader.late_imports import import_late
from gpuloader.pipelines.gate import MAX_PIXELS
from gpuloader.pipelines.operators import Nodes, decode_region, jitter, normalise, place_on_cpu, place_on_gpu
from gpuloader.recipe import Preset

Source: TypeAlias = Callable[[], tuple[Any, ...]]
"""Gives a batch: the list of encoded images, then the drawn arrays in the order of their names; or StopIteration."""

_DTYPES = {
    np.dtype(np.int32): types.INT32,
    np.dtype(np.float32): types.FLOAT,
    np.dtype(np.float64): types.FLOAT64,
}


def build(
    preset: Preset,
    drawn: Mapping[str, NDArray[Any]],
    source: Source,
    *,
    batch_size: int,
    num_threads: int,
    device_id: int | None,
    prefetch: int,
    largest_image: tuple[int, int] = (0, 0),
) -> Pipeline:
    """A pipeline that takes batches from `source`, in the thread that runs it, and gives images of the recipe.

    Args:
        preset: the recipe.
        drawn: arrays as `Preset.arrays` gives them; their names, dtypes and dimensions are read, not their values.
        source: must not raise anything but StopIteration. What it gives must live until its batch is out.
        batch_size: the largest batch; smaller ones are fine.
        device_id: a GPU; None for the CPU.
        prefetch: batches that are worked on before they are asked for.
        largest_image: (height, width) that the GPU decoder sets memory aside for at the start, if the gate would let
            such an image pass; 0 for none.
    """

    if device_id is None:
        import_late("gpuloader.pipelines.resample")

    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=batch_size,
        num_threads=num_threads,
        device_id=device_id,
        prefetch_queue_depth=prefetch,
        enable_conditionals=preset.jitter is not None,
        seed=0,
    )
    def graph() -> DataNode:
        encoded, *rest = fn.external_source(
            source=source,
            num_outputs=1 + len(drawn),
            dtype=[types.UINT8, *(_DTYPES[array.dtype] for array in drawn.values())],
            ndim=[1, *(array.ndim - 1 for array in drawn.values())],
            no_copy=True,
        )
        return images(encoded, dict(zip(drawn, rest)), preset, device_id, largest_image)

    return graph()


def images(
    encoded: DataNode, drawn: Nodes, preset: Preset, device_id: int | None, largest_image: tuple[int, int]
) -> DataNode:
    """The recipe as nodes: encoded files to images."""
    if device_id is None:
        region = decode_region(encoded, drawn, "cpu", preset.fast_idct)
        image = place_on_cpu(region, drawn, preset)
    else:
        hint = largest_image if largest_image[0] * largest_image[1] <= MAX_PIXELS else (0, 0)
        region = decode_region(encoded, drawn, "mixed", preset.fast_idct, hint)
        image = place_on_gpu(region, drawn, preset)
    if preset.jitter is not None:
        image = jitter(image, drawn, preset)
    if device_id is None and preset.jitter is None:
        return image
    return normalise(image, preset)
