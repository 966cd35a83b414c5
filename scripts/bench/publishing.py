"""Writes the results beside it into the README and pages of docs/: no figure there is copied by hand.

The outputs of `gpuloader verify --json` in docs/verified go into docs/guarantees.md. `scripts/bench/publish` does all
of this, and draws the plots again.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from peers import PLOT, SYSTEMS, in_words, python_of
from report import packing
from scaling import table as scale_table
from starting import table as start_table
from storing import table as storing_table

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PLOTS = ROOT / "scripts/bench/results", ROOT / "docs/benchmark"
VERIFIED = ROOT / "docs/verified"
BEGIN, END = "<!-- measured: written by scripts/bench/publish -->\n", "<!-- end -->\n"
_VERSIONS = {
    "nvidia-dali-cuda120": "DALI",
    "nvidia-dali-cuda130": "DALI",
    "torch": "torch",
    "turboloader": "turboloader",
}

_HEADINGS = {
    "photographs": "Photographs",
    "large": "Large photographs",
    "ffcv": "FFCV",
    "folders": "Folders",
    "augmented": "Augmentation",
    "targets": "Boxes and masks",
    "decoded": "Decoded pictures",
}
"""The results that are published, and the sections of docs/benchmark.md."""
_PLOTTED = ("photographs", "large")
_SHORT = (
    "gpuloader",
    "gpuloader-oversampling",
    "gpuloader-seekable",
    "stock-dali",
    "turboloader",
    "torchvision-pil",
    "torchvision-simplejpeg",
)
"""The systems of the README's table."""
_LEFT_OUT = (
    "stock-dali-seekable",
    "turboloader-seekable",
    "floors-decode-seekable",
    "floors-read",
    "floors-decode-resize",
    "floors-resident",
)
"""The systems that docs/benchmark.md leaves to the results."""
_OF_ANOTHER_TABLE = ("ffcv",)
"""Systems whose absence from the table of photographs the page does not explain."""
_SCALES = {
    "scale": (
        "Shards of 10,000 tiny pictures; more than a million samples only in the plan",
        ("index_build_seconds", "index_load_seconds", "order_seconds_per_sample"),
    ),
    "scale-sets": (
        "One merged index of shards, opened by a loader; there are no pictures",
        ("shards", "first_set_open_seconds", "set_open_seconds"),
    ),
    "scale-folders": (
        "Single files of tiny pictures, in folders of 1,000",
        ("index_build_seconds", "index_load_seconds", "first_batch_seconds"),
    ),
}
"""For each measurement of many samples, its title and the columns that docs/benchmark.md shows."""


def main() -> None:
    """Rewrites the generated parts of the README and the pages, and the plots."""
    results = load()
    for page, text in write_parts(results).items():
        path = ROOT / page
        path.write_text(replaced(path.read_text(), text))
    for name in _PLOTTED:
        command = [python_of(PLOT, ROOT / ".bench"), Path(__file__).with_name("plot.py")]
        subprocess.run([*command, RESULTS / f"{name}.json", PLOTS / f"{name}.png"], check=True)


