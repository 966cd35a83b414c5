"""What the fuzzer's processes are asked, and what they answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fuzzing.mutants import mutator_of, mutators

BATCH = 64
OUTCOMES = ("refused", "replaced", "accepted")
CAUSES = ("crash", "hang", "memory", "error", "split")
CAUSES_OF_ONE = ("hang", "memory")
"""Those that a whole batch may have without the fault of any mutant: by its size, or the machine's load."""


class Job(NamedTuple):
    """A batch of mutants of one kind and mutator.

    Attributes:
        recipe: the number of the recipe by which images are decoded.
    """

    kind: str
    numbers: range
    seed: int
    recipe: int = 0


class Result(NamedTuple):
    """The result of a batch.

    Attributes:
        outcomes: outcome -> how many mutants had it, those at fault left out.
        cause: what broke, one of `CAUSES`; or empty.
        detail: the cause in words.
        suspects: the mutants that may be at fault.
        seconds: how long it took.
        taken_bytes: how far the process's memory rose.
    """

    outcomes: Counter[str]
    cause: str = ""
    detail: str = ""
    suspects: Sequence[int] = ()
    seconds: float = 0.0
    taken_bytes: int = 0


class Finding(NamedTuple):
    """What broke, and the mutants at fault: one, or those of a batch if no single one breaks it."""

    job: Job
    cause: str
    detail: str


@dataclass
class Tally:
    """What became of the mutants of one kind and mutator.

    Attributes:
        counts: outcome or cause -> how many mutants.
        seconds: of one process.
        peak_bytes: the most memory that a batch took.
    """

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    peak_bytes: int = 0

    def add(self, result: Result) -> None:
        """Counts what a batch said."""
        self.counts += result.outcomes
        self.seconds += result.seconds
        self.peak_bytes = max(self.peak_bytes, result.taken_bytes)


def plan_jobs(kind: str, count: int, seed: int) -> Iterator[Job]:
    """The batches of the first mutants of a kind: each of one mutator, and by the two recipes in turn."""
    step = len(mutators(kind))
    for first in range(step):
        numbers = range(first, count, step)
        for turn, start in enumerate(range(0, len(numbers), BATCH)):
            yield Job(kind, numbers[start : start + BATCH], seed, turn % 2)


def alone(job: Job, number: int) -> Job:
    """One mutant of a batch, tried as in it."""
    return job._replace(numbers=range(number, number + 1))


def examine_all(
    jobs: Iterable[Job],
    run: Callable[[Iterable[Job]], Iterable[tuple[Job, Result]]],
    tallies: dict[tuple[str, str], Tally],
) -> Iterator[Finding]:
    """Runs all jobs, then each suspect alone; counts each mutant once, by what it does alone if it is a suspect.

    A batch that breaks although none of its mutants does alone is a finding, too, and counted once by its cause.

    Args:
        run: gives the results of jobs, in any order.
        tallies: by kind and mutator; the results are added.
    """
    broken = []
    for job, result in run(jobs):
        tally_of(job, tallies).counts["mutants"] += len(job.numbers)
        tally_of(job, tallies).add(result)
        if result.cause:
            broken.append((job, result))
    retried = {(job.kind, number): alone(job, number) for job, result in broken for number in result.suspects}
    blamed = set()
    for job, result in run(retried.values()):
        tally_of(job, tallies).add(result)
        if result.cause:
            blamed.add((job.kind, *job.numbers))
            tally_of(job, tallies).counts[result.cause] += 1
            yield Finding(job, result.cause, result.detail)
    for job, result in broken:
        if result.cause not in CAUSES_OF_ONE and not blamed & {(job.kind, number) for number in result.suspects}:
            tally_of(job, tallies).counts[result.cause] += 1
            yield Finding(job, result.cause, result.detail)


def tally_of(job: Job, tallies: dict[tuple[str, str], Tally]) -> Tally:
    """The tally that counts a job's mutants."""
    return tallies.setdefault((job.kind, mutator_of(job.kind, job.numbers[0])), Tally())
