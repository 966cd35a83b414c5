"""Runs the fuzzer as the options say; see `fuzzing`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import fuzzing
from fuzzing import report
from fuzzing.jobs import Job, Result, Tally, examine_all, plan_jobs
from fuzzing.mutants import KINDS, mutant
from fuzzing.processes import examined


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
    parser.add_argument("--spare-mib", type=int, default=1024, help="memory that a mutant may take")
    parser.add_argument("--json", type=Path, help="a file to write the results to")
    results, page = (path.relative_to(report.ROOT) for path in (report.RESULTS, report.PAGE))
    parser.add_argument("--publish", action="store_true", help=f"run nothing: write {results} into {page}")
    options = parser.parse_args(arguments)
    if options.publish:
        report.publish()
        return 0
    started = time.monotonic()
    tallies: dict[tuple[str, str], Tally] = {}
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bars = {kind: progress.add_task(kind, total=options.count) for kind in options.kinds}
        totals = dict.fromkeys(options.kinds, options.count)

        def run(jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
            for job, result in examined(jobs, options.workers, options.spare_mib << 20):
                if result.cause and len(job.numbers) > 1:
                    text = f"{job.kind} {job.numbers}: {result.cause}: {result.detail}"
                    console.print(text, markup=False, highlight=False, soft_wrap=True)
                    totals[job.kind] += len(result.suspects)  # they are tried again
                progress.update(bars[job.kind], total=totals[job.kind], advance=len(job.numbers))
                yield job, result

        jobs = chain.from_iterable(plan_jobs(kind, options.count, options.seed) for kind in options.kinds)
        findings = list(examine_all(jobs, run, tallies))
    console.print(report.table(tallies))
    for job, cause, detail in findings:
        saved = [save(options.folder, job, number) for number in job.numbers]
        text = f"{cause}: {detail}\n  " + "\n  ".join(map(str, saved))
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if options.json:
        run_with = {"seed": options.seed, "workers": options.workers, "spare_mib": options.spare_mib}
        summary = report.summarize(tallies, findings, **run_with, seconds=time.monotonic() - started)
        options.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 1 if findings else 0


def save(folder: Path, job: Job, number: int) -> Path:
    """Writes a mutant into the folder, under a name that says how to make it again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed{job.seed}-{number}.{job.kind}"
    path.write_bytes(mutant(job.kind, job.seed, number))
    return path


if __name__ == "__main__":
    sys.exit(main())
