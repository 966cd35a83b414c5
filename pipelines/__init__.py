"""Builds DALI graphs and runs them, without files, YAML, ranks or epochs."""

from gpuloader.pipelines.blame import GOOD_SIZE, batch_error, good_jpeg
from gpuloader.pipelines.drawn_source import drawn_source
from gpuloader.pipelines.feed import Feed, FeedBatch
from gpuloader.pipelines.graph import Source, recipe_pipeline
from gpuloader.pipelines.inputs import LastStep
from gpuloader.pipelines.kernels.cutting import cut_to_region
from gpuloader.pipelines.kernels.reading import read_cached
from gpuloader.pipelines.operators import decoder_buffers
from gpuloader.pipelines.pipeline_runner import PipelineRunner, UndecodableError, release_unused_memory
from gpuloader.pipelines.steps import check_for_gpu
from gpuloader.pipelines.triage import find_undecodable, taken_by_engines
from gpuloader.pipelines.whole_decoder import WholeDecoder

__all__ = [
    "GOOD_SIZE",
    "Feed",
    "FeedBatch",
    "LastStep",
    "PipelineRunner",
    "Source",
    "UndecodableError",
    "WholeDecoder",
    "batch_error",
    "check_for_gpu",
    "cut_to_region",
    "decoder_buffers",
    "drawn_source",
    "find_undecodable",
    "good_jpeg",
    "read_cached",
    "recipe_pipeline",
    "release_unused_memory",
    "taken_by_engines",
]
