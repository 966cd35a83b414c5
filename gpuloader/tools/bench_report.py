"""A bench's result as a page in one file, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.util import find_spec
from pathlib import Path

from gpuloader.errors import ConfigError
from gpuloader.helpers.text import counted, format_bytes
from gpuloader.tools.bench_result import BenchResult, DeviceFigures
from gpuloader.tools.outputs import check_output

_BAR, _LABELS, _WIDTH = 22, 250, 720
_AXIS = "seconds for 1,000 images, each stage with all stages before it (less is better)"
_STYLE = """
:root { color-scheme: light dark; --text: #1d1d1f; --soft: #5c5c66; --back: #ffffff; --line: #d8d8de; --bar: #2f7d5b; }
@media (prefers-color-scheme: dark) {
  :root { --text: #ececf0; --soft: #a0a0ac; --back: #17171a; --line: #3a3a42; --bar: #4fb588; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 48rem;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; } .number { text-align: right; } .limit { font-size: 1.1rem; }
svg { width: 100%; height: auto; font: 13px system-ui, sans-serif; } svg text { fill: var(--text); }
svg rect { fill: var(--bar); } figcaption, .soft { color: var(--soft); font-size: .9rem; } figure { margin: 1rem 0; }
"""


def report_page(result: BenchResult) -> str:
    """Returns an HTML page: what limits, the figures as tables and bars, the machine and the settings."""
    title = "What loading costs"
    parts = [f"<h1>{title}</h1>"]
    for device in result.devices:
        parts += [
            f"<h2>{escape(_device(device))}</h2>",
            f'<p class="limit">{escape(device.limit)}</p>',
            _bars(device),
            _stage_table(device),
        ]
    data, machine = result.data, result.machine
    parts += [
        f'<p class="soft">{escape(caching_note(result))}</p>',
        "<h2>Data</h2>",
        _table(
            [
                ("shards", f"{data.shards:,}, {format_bytes(data.shard_bytes)}"),
                ("images", f"{data.images:,} of {format_bytes(data.image_bytes)} on average"),
                ("seekable", f"{data.seekable:,} of {counted(data.jpegs, 'JPEG')}"),
                ("decoded already", "yes" if data.decoded else "no"),
            ]
        ),
        "<h2>Machine</h2>",
        _table([("measured", result.date), ("machine", str(machine)), ("system", machine.system)]),
        _table(machine.versions.items()),
        "<h2>Settings</h2>",
        _table((name, str(value)) for name, value in result.settings.items()),
    ]
    head = (
        '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def caching_note(result: BenchResult) -> str:
    """Says how the page cache affects the figures."""
    data, memory = format_bytes(result.data.shard_bytes), format_bytes(result.machine.memory_bytes)
    if result.data.fits_in_memory:
        return (
            f"The shards ({data}) fit into memory ({memory}): all lines but the first were measured with the shards in "
            f"the page cache, from which later epochs also read."
        )
    return f"The shards ({data}) do not fit into memory ({memory}): every epoch reads from the disk."


def check_plotting(picture: Path) -> None:
    """Checks that the picture can be written, in a format of matplotlib, and that this is installed.

    Raises:
        ConfigError: one of these is not so.
    """
    check_output(picture, (".png", ".svg", ".pdf"))
    if find_spec("matplotlib") is None:
        raise ConfigError("a plot needs matplotlib, which is not installed: pip install 'gpuloader[plot]'")


def draw_plot(result: BenchResult, picture: Path) -> None:
    """Draws the page's bars as a picture; its name's ending decides the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.8 + sum(0.7 + 0.35 * len(device.stages) for device in result.devices)), dpi=120)
    axes = figure.subplots(len(result.devices), squeeze=False)[:, 0]
    for axis, device in zip(axes, result.devices, strict=True):
        titles = [figures.title for figures in device.stages]
        bars = axis.barh(titles, [1000 / figures.images_per_second for figures in device.stages], color="#2f7d5b")
        axis.bar_label(bars, [_rate(figures.images_per_second) for figures in device.stages], padding=4)
        axis.margins(x=0.2)
        axis.invert_yaxis()
        axis.set_title(_device(device), loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(_AXIS)
    figure.text(0.01, 0.005, f"{result.machine}; {result.date[:10]}", fontsize=7)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(picture)


def _bars(device: DeviceFigures) -> str:
    seconds = [1000 / figures.images_per_second for figures in device.stages]
    room = _WIDTH - _LABELS - 130
    rows = []
    for number, (figures, each) in enumerate(zip(device.stages, seconds)):
        middle, length = number * _BAR + 15, max(1.0, room * each / max(seconds))
        rows.append(
            f'<text x="{_LABELS - 8}" y="{middle}" text-anchor="end">{escape(figures.title)}</text>'
            f'<rect x="{_LABELS}" y="{middle - 12}" width="{length:.1f}" height="16" rx="2"/>'
            f'<text x="{_LABELS + length + 8:.1f}" y="{middle}">{_rate(figures.images_per_second)}</text>'
        )
    height = len(rows) * _BAR
    label = f"{device.device}: {_AXIS}"
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(rows)}</svg>'
        f"<figcaption>{_AXIS[0].upper()}{_AXIS[1:]}</figcaption></figure>"
    )


def _stage_table(device: DeviceFigures) -> str:
    head = ("stage", "images/s", "CPU s for 1,000", "CPU share")
    rows = [
        f'<tr><td>{escape(figures.title)}</td><td class="number">{figures.images_per_second:,.0f}</td>'
        f'<td class="number">{figures.cpu_seconds_per_1000:.3f}</td>'
        f'<td class="number">{"" if figures.cpu_share is None else f"{figures.cpu_share:.0%}"}</td></tr>'
        for figures in device.stages
    ]
    titles = "".join(f'<th scope="col" class="{"number" if n else ""}">{title}</th>' for n, title in enumerate(head))
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = (f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f"<table><tbody>{''.join(cells)}</tbody></table>"


def _device(device: DeviceFigures) -> str:
    return f"{device.device}, {counted(device.num_threads, 'thread')}"


def _rate(images_per_second: float) -> str:
    return f"{images_per_second:,.0f} images/s"
