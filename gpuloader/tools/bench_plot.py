"""A bench's result as a picture."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from gpuloader.errors import ConfigError
from gpuloader.helpers.text import counted
from gpuloader.tools.bench_result import BenchResult
from gpuloader.tools.outputs import check_output


def check_plotting(picture: Path) -> None:
    """Checks that the picture can be written, in a format of matplotlib, and that this is installed.

    Raises:
        ConfigError: one of these is not so.
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
