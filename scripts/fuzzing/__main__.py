"""Runs the fuzzer as the options say; see `fuzzing`. Writes its results as JSON, and as a table in docs/security.md."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from rich.progress import track

import fuzzing
from fuzzing.material import KINDS
from fuzzing.mutants import mutant
from fuzzing.processes import BATCH, MOST_SECONDS, Finding, Job, Result, Worker, examine

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "docs/fuzz/last-run.json", ROOT / "docs/security.md"
BEGIN, END = "<!-- written by scripts/fuzz -->\n", "<!-- end -->\n"
_HEADS = {
    "refused": "refused",
    "replaced": "replaced",
    "accepted": "decoded or parsed",
    "crash": "crashes",
    "hang": "hangs",
    "memory": "too much memory",
    "error": "other errors",
    "split": "differing splits",
}
_MOST_FINDINGS = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the fuzzer, prints what it found, and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz", description=fuzzing.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="mutants of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=Path("fuzz-findings"), help="where to save mutants at fault")
    parser.add_argument("--spare-mib", type=int, default=1024, help="memory that a batch may take")
    parser.add_argument("--json", type=Path, help="a file to write the results to")
    parser.add_argument("--publish", action="store_true", help="run nothing: write docs/fuzz/last-run.json into a page")
    options = parser.parse_args(arguments)
    if options.publish:
        PAGE.write_text(replaced(PAGE.read_text(), describe(json.loads(RESULTS.read_text()))))
        return 0
    started = time.monotonic()
    jobs = [
        Job(kind, range(first, min(first + BATCH, options.count)), options.seed)
        for kind in options.kinds
        for first in range(0, options.count, BATCH)
    ]
    counts: dict[str, Counter[str]] = {kind: Counter(mutants=options.count) for kind in options.kinds}
    findings: list[Finding] = []
    peak_bytes = 0
    for job, result, found in track(_examined(jobs, options), "fuzzing", len(jobs)):
        counts[job.kind].update(result.outcomes)
        peak_bytes = max(peak_bytes, result.taken_bytes)
        findings += found
    summary = {
        "commit": _commit(),
        "versions": _versions(),
        "seed": options.seed,
        "workers": options.workers,
        "limits": {"cpu_seconds": MOST_SECONDS, "memory_mib": options.spare_mib},
        "outcomes": {kind: {name: each[name] for name in ("mutants", *_HEADS)} for kind, each in counts.items()},
        "findings": [
            {"kind": job.kind, "numbers": list(job.numbers), "cause": cause, "detail": detail}
            for job, cause, detail in findings[:_MOST_FINDINGS]
        ],
        "seconds": round(time.monotonic() - started),
        "peak_mib": peak_bytes >> 20,
    }
    sys.stdout.write(describe(summary))
    for job, cause, detail in findings:
        saved = [f"  {save(options.folder, job, number)}\n" for number in job.numbers]
        sys.stdout.writelines([f"{cause}: {detail}\n", *saved])
    if options.json:
        options.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 1 if findings else 0


def _examined(jobs: Sequence[Job], options: argparse.Namespace) -> Iterator[tuple[Job, Result, list[Finding]]]:
    """The results of all jobs in their order: each thread waits for a process of its own."""
    of_thread, workers = threading.local(), []

    def examined(job: Job) -> tuple[Job, Result, list[Finding]]:
        if not hasattr(of_thread, "worker"):
            workers.append(worker := Worker(options.spare_mib << 20))
            of_thread.worker = worker
        return job, *examine(job, of_thread.worker.ask)

    try:
        with ThreadPoolExecutor(options.workers) as threads:
            yield from threads.map(examined, jobs)
    finally:
        for worker in workers:
            worker.end()


def save(folder: Path, job: Job, number: int) -> Path:
    """Writes a mutant into the folder, under a name that says how to make it again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed{job.seed}-{number}.{job.kind}"
    path.write_bytes(mutant(job.kind, job.seed, number))
    return path


def _commit() -> str:
    git = ("git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def _versions() -> dict[str, str]:
    names = ("gpuloader", "nvidia-dali", "nvidia-nvimgcodec", "numpy", "pillow")
    versions = {each.name.lower(): each.version for each in distributions() if each.name.lower().startswith(names)}
    return {"python": sys.version.split()[0], **dict(sorted(versions.items()))}


def replaced(page: str, text: str) -> str:
    """The page with `text` between the two marks."""
    pattern = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    return pattern.sub(lambda _: text, page)


def describe(results: Mapping[str, Any]) -> str:
    """What ran, as a table with a row for each kind."""
    outcomes = results["outcomes"]
    rows = {**outcomes, "all": sum(map(Counter, outcomes.values()), Counter())}
    lines = [_row("kind", "mutants", *_HEADS.values()), "|---" + "|---:" * (len(_HEADS) + 1) + "|"]
    lines += [_row(kind, *(f"{each[name]:,}" for name in ("mutants", *_HEADS))) for kind, each in rows.items()]
    dali = next(version for name, version in results["versions"].items() if name.startswith("nvidia-dali"))
    about = (
        f"Seed {results['seed']}, DALI {dali}, commit {results['commit'][:7]}, {results['seconds'] / 60:.0f} minutes "
        f"with `--workers {results['workers']}`. No batch took more than {results['peak_mib']:,} MiB."
    )
    return "\n".join([*lines, "", about, ""])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
