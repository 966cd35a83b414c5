"""Processes that examine batches of mutants, and may die of them: each is forked from one that has the libraries."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from fuzzing.material import IMAGES
from fuzzing.mutants import MOST_BYTES, mutant

BATCH = 64
CAUSES = ("crash", "hang", "memory", "error", "split")
MOST_SECONDS = 10  # of CPU time, for a batch and, as it is tried again then, for one mutant
_MOST_WAITING_SECONDS = 120
_MOST_JOBS = 300  # of one process: the decoders' libraries lose some memory with images that fail in them
# An allocation that fails is no finding, as decoders take it for a broken image; one that does not is.
_LIMIT_OVER_SPARE = 8
_LEAST_LIMIT_BYTES = 1 << 30  # for pipelines


class Job(NamedTuple):
    """A batch of mutants of one kind."""

    kind: str
    numbers: range
    seed: int


class Result(NamedTuple):
    """The result of a batch.

    Attributes:
        outcomes: outcome -> how many mutants had it.
        cause: what broke, one of `CAUSES`; or empty.
        detail: the cause in words.
        taken_bytes: how far the process's memory rose.
    """

    outcomes: Counter[str]
    cause: str = ""
    detail: str = ""
    taken_bytes: int = 0


class Finding(NamedTuple):
    """What broke, and the mutants at fault: one, or those of a batch if no single one breaks it."""

    job: Job
    cause: str
    detail: str


def examine(job: Job, ask: Callable[[Job], Result]) -> tuple[Result, list[Finding]]:
    """The result of a batch, in which each mutant is counted once; and what broke.

    Mutants of a batch that breaks are asked for alone, and counted by what each does then. The time and memory of a
    batch are no finding if no mutant takes as much.
    """
    result = ask(job)
    if not result.cause:
        return result, []
    alone = [(one, ask(one)) for number in job.numbers if (one := job._replace(numbers=range(number, number + 1)))]
    outcomes = sum((each.outcomes for _, each in alone), Counter())
    findings = [Finding(one, each.cause, each.detail) for one, each in alone if each.cause]
    if not findings and result.cause not in ("hang", "memory"):
        findings = [Finding(job, result.cause, result.detail)]
    outcomes.update(finding.cause for finding in findings)
    return Result(outcomes, taken_bytes=max(each.taken_bytes for _, each in alone)), findings


class Worker:
    """A process that examines one batch after another; another takes its place when it dies.

    Args:
        spare_bytes: memory that a batch may take.
    """

    def __init__(self, spare_bytes: int) -> None:
        self._spare_bytes = spare_bytes
        self._process: BaseProcess | None = None
        self._jobs = 0

    def ask(self, job: Job) -> Result:
        """What the process says of the job, or how it ended."""
        if self._process is None:
            self._begin()
        self._jobs += 1
        try:
            self._connection.send(job)
            if self._connection.poll(_MOST_WAITING_SECONDS):
                result: Result = self._connection.recv()
            else:
                result = Result(Counter(), "hang", f"no end within {_MOST_WAITING_SECONDS} s")
        except (EOFError, ConnectionError):
            self._process.join()  # type: ignore[union-attr]
            status = self._process.exitcode  # type: ignore[union-attr]
            result = Result(Counter(), "crash", f"the process ended with exit code {status}")
            if status == -signal.SIGXCPU:
                result = Result(Counter(), "hang", f"no end within {MOST_SECONDS} s of CPU time")
        if result.cause in ("crash", "hang") or self._jobs % _MOST_JOBS == 0:
            self.end()
        return result

    def end(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = None

    def _begin(self) -> None:
        context = get_context("forkserver")
        modules = ("cuts", "images", "parsers", "scales")
        context.set_forkserver_preload(["simplejpeg", *(f"fuzzing.{module}" for module in modules)])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._spare_bytes), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._connection.recv()  # it is ready: what it takes to begin counts for no mutant
        except EOFError:
            raise RuntimeError("a worker could not begin, see above") from None


def _serve(connection: Connection, spare_bytes: int) -> None:
    from fuzzing import parsers
    from fuzzing.cuts import Cutter
    from fuzzing.images import Decoder
    from fuzzing.scales import Scaler

    sys.stderr = os.fdopen(os.dup(2), "w")  # for Python's own end alone
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the decoders tell at length what is wrong with every image
    logging.disable()
    decoder, of_jpegs = Decoder(), {"seekable": Cutter(MOST_BYTES), "scaled": Scaler(MOST_BYTES)}
    decoder.warm_up()
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most_bytes = used_bytes + max(_LIMIT_OVER_SPARE * spare_bytes, _LEAST_LIMIT_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def outcomes_of(job: Job, mutants: dict[int, bytes]) -> Counter[str]:
        if job.kind in IMAGES:
            return decoder.examine(mutants, job.numbers.start // BATCH % 2)
        if job.kind in of_jpegs:
            return of_jpegs[job.kind].examine(mutants)
        return parsers.examine(job.kind, [*mutants.values()])

    connection.send("ready")
    while True:
        connection.send(_measured(connection.recv(), outcomes_of, spare_bytes))


def _measured(job: Job, outcomes_of: Callable[[Job, dict[int, bytes]], Counter[str]], spare_bytes: int) -> Result:
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before_bytes = _peak_bytes()
    # The kernel ends what takes longer, however many threads it runs on and whatever else the machine does.
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + MOST_SECONDS, -1))
    mutants = {number: mutant(job.kind, job.seed, number) for number in job.numbers}
    try:
        result = Result(outcomes_of(job, mutants))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        cause = "split" if type(error).__name__ == "SplitError" else "error"
        result = Result(Counter(), cause, f"{type(error).__name__}: {str(error)[:2000]}")
    taken_bytes = _peak_bytes() - before_bytes
    if taken_bytes > spare_bytes and not result.cause:
        result = Result(Counter(), "memory", f"{taken_bytes >> 20:,} MiB taken")
    return result._replace(taken_bytes=taken_bytes)


def _peak_bytes() -> int:
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak[1]) << 10
