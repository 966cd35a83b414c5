"""Faults of other projects that a test on a GPU may meet; any other failure is ours until shown otherwise."""

from __future__ import annotations

from gpuloader.helpers.versions import decoder_versions
from gpuloader.pipelines.probe import TRIALS, Found

_OF_REGIONS = ("it ends the process (SIGSEGV", "nvImageCodec failure: '#8'")


def is_known_of_regions(found: Found) -> bool:
    """Whether regions fail as they are known to in nvImageCodec 0.9: it crashes, or says that an image is damaged."""
    problems = [problem for trial, problem in zip(TRIALS, found.problems, strict=True) if trial.region]
    is_affected = decoder_versions()["nvImageCodec"].startswith("0.9.")
    return is_affected and any(said in problem for problem in problems for said in _OF_REGIONS)
