"""The graph: a pure function of (encoded bytes, random parameters), the same for training and evaluation.

    encoded, region -> decode -> for each view: resize, crop, pad, flip -> [change pixels] -> normalise -> [erase]

Its nodes depend only on the recipe: an operation that the recipe lacks has no node. A training crop is a drawn region;
an evaluation crop is the region that the centre needs. The region is decoded once for all views. Views that share their
geometry are placed once, as levels. On the CPU, one kernel does everything after the decoder, or two if pixels are
changed or shared. On a GPU, DALI's operators do, and work only on pixels: `inputs` computes the numbers that they take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.tensors import TensorCPU

from gpuloader.pipelines.inputs import Arrays, LastStep, Numbers, make_inputs, under
from gpuloader.pipelines.operators import (
    cut_region,
    decode_region,
    finish_on_cpu,
    finish_on_gpu,
    place_on_cpu,
    place_on_gpu,
)
from gpuloader.pipelines.steps import Nodes, check_for_gpu
from gpuloader.recipe import AnyPreset, AugmentParams, Recipe, load_preset
from gpuloader.recipe.view import placed_by

Source: TypeAlias = Callable[[], tuple[Sequence[Any], AugmentParams]]
"""Returns a batch: its encoded images with their random parameters; or raises StopIteration."""


def recipe_pipeline(
    *,
    preset: AnyPreset,
    source: Source,
    batch_size: int,
    num_threads: int,
    device_id: int | None = None,
    prefetch_queue_depth: int = 2,
    largest_image: tuple[int, int] = (0, 0),
    decoder_options: Mapping[str, float] | None = None,
    region: bool | None = None,
    decoded: bool = False,
    last_step: LastStep = "all",
) -> Pipeline:
    """Builds a recipe's DALI pipeline: it takes batches from `source`, and has one output for each view.

    The images of an output differ in size if the recipe's `batch` is "list".

    Args:
        preset: the recipe, as a `GPULoader` takes it. With its dtype "bfloat16" the output is float32, as DALI has no
            bfloat16.
        source: a function such as `drawn_source` makes, called in the thread that runs the pipeline. The only exception
            it may raise is StopIteration, and the images that it returns must live until their batch is done.
        batch_size: the largest batch; smaller ones are allowed.
        num_threads: the number of threads that decode and transform.
        device_id: a GPU; None for the CPU.
        prefetch_queue_depth: the number of batches that are made ahead.
        largest_image: (height, width) for which the GPU decoder reserves memory at the start; 0 for none.
        decoder_options: `hw_decoder_load` and `hybrid_huffman_threshold` of DALI's decoder on a GPU; DALI's defaults
            apply to missing ones. None uses no JPEG engines, so that an image's pixels do not depend on its batch.
        region: whether only the region of an image is decoded. If False, the whole image is decoded and then cropped,
            which gives the same pixels on the CPU, and costs less if the files are cut to the region. None means True
            on the CPU and False on a GPU: a `GPULoader` tries first whether a GPU decodes regions.
        decoded: whether `source` gives images, uint8 HWC RGB, instead of encoded files.
        last_step: where the graph ends, to measure the cost of its steps: with "decode" or "resize" it returns one row
            of each image at this step.

    Raises:
        ConfigError: a GPU cannot do what the recipe asks for.
    """
    recipe = load_preset(preset)
    device: Literal["cpu", "gpu"] = "cpu" if device_id is None else "gpu"
    if device == "gpu":
        check_for_gpu(recipe)
        decoder_options = {"hw_decoder_load": 0.0} if decoder_options is None else decoder_options
    region = device == "cpu" if region is None else region
    whole = device == "cpu" and (decoded or not region)
    # It does not hold the recipe, because that may hold the pipeline.
    make = partial(make_inputs, recipe.each_view, device=device, last_step=last_step, whole=whole)
    pipeline: Pipeline = recipe_graph(
        recipe,
        _fed(source, make, prefetch_queue_depth),
        make(recipe.params_for_none),
        device,
        largest_image,
        decoder_options,
        region,
        decoded,
        last_step,
        batch_size=batch_size,
        num_threads=num_threads,
        device_id=device_id,
        prefetch_queue_depth=prefetch_queue_depth,
    )
    return pipeline


def _fed(source: Source, make: Callable[[AugmentParams], Arrays], prefetch_queue_depth: int) -> Callable[[], Any]:
    """Wraps a source as DALI calls it: it gives the images, then the inputs made from the random parameters."""
    in_use: deque[list[Numbers]] = deque(maxlen=prefetch_queue_depth + 1)  # DALI does not keep them

    def feed() -> tuple[Any, ...]:
        images, params = source()
        given = make(params).values()
        in_use.append([each if isinstance(each, list) else np.ascontiguousarray(each) for each in given])
        if isinstance(images, np.ndarray):
            return images, *in_use[-1]
        return [TensorCPU(image) for image in images], *in_use[-1]  # DALI takes twice as long to do so itself

    return feed


@pipeline_def(seed=0)  # type: ignore[untyped-decorator]
def recipe_graph(
    preset: Recipe,
    source: Callable[[], Any],
    like: Arrays,
    device: Literal["cpu", "gpu"],
    largest_image: tuple[int, int],
    decoder_options: Mapping[str, float] | None,
    region: bool,
    decoded: bool,
    last_step: LastStep,
) -> tuple[DataNode, ...]:
    """Builds the graph of `recipe_pipeline`; its source gives images and the values of the inputs."""
    image, *nodes = fn.external_source(
        source=source,
        num_outputs=1 + len(like),
        dtype=[types.UINT8, *(types.to_dali_type(array.dtype) for array in like.values())],
        ndim=[3 if decoded else 1, *(array.ndim - 1 for array in like.values())],
        no_copy=True,
    )
    given = dict(zip(like, nodes))
    if not decoded:
        image = decode_region(image, given, device, largest_image, decoder_options, region)
    elif device == "gpu":
        image = cut_region(image, given).gpu()
    views = _views(image, given, preset, device, last_step)
    if last_step != "all" or not isinstance(preset.batch, dict):
        return views
    axes = (1, 2) if preset.layout == "nchw" else (0, 1)
    return tuple(fn.pad(view, axes=axes, align=[preset.batch["pad"]] * 2, fill_value=0.0) for view in views)


def _views(
    region: DataNode, given: Nodes, preset: Recipe, device: Literal["cpu", "gpu"], last_step: LastStep
) -> tuple[DataNode, ...]:
    """Returns all views, or one row of each after an earlier step."""
    views = preset.each_view
    if last_step == "decode":
        return (region[0:1],) * len(views)
    place, finish = (place_on_cpu, finish_on_cpu) if device == "cpu" else (place_on_gpu, finish_on_gpu)
    of_views, first = [under(given, view.number) for view in views], placed_by(views)
    placed = {
        at: region if views[at].is_placed else place(region, of_views[at], views[at], preset)
        for at in dict.fromkeys(first)
    }
    if last_step == "resize":
        return tuple(placed[at][0:1] for at in first)
    return tuple(finish(placed[at], of_view, view, preset) for at, of_view, view in zip(first, of_views, views))
