"""Tries which ways of decoding JPEGs work on a GPU, in a separate process, because some nvImageCodec versions crash it.

The process, `python -m gpuloader.pipelines.probe DEVICE`, decodes good JPEGs in one way after the other, and writes a
line of JSON for each: {"levels": the largest mean difference of an image from Pillow's} or {"error": message}.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import Pipeline

from gpuloader.errors import DeviceError
from gpuloader.helpers.child_processes import Child
from gpuloader.helpers.versions import describe_decoder_versions
from gpuloader.internals.dali import is_out_of_memory
from gpuloader.pipelines.blame import smooth_picture
from gpuloader.pipelines.graph import Source
from gpuloader.pipelines.operators import decode_region
from gpuloader.pipelines.triage import cause_of

_MOST_LEVELS = 10.0  # decoders differ by 1 or 2; an image that was not decoded is off by 60
MOST_SECONDS = 180
_STDERR_SHOWN_CHARACTERS = 500
_IMAGES = 24
_BATCHES = 3
# Above 1,000,000 pixels, nvImageCodec decodes with another of nvJPEG's backends.
_SIZES = [(375, 500), (500, 375), (224, 224), (600, 800), (97, 131), (1000, 1200)]
_SAMPLINGS = ("4:2:0", "4:4:4", "4:2:2", "gray")


class Trial(NamedTuple):
    """A way of decoding: whether the decoder decodes only the region, and `hw_decoder_load`."""

    region: bool
    hw_load: float


TRIALS = (Trial(False, 0.0), Trial(False, 1.0), Trial(True, 0.0), Trial(True, 1.0))
"""The safest comes first, because after one that ends the process, no more are tried."""


@dataclass(frozen=True)
class Found:
    """The results of the trials.

    Attributes:
        problems: one for each of `TRIALS`; empty if it works.
    """

    problems: tuple[str, ...]

    @property
    def hw_load(self) -> float:
        """All or none, because with a share between 0 and 1, an image's decoder depends on the rest of its batch."""
        return 0.0 if self.problems[1] else 1.0

    def region(self, hw_load: float) -> bool:
        """Says whether all decoders that get images at this load decode regions correctly."""
        return not ((hw_load < 1 and self.problems[2]) or (hw_load > 0 and self.problems[3]))

    def __str__(self) -> str:
        engines = f"no engine: {self.problems[1]}" if self.problems[1] else "by engines, if there are any"
        region = f"not regions: {self.problems[3 if self.hw_load else 2]}"
        return f"{'regions' if self.region(self.hw_load) else f'whole images, {region}'}; {engines}"


def probe(device_id: int | None) -> Found:
    """Tries all ways on a GPU, or on the CPU; this takes a few seconds.

    Raises:
        DeviceError: even whole images cannot be decoded without engines, or there is not enough memory.
    """
    return decide(*_run(device_id))


def decide(lines: Sequence[dict[str, Any]], end: str) -> Found:
    """Returns the result from the answers of the process and its end; raises what `probe` raises."""
    problems = [_problem(line) for line in lines]
    problems += [f"it ends the process ({end})", *["not tried, as the process had ended"] * len(TRIALS)]
    lacking = [line["error"] for line in lines if is_out_of_memory(line.get("error", ""))]
    if problems[0] or lacking:
        raise DeviceError(
            f"a separate process, which tries how the GPU decodes good JPEGs, fails: {[*lacking, problems[0]][0]} "
            f"({describe_decoder_versions()}). See `gpuloader doctor`; Decoder(region=False, hw_load=0) does not "
            f"need it, and device_id=None does not use the GPU"
        )
    return Found(tuple(problems[: len(TRIALS)]))


def _problem(line: dict[str, Any]) -> str:
    if "error" in line:
        return cause_of(line["error"])
    return "" if line["levels"] <= _MOST_LEVELS else f"an image is off by {line['levels']:.0f} of 255 levels"


def _run(device_id: int | None) -> tuple[list[dict[str, Any]], str]:
    """Returns the answers of the process, and how it ends."""
    child = Child("tries how the GPU decodes", DeviceError, "-m", __name__, json.dumps(device_id))
    answers: list[dict[str, Any]] = []
    ends = time.monotonic() + MOST_SECONDS
    try:
        child.start()
        while (answer := child.answer(max(0, ends - time.monotonic()))) is not None:
            answers.append(answer)
    except DeviceError:
        return answers, f"stopped after {MOST_SECONDS} seconds"
    finally:
        child.close()
    errors = child.errors.strip()[-_STDERR_SHOWN_CHARACTERS:]
    return answers, f"{child.end}: {errors}" if errors and re.match("exit status [1-9]", child.end) else child.end


# --- in the process


def _serve(device_id: int | None) -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of C libraries must not mix with the answers
    images = [_jpeg(number) for number in range(_IMAGES)]
    for trial in TRIALS:
        try:
            line: dict[str, Any] = {"levels": _worst_levels(images, trial, device_id)}
        except RuntimeError as error:
            line = {"error": str(error)}
        print(json.dumps(line), file=answers)


def _jpeg(number: int) -> NDArray[np.uint8]:
    size, sampling = _SIZES[number % len(_SIZES)], _SAMPLINGS[number % len(_SAMPLINGS)]
    picture, file = smooth_picture(number, *size), io.BytesIO()
    options = {"quality": 90, "restart_marker_blocks": 5 * (number % 5 == 0)}
    if sampling == "gray":
        picture.convert("L").save(file, "JPEG", **options)
    else:
        picture.save(file, "JPEG", subsampling=sampling, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def _worst_levels(images: Sequence[NDArray[np.uint8]], trial: Trial, device_id: int | None) -> float:
    """Measures the largest mean difference of an image from Pillow's result, in levels."""
    from PIL import Image  # only in this process

    whole = [np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), np.int16) for image in images]
    rng = np.random.default_rng(0)
    sizes = np.array([image.shape[:2] for image in whole])
    shapes = (sizes * rng.uniform(0.3, 0.9, sizes.shape)).astype(np.int32)
    starts = ((sizes - shapes) * rng.uniform(0, 1, sizes.shape)).astype(np.int32)
    orders = [rng.permutation(len(images)) for _ in range(_BATCHES)]
    orders += [np.array([row]) for row in range(len(_SAMPLINGS))]  # engines may decode a lone JPEG in another way
    batches = iter(orders)

    def source() -> tuple[Any, ...]:
        order = next(batches)
        return [images[row] for row in order], starts[order], shapes[order]

    largest = (int(sizes[:, 0].max()), int(sizes[:, 1].max()))
    pipeline, worst = _regions(source, trial, largest, batch_size=len(images), num_threads=2, device_id=device_id), 0.0
    for order in orders:
        [output] = pipeline.run()
        on_host = output.as_cpu()
        for place, row in enumerate(order):
            (top, left), (height, width) = starts[row], shapes[row]
            expected = whole[row][top : top + height, left : left + width]
            worst = max(worst, float(np.abs(np.asarray(on_host.at(place), np.int16) - expected).mean()))
    return worst


@pipeline_def(prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
def _regions(source: Source, trial: Trial, largest: tuple[int, int]) -> DataNode:
    encoded, start, shape = fn.external_source(
        source=source, num_outputs=3, dtype=[types.UINT8, types.INT32, types.INT32], ndim=[1, 1, 1]
    )
    drawn = {"region_start": start, "region_shape": shape}
    device = "cpu" if Pipeline.current().device_id is None else "gpu"
    options = {"hw_decoder_load": trial.hw_load}
    return decode_region(encoded, drawn, device, largest, options, trial.region)


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
