"""The graph: a pure function of (encoded bytes, random parameters), the same for training and evaluation.

    encoded, region -> decode -> for each view: resize, crop, pad, flip -> [change pixels] -> normalise -> [erase]

Its nodes depend only on the recipe: an operation that the recipe lacks has no node. A training crop is a drawn region;
an evaluation crop is the region that the centre needs. The region is decoded once for all views. Views that share their
geometry are placed once, as levels. On the CPU, one kernel does everything after the decoder, or two if pixels are
changed or shared. On a GPU, DALI's operators do, and work only on pixels: `inputs` computes the numbers that they take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import Pipeline

from gpuloader.errors import ConfigError
from gpuloader.pipelines.inputs import Arrays, GraphInputs, LastStep, under
from gpuloader.pipelines.operators import (
    cut_region,
    decode_region,
    decode_where,
    finish_on_cpu,
    finish_on_gpu,
    place_on_cpu,
    place_on_gpu,
)
from gpuloader.pipelines.steps import Nodes, check_for_gpu
from gpuloader.recipe import AnyPreset, AugmentParams, load_preset
from gpuloader.recipe.view import ViewPlan, placed_by

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
            bfloat16. `oversampling` has no effect.
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
    if recipe.own_code is not None:
        raise ConfigError("the recipe has own code, which no graph can run: use a GPULoader, a Stage or a Compose")
    if device_id is not None:
        check_for_gpu(recipe)
    [graph] = recipe.graphs
    region = device_id is None if region is None else region
    inputs = GraphInputs(
        graph,
        device_id,
        decoded=decoded,
        region=region,
        prefetch_queue_depth=prefetch_queue_depth,
        last_step=last_step,
    )
    return graph_pipeline(
        inputs,
        fed_by(source, inputs),
        batch_size=batch_size,
        num_threads=num_threads,
        device_id=device_id,
        prefetch_queue_depth=prefetch_queue_depth,
        largest_image=largest_image,
        decoder_options=decoder_options,
    )


def fed_by(source: Source, inputs: GraphInputs) -> Callable[[], tuple[Any, ...]]:
    """Returns the function that DALI calls, for a source of files and a graph that takes files."""

    def feed() -> tuple[Any, ...]:
        images, params = source()
        return inputs([images], params)

    return feed


def graph_pipeline(
    inputs: GraphInputs,
    feed: Callable[[], tuple[Any, ...]],
    *,
    batch_size: int,
    num_threads: int,
    device_id: int | None,
    prefetch_queue_depth: int,
    largest_image: tuple[int, int] = (0, 0),
    decoder_options: Mapping[str, float] | None = None,
) -> Pipeline:
    """Builds the pipeline of a graph; see `recipe_pipeline`.

    Args:
        feed: returns what `inputs` makes for the next batch, or raises StopIteration.
    """
    if device_id is not None and decoder_options is None:
        decoder_options = {"hw_decoder_load": 0.0}
    pipeline: Pipeline = dali_graph(
        inputs,
        feed,
        inputs.numbers(inputs.graph.of_none),
        largest_image,
        decoder_options,
        batch_size=batch_size,
        num_threads=num_threads,
        device_id=device_id,
        prefetch_queue_depth=prefetch_queue_depth,
    )
    return pipeline


@pipeline_def(seed=0)  # type: ignore[untyped-decorator]
def dali_graph(
    inputs: GraphInputs,
    feed: Callable[[], Any],
    like: Arrays,
    largest_image: tuple[int, int],
    decoder_options: Mapping[str, float] | None,
) -> tuple[DataNode, ...]:
    """Builds the nodes of a graph; `like` has the names, types and dimensions of its numbers."""
    graph, device = inputs.graph, inputs.device
    images = [(types.UINT8, 3 if inputs.decoded else 1)] * graph.sources
    if inputs.mixed:
        images = [(types.UINT8, 1), (types.UINT8, 3), (types.BOOL, 0)]
    count = len(images)
    nodes = fn.external_source(
        source=feed,
        num_outputs=count + len(like),
        dtype=[dtype for dtype, _ in images] + [types.to_dali_type(array.dtype) for array in like.values()],
        ndim=[ndim for _, ndim in images] + [array.ndim - 1 for array in like.values()],
        no_copy=True,
    )
    given, outputs = dict(zip(like, nodes[count:])), list[DataNode]()

    def decode(encoded: DataNode, its: Nodes) -> DataNode:
        return decode_region(encoded, its, device, largest_image, decoder_options, inputs.region)

    for number, (source, views) in enumerate(graph.parts):
        its, image = under(given, number), nodes[source]
        if inputs.mixed:
            files, arrays, are_files, *_ = nodes
            image = decode_where(files, arrays, are_files, its, decode)
        elif not inputs.decoded:
            image = decode(image, its)
        elif device == "gpu":
            image = cut_region(image, its).gpu()
        outputs += _views(image, its, views, inputs)
    if inputs.last_step != "all" or not isinstance(graph.batch, dict):
        return tuple(outputs)
    axes = (1, 2) if graph.layout == "nchw" else (0, 1)
    return tuple(fn.pad(view, axes=axes, align=[graph.batch["pad"]] * 2, fill_value=0.0) for view in outputs)


def _views(region: DataNode, given: Nodes, views: Sequence[ViewPlan], inputs: GraphInputs) -> tuple[DataNode, ...]:
    """Returns the views of an image, or one row of each after an earlier step."""
    if inputs.last_step == "decode":
        return (region[0:1],) * len(views)
    on_cpu, graph = inputs.device == "cpu", inputs.graph
    place, finish = (place_on_cpu, finish_on_cpu) if on_cpu else (place_on_gpu, finish_on_gpu)
    of_views, first = [under(given, view.number) for view in views], placed_by(views)
    placed = {
        at: region if views[at].is_placed else place(region, of_views[at], views[at], graph)
        for at in dict.fromkeys(first)
    }
    if inputs.last_step == "resize":
        return tuple(placed[at][0:1] for at in first)
    return tuple(finish(placed[at], of_view, view, graph) for at, of_view, view in zip(first, of_views, views))
