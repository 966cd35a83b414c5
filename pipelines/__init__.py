"""DALI graphs, and the gate that keeps from DALI what it would not survive. No files, YAML, rank or epoch."""

from gpuloader.pipelines.admission import admit
from gpuloader.pipelines.gate import gate
from gpuloader.pipelines.graph import LastStep, Source, build
from gpuloader.pipelines.steps import check_for_gpu
from gpuloader.pipelines.triage import find_undecodable
from gpuloader.pipelines.whole import WholeDecoder

__all__ = ["LastStep", "Source", "WholeDecoder", "admit", "build", "check_for_gpu", "find_undecodable", "gate"]
