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

from peers import PLOT, python_of
from report import table
from scaling import table as scale_table
from starting import table as start_table
from storing import table as storing_table

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PLOTS = ROOT / "scripts/bench/results", ROOT / "docs/benchmark"
VERIFIED = ROOT / "docs/verified"
BEGIN, END = "<!-- measured: written by scripts/bench/publish -->\n", "<!-- end -->\n"
_VERSIONS = {"nvidia-dali-cuda120": "DALI", "torch": "torch", "turboloader": "turboloader", "spdl": "SPDL"}

RESULTS_OF = ("photographs", "ffcv", "folders", "augmented", "targets", "decoded", "large")
_OTHER = {
    "start": (
        "First batch: from the start of the process to the first 32 photographs, with nothing made of them before. "
        "Medians of CPU time, in brackets of the time that passed",
        start_table,
    ),
    "scale": ("Samples: shards of 10,000 tiny pictures; beyond a million, what the plan alone costs", scale_table),
    "scale-sets": (
        "Samples: one merged index of shards, opened by a loader; there are no pictures",
        scale_table,
    ),
    "scale-folders": ("Samples: single files of tiny pictures, in folders of 1,000", scale_table),
}


def main() -> None:
    """Rewrites the generated parts of the README and the pages, and the plots."""
    results = load()
    for page, text in write_parts(results).items():
        path = ROOT / page
        path.write_text(replaced(path.read_text(), text))
    for name in results:
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
    files = {name: RESULTS / f"{name}.json" for name in RESULTS_OF}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def replaced(page: str, text: str) -> str:
    """The page with `text` between the two marks."""
    pattern = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    return pattern.sub(lambda _: text, page)


def short(results: dict[str, dict[str, Any]]) -> str:
    """CPU time by system and recipe, lower bounds left out; then the machine, the versions and the date."""
    columns = [(results[name], recipe) for name in ("photographs", "large") for recipe in results[name]["summary"]]
    titles: dict[str, str] = {}
    for result, recipe in columns:
        systems = {name: result["systems"][name]["title"] for name in result["summary"][recipe]}
        titles |= {name: title for name, title in systems.items() if not title.startswith("floor: ")}
    lines = [
        _row("", *(f"{result['title']}: {recipe}" for result, recipe in columns)),
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, title in titles.items():
        costs = [result["summary"][recipe].get(name, {}).get("cpu_seconds_per_1000") for result, recipe in columns]
        lines.append(_row(title, *(f"{cost['median']:.2f}" if cost else "" for cost in costs)))
    result = columns[0][0]
    machine = result["machine"]
    place = f"{machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}"
    dates = {result["title"]: result["date"] for result, _ in columns}
    return "\n".join([*lines, "", f"{place}; {versions(results)}; {_join_dates(dates)}.", ""])


def _join_dates(dates: dict[str, str]) -> str:
    if len(set(dates.values())) == 1:
        return next(iter(dates.values()))
    return ", ".join(f"{title.lower()} {date}" for title, date in dates.items())


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def versions(results: dict[str, dict[str, Any]]) -> str:
    """The versions of what was measured."""
    found: dict[str, str] = {}
    for result in results.values():
        for system in result["systems"].values():
            found |= system.get("versions", {})
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
    """Every table, with its plot."""
    parts = [f"![CPU time by system](benchmark/{name}.png)\n\n{table(result)}" for name, result in results.items()]
    for name, (title, as_table) in _OTHER.items():
        rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
        parts.append(f"**{title}**\n\n{as_table(rows)}")
    return "\n".join(parts)


if __name__ == "__main__":
    main()
