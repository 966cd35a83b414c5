"""What `bench` measures, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuloader.tools.limits import Stage
from gpuloader.tools.machine import Machine


@dataclass(frozen=True)
class StageFigures:
    """The figures of a stage together with all stages before it.

    Attributes:
        stage: "read", "gate", "decode", "resize", "pixels" or "loader".
        title: what it does, for people.
        images_per_second: by the clock.
        cpu_seconds_per_1000: core-seconds of CPU time for 1,000 images.
        cpu_share: the share of all CPU time that this stage adds.
    """

    stage: Stage
    title: str
    images_per_second: float
    cpu_seconds_per_1000: float
    cpu_share: float


@dataclass(frozen=True)
class DeviceFigures:
    """What was measured with one device.

    Attributes:
        device: "cpu" or "cuda:N".
        num_threads: the number of threads that decode.
        stages: in order; there is no "decode" if the images are decoded already, and no "pixels" if the CPU does all
            work after the decoder in one pass.
        limit: one sentence: what limits, and what to change.
    """

    device: str
    num_threads: int
    stages: tuple[StageFigures, ...]
    limit: str


@dataclass(frozen=True)
class DataFacts:
    """The shards.

    Attributes:
        shards, images: how many.
        shard_bytes: of all shards together.
        image_bytes: of an image, on average.
        decoded: whether the images are decoded already.
        jpegs, seekable: how many images are JPEGs, and how many of these are seekable.
        fits_in_memory: whether the page cache can hold all of it.
    """

    shards: int
    images: int
    shard_bytes: int
    image_bytes: int
    decoded: bool
    jpegs: int
    seekable: int
    fits_in_memory: bool


@dataclass(frozen=True)
class BenchResult:
    """All results.

    Attributes:
        date: UTC, in ISO 8601.
        machine, data: what was measured.
        settings: the loader's arguments, and `seconds`.
        devices: the CPU, then the GPU if there is one.
    """

    date: str
    machine: Machine
    data: DataFacts
    settings: dict[str, Any]
    devices: tuple[DeviceFigures, ...]
