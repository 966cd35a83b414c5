"""Builds DALI graphs and runs them."""

from gpuloader.pipelines.admitted_images import admit_images
from gpuloader.pipelines.drawn_source import drawn_source
from gpuloader.pipelines.graph import Source, graph_pipeline, recipe_pipeline
from gpuloader.pipelines.inputs import GraphInputs, LastStep
from gpuloader.pipelines.kernels.cutting import cut_to_region
from gpuloader.pipelines.kernels.reading import read_cached
from gpuloader.pipelines.operators import decoder_buffers
from gpuloader.pipelines.pipeline_runner import PipelineRunner, UndecodableError, release_unused_memory
from gpuloader.pipelines.preparing import prepare
from gpuloader.pipelines.steps import check_for_gpu
from gpuloader.pipelines.triage import (
    GOOD_SIZE,
    Trial,
    batch_error,
    find_undecodable,
    good_jpeg,
    smooth_picture,
    taken_by_engines,
)

__all__ = [
    "GOOD_SIZE",
    "GraphInputs",
    "LastStep",
    "PipelineRunner",
    "Source",
    "Trial",
    "UndecodableError",
    "admit_images",
    "batch_error",
    "check_for_gpu",
    "cut_to_region",
    "decoder_buffers",
    "drawn_source",
    "find_undecodable",
    "good_jpeg",
    "graph_pipeline",
    "prepare",
    "read_cached",
    "recipe_pipeline",
    "release_unused_memory",
    "smooth_picture",
    "taken_by_engines",
]
