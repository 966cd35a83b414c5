"""The graph: a pure function of (encoded bytes, drawn arrays), the same for training and evaluation.

    encoded, region -> decode -> for each view: resize, crop, pad, flip -> [change pixels] -> normalise -> [erase]

Its nodes depend only on the recipe: an operation that the recipe lacks has no node. A training crop is a drawn region;
an evaluation crop is the region that the centre needs. The region is decoded once for all views. On the CPU, one kernel
does everything after the decoder, or two if pixels are changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import Pipeline, do_not_convert

from gpuloader.pipelines.operators import (
    Nodes,
    cut_region,
    decode_region,
    place_on_cpu,
    place_on_gpu,
    view_on_cpu,
    view_on_gpu,
)
from gpuloader.pipelines.steps import check_for_gpu
from gpuloader.plan import Draws
from gpuloader.recipe import Preset
from gpuloader.recipe.view import ViewPlan

Source: TypeAlias = Callable[[], tuple[Any, ...]]
"""Returns a batch: the list of encoded images, then the drawn arrays in the order of their names; or StopIteration."""

LastStep: TypeAlias = Literal["decode", "resize", "all"]

_DTYPES = {
    np.dtype(np.int32): types.INT32,
    np.dtype(np.float32): types.FLOAT,
    np.dtype(np.float64): types.FLOAT64,
}


def recipe_pipeline(
    *,
    preset: Preset,
    source: Source,
    batch_size: int,
    num_threads: int,
    device_id: int | None = None,
    prefetch_queue_depth: int = 2,
    largest_image: tuple[int, int] = (0, 0),
    decoder_options: Mapping[str, float] | None = None,
    region: bool = True,
    decoded: bool = False,
    last_step: LastStep = "all",
) -> Pipeline:
    """Builds a recipe's DALI pipeline: it takes batches from `source`, and has one output for each view.

    Args:
        preset: the recipe.
        source: a function such as that of `drawn_source`, called in the thread that runs the pipeline. The only
            exception it may raise is StopIteration, and what it returns must live until its batch is done.
        batch_size: the largest batch; smaller ones are allowed.
        num_threads: the number of threads that decode and transform.
        device_id: a GPU; None for the CPU.
        prefetch_queue_depth: the number of batches that are made ahead.
        largest_image: (height, width) for which the GPU decoder reserves memory at the start; 0 for none.
        decoder_options: `hw_decoder_load` and `hybrid_huffman_threshold` of DALI's decoder on a GPU; DALI's defaults
            apply to missing ones.
        region: whether only the region of an image is decoded; if False, the whole image is decoded and then cropped to
            the region, which gives the same pixels.
        decoded: whether `source` gives images, uint8 HWC RGB, instead of encoded files.
        last_step: where the graph ends, to measure the cost of its steps: with "decode" or "resize" it returns one row
            of each image at this step.

    Raises:
        ConfigError: a GPU cannot do what the recipe asks for.
    """
    if device_id is not None:
        check_for_gpu(preset)
    pipeline: Pipeline = recipe_graph(
        preset,
        source,
        "cpu" if device_id is None else "gpu",
        largest_image,
        decoder_options,
        region,
        decoded,
        last_step,
        batch_size=batch_size,
        num_threads=num_threads,
        device_id=device_id,
        prefetch_queue_depth=prefetch_queue_depth,
        enable_conditionals=device_id is not None,  # the CPU's kernels have none, and searching for them takes 0.5 s
    )
    return pipeline


@pipeline_def(seed=0)  # type: ignore[untyped-decorator]
def recipe_graph(
    preset: Preset,
    source: Source,
    device: Literal["cpu", "gpu"],
    largest_image: tuple[int, int],
    decoder_options: Mapping[str, float] | None,
    region: bool,
    decoded: bool,
    last_step: LastStep,
) -> tuple[DataNode, ...]:
    """The graph of `recipe_pipeline`; see there for the arguments."""
    drawn = _arrays_of_one(preset, whole=decoded and device == "cpu")
    image, *rest = fn.external_source(
        source=source,
        num_outputs=1 + len(drawn),
        dtype=[types.UINT8, *(_DTYPES[array.dtype] for array in drawn.values())],
        ndim=[3 if decoded else 1, *(array.ndim - 1 for array in drawn.values())],
        no_copy=True,
    )
    if last_step != "all":  # DALI warns of unused inputs
        rest = [fn.copy(node, preserve=True) for node in rest]
    inputs: Nodes = dict(zip(drawn, rest))
    if not decoded:
        cut = decode_region(image, inputs, device, preset, largest_image, decoder_options, region)
    else:
        cut = image if device == "cpu" else cut_region(image, inputs).gpu()
    one_view = _VIEWS[last_step, device]
    return tuple(one_view(cut, of_view(inputs, view.number), view, preset) for view in preset.each_view)


@do_not_convert  # type: ignore[untyped-decorator]
def _arrays_of_one(preset: Preset, whole: bool) -> Mapping[str, NDArray[Any]]:
    """The recipe's arrays for one sample; names, dtypes and dimensions are the same for all samples."""
    one = np.ones(1, np.int64)
    return preset.arrays(Draws(seed=0, epoch=0, ids=one), one, one, whole)


def _decoded_row(region: DataNode, drawn: Nodes, view: ViewPlan, preset: Preset) -> DataNode:
    return region[0:1]


def _row_on_cpu(region: DataNode, drawn: Nodes, view: ViewPlan, preset: Preset) -> DataNode:
    return place_on_cpu(region, drawn, view, preset)[0:1]


def _row_on_gpu(region: DataNode, drawn: Nodes, view: ViewPlan, preset: Preset) -> DataNode:
    return place_on_gpu(region, drawn, view, preset)[0:1]


_VIEWS = {
    ("decode", "cpu"): _decoded_row,
    ("decode", "gpu"): _decoded_row,
    ("resize", "cpu"): _row_on_cpu,
    ("resize", "gpu"): _row_on_gpu,
    ("all", "cpu"): view_on_cpu,
    ("all", "gpu"): view_on_gpu,
}


def of_view(drawn: Nodes, number: int) -> Nodes:
    """The inputs of a view, by their names without the view's number."""
    parts = (name.rpartition(".") for name in drawn)
    return {name: drawn[f"{name}.{number}"] for name, _, view in parts if view == str(number)}
