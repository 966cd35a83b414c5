"""Summarises results for readers: medians, and a table in Markdown.

`python report.py results.json` prints the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from peers import in_words

_CPU = "cpu_seconds_per_1000"
_COLUMNS = {
    _CPU: "CPU core-s per 1,000 images",
    "images_per_second": "images/s",
    "peak_rss_bytes": "peak memory",
}
_SEEKABLE_COLUMNS = (
    "plain shards",
    "seekable shards",
    "seekable over plain",
    "gpuloader's over its, on seekable shards",
)


def summary(result: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """recipe -> system -> figure -> median, min and max over the rounds, the first epoch of each left out."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for recipe in dict.fromkeys(run["recipe"] for run in result["rounds"]):
        for name in result["systems"]:
            runs = [run for run in result["rounds"] if (run["recipe"], run["system"]) == (recipe, name)]
            if runs:
                all_of = [figures(run) for run in runs]
                found.setdefault(recipe, {})[name] = {key: _spread([one[key] for one in all_of]) for key in all_of[0]}
    return found


def figures(run: dict[str, Any]) -> dict[str, float]:
    """What one run comes to, its first epoch left out."""
    counted = run["epochs"][1:]
    images = sum(epoch["images"] for epoch in counted)
    seconds = counted[-1]["ended_at_seconds"] - counted[0]["started_at_seconds"]
    return {
        "cpu_seconds_per_1000": 1000 * sum(epoch["cpu_seconds"] for epoch in counted) / images,
        "images_per_second": images / seconds,
        "peak_rss_bytes": run["peak_rss_bytes"],
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def table(result: dict[str, Any]) -> str:
    """Markdown: where it was measured, a table for each recipe, and what could not be measured."""
    machine, data = result["machine"], result["data"]
    size = f"{data['bytes'] / data['images'] / 1000:,.0f} kB"
    if "pixels" in data:  # since 2026-11-23
        size += f" and {data['pixels'] / data['images'] / 1e6:.1f} megapixels"
    lines = [
        f"{result['title'] or 'Images'}: {data['images']:,} of {size} on the average. {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['gpu'] or 'no GPU'}, batch {result['batch']}, {result['date']}. Medians "
        "over rounds, in brackets the lowest and highest."
    ]
    if "seekable" in result:
        lines += ["", packing(result["seekable"])]
    for recipe, systems in result["summary"].items():
        on_plain = {
            facts["plain"]: name for name, facts in result["systems"].items() if name in systems and "plain" in facts
        }
        lines += ["", f"**{recipe}**", "", f"| system | {' | '.join(_COLUMNS.values())} | gpuloader's CPU over its |"]
        lines += ["|---" * (len(_COLUMNS) + 2) + "|"]
        for name, figures in systems.items():
            if name not in on_plain.values():
                cells = [_cell(key, figures[key]) for key in _COLUMNS]
                cells.append(_ratio(systems, "gpuloader", name))
                lines.append(f"| {result['systems'][name]['title']} | {' | '.join(cells)} |")
        if on_plain:
            lines += [
                "",
                f"**{recipe}, plain and seekable shards: {_COLUMNS[_CPU]}**",
                "",
                f"| system | {' | '.join(_SEEKABLE_COLUMNS)} |",
            ]
            lines += ["|---" * (len(_SEEKABLE_COLUMNS) + 1) + "|"]
        for name, seekable in on_plain.items():
            cells = [_cell(_CPU, systems[each][_CPU]) if each in systems else "" for each in (name, seekable)]
            cells += [_ratio(systems, seekable, name), _ratio(systems, "gpuloader-seekable", seekable)]
            title = result["systems"].get(name, result["systems"][seekable])["title"]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    lines += [""]
    for facts in result["systems"].values():
        if facts["status"] != "measured":
            lines.append(f"- {facts['title']}: {facts['status']}: {in_words(facts['reason'])}")
        elif facts["note"]:
            lines.append(f"- {facts['title']}: {facts['note']}")
    return "\n".join(lines) + "\n"


def packing(facts: dict[str, Any]) -> str:
    """What `gpuloader pack --seekable` made of the shards, and its time."""
    seconds, size_bytes = facts["packing_cpu_seconds_per_1000"], facts["bytes"]
    return (
        f"Seekable shards: jpegtran {facts['jpegtran']} rewrote {facts['rewritten']:,} of {facts['images']:,} JPEGs, "
        f"which have {size_bytes['seekable'] / size_bytes['plain']:.3f} of the bytes. Packing takes "
        f"{seconds['seekable']:.1f} core-s per 1,000 images with `--seekable`, {seconds['plain']:.1f} without."
    )


def _ratio(systems: dict[str, dict[str, Any]], name: str, other: str) -> str:
    """CPU time of a system over another's; empty if one of them has none, or they are the same."""
    costs = [systems[each][_CPU]["median"] if each in systems else 0 for each in (name, other)]
    return f"{costs[0] / costs[1]:.2f}" if name != other and costs[0] and costs[1] > 0.01 else ""


def _cell(key: str, spread: dict[str, float]) -> str:
    if key == "cpu_seconds_per_1000":
        return f"{spread['median']:.3f} ({spread['min']:.3f}-{spread['max']:.3f})"
    if key == "images_per_second":
        return f"{spread['median']:,.0f} ({spread['min']:,.0f}-{spread['max']:,.0f})"
    return f"{spread['median'] / 1e6:,.0f} MB"


if __name__ == "__main__":
    sys.stdout.write(table(json.loads(Path(sys.argv[1]).read_text())))
