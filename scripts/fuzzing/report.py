"""The results of a run: as a table on the terminal, as JSON, and as a table in docs/security.md."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from rich.table import Table

from fuzzing.jobs import CAUSES, OUTCOMES, Finding, Tally
from fuzzing.mutants import KINDS
from fuzzing.processes import MOST_SECONDS

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "docs/fuzz/last-run.json", ROOT / "docs/security.md"
BEGIN, END = "<!-- written by scripts/fuzz -->\n", "<!-- end -->\n"
_COLUMNS = ("mutants", *OUTCOMES, *CAUSES)
_MOST_FINDINGS = 100


def table(tallies: Mapping[tuple[str, str], Tally]) -> Table:
    """The outcomes of each kind and mutator."""
    result = Table("kind", "mutator", *_COLUMNS, "seconds", "MiB")
    for (kind, mutator), tally in sorted(tallies.items(), key=lambda each: KINDS.index(each[0][0])):
        counts = (f"{tally.counts[column]:,}" for column in _COLUMNS)
        result.add_row(kind, mutator, *counts, f"{tally.seconds:,.0f}", f"{tally.peak_bytes >> 20:,}")
    return result


def summarize(
    tallies: Mapping[tuple[str, str], Tally],
    findings: Sequence[Finding],
    *,
    seed: int,
    workers: int,
    spare_mib: int,
    seconds: float,
) -> dict[str, Any]:
    """The outcomes, and all that they depend on."""
    names = ("gpuloader", "nvidia-dali", "nvidia-nvimgcodec", "numpy", "pillow")
    versions = {each.name.lower(): each.version for each in distributions() if each.name.lower().startswith(names)}
    git = ("git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    outcomes: dict[str, dict[str, Any]] = {}
    for (kind, mutator), tally in sorted(tallies.items()):
        outcomes.setdefault(kind, {})[mutator] = {
            **{column: tally.counts[column] for column in _COLUMNS},
            "seconds": round(tally.seconds, 1),
            "peak_mib": tally.peak_bytes >> 20,
        }
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "commit": commit,
        "versions": {"python": sys.version.split()[0], **dict(sorted(versions.items()))},
        "seed": seed,
        "workers": workers,
        "limits": {"cpu_seconds": MOST_SECONDS, "memory_mib": spare_mib},
        "mutants": sum(tally.counts["mutants"] for tally in tallies.values()),
        "outcomes": outcomes,
        "findings": [
            {"kind": job.kind, "numbers": list(job.numbers), "cause": cause, "detail": detail}
            for job, cause, detail in findings[:_MOST_FINDINGS]
        ],
        "seconds": round(seconds),
        "cpu_seconds": round(sum(each.ru_utime + each.ru_stime for each in times)),
    }


def publish() -> None:
    """Writes the committed results into the page."""
    PAGE.write_text(replaced(PAGE.read_text(), describe(json.loads(RESULTS.read_text()))))


def replaced(page: str, text: str) -> str:
    """The page with `text` between the two marks."""
    pattern = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    return pattern.sub(lambda _: text, page)


def describe(results: Mapping[str, Any]) -> str:
    """The page's part: what ran, and one row for each kind."""
    heads = ("kind", "mutants", "refused", "replaced", "decoded or parsed", "crashes", "hangs", "too much memory",
             "other errors", "differing splits")  # fmt: skip
    lines = [_row(*heads), "|---" + "|---:" * (len(heads) - 1) + "|"]
    totals: Counter[str] = Counter()
    for kind in filter(results["outcomes"].get, KINDS):
        counts = sum((Counter(each) for each in results["outcomes"][kind].values()), Counter())
        totals += counts
        lines.append(_row(kind, *(f"{counts[column]:,}" for column in _COLUMNS)))
    lines.append(_row("all", *(f"{totals[column]:,}" for column in _COLUMNS)))
    dali = next(version for name, version in results["versions"].items() if name.startswith("nvidia-dali"))
    peak = max(each["peak_mib"] for kind in results["outcomes"].values() for each in kind.values())
    return "\n".join(
        [
            *lines,
            "",
            f"Seed {results['seed']}, DALI {dali}, commit {results['commit'][:7]}, "
            f"{results['seconds'] / 60:.0f} minutes with `--workers {results['workers']}`. "
            f"No batch took more than {peak:,} MiB.",
            "",
        ]
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