def write_parts(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The generated part of each page that has one."""
    verified = [json.loads(path.read_text()) for path in sorted(VERIFIED.glob("*.json"))]
    return {
        "README.md": short(results),
        "docs/benchmark.md": full(results),
        "docs/guarantees.md": proven(verified),
        "docs/large-photographs.md": storing_table(json.loads((RESULTS / "storing.json").read_text())),
    }


def load() -> dict[str, dict[str, Any]]:
    """The committed results of systems by their file's name."""
    files = {name: RESULTS / f"{name}.json" for name in _HEADINGS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def replaced(page: str, text: str) -> str:
    """The page with `text` between the two marks."""
    pattern = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    return pattern.sub(lambda _: text, page)


def short(results: dict[str, dict[str, Any]]) -> str:
    """CPU time of a few systems by recipe; then the machine, the versions and the date."""
    columns = [(results["photographs"], "train"), (results["photographs"], "eval"), (results["large"], "train")]
    lines = [
        _row("", *(f"{result['title']}: {recipe}" for result, recipe in columns)),
        "|---" * (len(columns) + 1) + "|",
    ]
    for name in _SHORT:
        costs = [_cost(result, recipe, name) for result, recipe in columns]
        lines.append(_row(columns[0][0]["systems"][name]["title"], *costs))
    shown = {result["title"]: result for result, _ in columns}
    dates = _join_dates({title: result["date"] for title, result in shown.items()})
    return "\n".join([*lines, "", f"{_place(columns[0][0])}; {versions(shown)}; {dates}.", ""])


def _cost(result: dict[str, Any], recipe: str, name: str) -> str:
    """The median of its CPU time; empty if it was not measured."""
    figures = result["summary"][recipe].get(name)
    return f"{figures['cpu_seconds_per_1000']['median']:.2f}" if figures else ""


def _place(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}"


def _join_dates(dates: dict[str, str]) -> str:
    if len(set(dates.values())) == 1:
        return next(iter(dates.values()))
    return ", ".join(f"{title.lower()} {date}" for title, date in dates.items())


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def versions(results: dict[str, dict[str, Any]]) -> str:
    """The versions of what was measured: this library's, and those of peers that it lacks."""
    found: dict[str, str] = {}
    for result in results.values():
        for system in result["systems"].values():
            found = system.get("versions", {}) | found
    return ", ".join(f"{title} {found[name]}" for name, title in _VERSIONS.items() if name in found)


def proven(verified: list[dict[str, Any]]) -> str:
    """One item for each output of `gpuloader verify --json`; a table of these would be wider than a phone."""
    lines = []
    for each in verified:
        device = ", ".join(each["machine"]["gpus"]) if each["device"] != "cpu" else f"{each['machine']['cpu']} (CPU)"
        decoder = ", ".join(f"{name} {version}" for name, version in each["versions"].items() if version != "none")
        off = ", ".join(f"{row['check']}: {row['name']}" for row in each["rows"] if not row["ok"]) or "nothing"
        lines.append(f"- {device} with {decoder}, {each['date'][:10]}: {len(each['rows'])} rows looked at, off: {off}")
    if all(each["device"] == "cpu" for each in verified):
        lines[:0] = ["No GPU has been verified yet.", ""]
    return "\n".join([*lines, ""])


def full(results: dict[str, dict[str, Any]]) -> str:
    """A table of each measurement, and two plots."""
    parts = [table(name, result) for name, result in results.items()]
    rows = json.loads((RESULTS / "start.json").read_text())["rows"]
    shown = [row for row in rows if row["rounds"] and " behind " not in row["title"]]
    said = "From the start of the process to 32 photographs. Medians of CPU time, and of wall time in brackets."
    parts.append(f"## First batch\n\n{said}\n\n{start_table(shown)}")
    parts.append("## Many samples\n")
    for name, (title, columns) in _SCALES.items():
        rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
        kept = [
            {key: row[key] for key in ("samples", *columns) if key in row} for row in rows if row["samples"] < 10**12
        ]
        parts.append(f"{title}:\n\n{scale_table(kept)}")
    return "\n".join(parts)


def table(name: str, result: dict[str, Any]) -> str:
    """The CPU time by system and recipe, and the most memory of any recipe; then the machine and the notes."""
    data, summary = result["data"], result["summary"]
    systems = [
        each for each in result["systems"] if each not in _LEFT_OUT and any(each in of for of in summary.values())
    ]
    lines = [f"## {_HEADINGS[name]}", ""]
    if name in _PLOTTED:
        lines += [f"![CPU time by system](benchmark/{name}.png)", ""]
    lines += [_row("system", *summary, "peak memory"), "|---" * (len(summary) + 2) + "|"]
    for system in systems:
        figures = [of[system] for of in summary.values() if system in of]
        memory = max(each["peak_rss_bytes"]["median"] for each in figures)
        costs = [_cost(result, recipe, system) for recipe in summary]
        lines.append(_row(result["systems"][system]["title"], *costs, f"{memory / 1e6:,.0f} MB"))
    lines += [
        "",
        f"{data['images']:,} images of {data['bytes'] / data['images'] / 1000:,.0f} kB on average, batch "
        f"{result['batch']}. {_place(result)}, {result['date']}.",
    ]
    if "seekable" in result:
        lines += ["", packing(result["seekable"])]
    notes = [(result["systems"][each]["title"], result["systems"][each]["note"]) for each in systems]
    if name == "photographs":
        missing = {each: facts for each, facts in result["systems"].items() if facts["status"] != "measured"}
        facts = [missing[each] for each in SYSTEMS if each in missing and each not in _OF_ANOTHER_TABLE]
        notes += [(each["title"], f"{each['status']}: {in_words(each['reason'])}") for each in facts]
    lines += ["", *(f"- {title}: {note}" for title, note in notes if note)] if any(note for _, note in notes) else []
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
