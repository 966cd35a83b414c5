"""The results of `bench`, as values and as a plot."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpuloader.base.text import counted
from gpuloader.errors import ConfigError
from gpuloader.tools.limits import StageName
from gpuloader.tools.machine import Machine
from gpuloader.tools.outputs import check_output


@dataclass(frozen=True)
class StageFigures:
    """The figures of a stage, including all stages before it.

    Attributes:
        stage: "read", "gate", "decode", "resize", "pixels", "own code" or "loader".
        title: what the stage does, in words.
        images_per_second: by elapsed time.
        cpu_seconds_per_1000: core-seconds of CPU time for 1,000 images.
        cpu_share: the share of all CPU time that this stage adds.
    """

    stage: StageName
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
        stages: in order; there is no "decode" if the images are decoded already, no "pixels" if the CPU does all
            work after the decoder in one pass, and no "own code" if the recipe has none.
        limit: one sentence: what limits the loader on this device, and what to change.
    """

    device: str
    num_threads: int
    stages: tuple[StageFigures, ...]
    limit: str


@dataclass(frozen=True)
class DataFacts:
    """The shards that were measured.

    Attributes:
        shards, images: how many.
        shard_bytes: the bytes of all shards.
        node_bytes: the bytes that this node reads: its share, with `shuffle="shards"`.
        image_bytes: the mean bytes of an image.
        decoded: whether the images are decoded already.
        jpegs, seekable: how many images are JPEGs, and how many of these are seekable.
        fits_in_memory: whether the page cache can hold what this node reads.
    """

    shards: int
    images: int
    shard_bytes: int
    node_bytes: int
    image_bytes: int
    decoded: bool
    jpegs: int
    seekable: int
    fits_in_memory: bool


@dataclass(frozen=True)
class SmallerFacts:
    """What smaller pictures save, estimated from the index and some crops of the first epoch.

    Attributes:
        needs: what to do so that they are used; empty if the recipe already uses them.
        draws: the share of the crops that use one.
        pixels: the pixels that are then decoded, as a share of the pixels without them.
    """

    needs: str
    draws: float
    pixels: float


@dataclass(frozen=True)
class BenchResult:
    """The result of `bench`.

    Attributes:
        date: UTC, in ISO 8601.
        machine, data: what was measured.
        copies: None if the recipe cannot use copies, or would use none of those that `gpuloader pack --mipmaps` makes.
        smaller: of JPEGs that the CPU decodes at 1/2, 1/4 or 1/8; None if the recipe would do so for none.
        settings: the loader's arguments, and `seconds`.
        devices: the CPU, then the GPU if there is one.
    """

    date: str
    machine: Machine
    data: DataFacts
    copies: SmallerFacts | None
    smaller: SmallerFacts | None
    settings: dict[str, Any]
    devices: tuple[DeviceFigures, ...]


def check_plotting(picture: Path) -> None:
    """Checks that matplotlib is installed, and that the plot can be written to this file.

    Raises:
        ConfigError: matplotlib is missing, or the file cannot be written or has another format.
    """
    check_output(picture, (".png", ".svg", ".pdf"))
    if find_spec("matplotlib") is None:
        raise ConfigError("a plot needs matplotlib, which is not installed: pip install 'gpuloader[plot]'")


def draw_plot(result: BenchResult, picture: Path) -> None:
    """Draws the cost of each stage as a bar; the picture's name decides the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.8 + sum(0.7 + 0.35 * len(device.stages) for device in result.devices)), dpi=120)
    axes = figure.subplots(len(result.devices), squeeze=False)[:, 0]
    for axis, device in zip(axes, result.devices, strict=True):
        titles = [figures.title for figures in device.stages]
        bars = axis.barh(titles, [1000 / figures.images_per_second for figures in device.stages], color="#2f7d5b")
        axis.bar_label(bars, [f"{figures.images_per_second:,.0f} images/s" for figures in device.stages], padding=4)
        axis.margins(x=0.2)
        axis.invert_yaxis()
        axis.set_title(f"{device.device}, {counted(device.num_threads, 'thread')}", loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("seconds for 1,000 images, each stage with all stages before it (less is better)")
    figure.text(0.01, 0.005, f"{result.machine}; {result.date[:10]}", fontsize=7)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(picture)
