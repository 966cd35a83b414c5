"""The check of speed: it has figures only, nothing that is off."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpuloader.tools.bench import bench
from gpuloader.tools.verify.comparing import ALONE, REPLACE
from gpuloader.tools.verify.result import Looks, Outcome, Subject


def speed(subject: Subject) -> Looks:
    """Images in a second, of the loader and of the decoder alone."""
    options: dict[str, Any] = {"label_from": None, "on_error": REPLACE, "world": ALONE}
    result = bench(subject.tar, None, subject.device_id, seconds=subject.seconds, **options)
    for figures in result.devices:
        for stage in figures.stages:
            if stage.stage in ("gate", "decode", "loader"):
                found = f"{stage.images_per_second:,.0f} images/s, {stage.cpu_seconds_per_1000:.3f} CPU s per 1,000"
                yield f"{figures.device}, {stage.title}", partial(Outcome, found)
        yield f"{figures.device}, limit", partial(Outcome, figures.limit)
