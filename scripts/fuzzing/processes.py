"""Processes that examine jobs, and may die of them: each is forked from one that has loaded all libraries."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzing.jobs import Job, Result
from fuzzing.material import IMAGES
from fuzzing.mutants import MOST_BYTES, mutant

if TYPE_CHECKING:  # only the workers load the library, and DALI with it
    from fuzzing.cuts import Cutter
    from fuzzing.images import Decoder
    from fuzzing.parsers import Parsers

MOST_SECONDS = 10  # of CPU time, for a batch and, as it is tried again then, for one mutant
_MOST_WAITING_SECONDS = 120  # for all workers together
_MOST_JOBS = 300  # of one process: the decoders' libraries lose some memory with images that fail in them
# An allocation that fails is no finding, as decoders take it for a broken image; one that does not is.
_LIMIT_OVER_SPARE = 8
_LEAST_LIMIT_BYTES = 1 << 30  # for pipelines


class _Worker:
    """A process that examines one job after another."""

    def __init__(self, spare_bytes: int) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["fuzzing.cuts", "fuzzing.images", "fuzzing.parsers"])
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, spare_bytes), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self.connection.recv()  # it is ready: what it takes to begin counts for no mutant
        except EOFError:
            raise RuntimeError("a worker could not begin, see above") from None
        self.job: Job | None = None
        self.jobs = 0
        self.hangs = False

    def begin(self, job: Job) -> None:
        self.job = job
        self.jobs += 1
        with suppress(BrokenPipeError):  # `result` finds the death
            self.connection.send(job)

    def result(self) -> Result:
        """What the process says of its job, or how it ended."""
        assert self.job is not None
        try:
            result: Result = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            suspects = tuple(self.job.numbers)
            if self.hangs or self.process.exitcode == -signal.SIGXCPU:
                seconds = f"{_MOST_WAITING_SECONDS} s" if self.hangs else f"{MOST_SECONDS} s of CPU time"
                return Result(Counter(), "hang", f"no end within {seconds}", suspects)
            return Result(Counter(), "crash", f"the process ended with exit code {self.process.exitcode}", suspects)
        return result

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self.connection.send(None)
        self.process.join()


def examined(jobs: Iterable[Job], workers: int, spare_bytes: int) -> Iterator[tuple[Job, Result]]:
    """The results of all jobs, as they come; a process that died is replaced."""
    left = iter(jobs)
    busy: dict[Connection, _Worker] = {}

    def begin(worker: _Worker | None = None) -> None:
        """Gives the next job to that worker, or to a new one."""
        job = next(left, None)
        if job is not None:
            worker = worker or _Worker(spare_bytes)
            worker.begin(job)
            busy[worker.connection] = worker
        elif worker is not None:
            worker.end()

    try:
        for _ in range(workers):
            begin()
        while busy:
            ready = wait(list(busy), timeout=_MOST_WAITING_SECONDS)
            if not ready:
                for worker in busy.values():
                    worker.hangs = True
                    worker.process.kill()  # each is then found dead, with the job that it hung on
                continue
            for connection in ready:
                worker = busy.pop(connection)  # type: ignore[call-overload]
                result = worker.result()
                assert worker.job is not None
                yield worker.job, result
                if result.cause in ("crash", "hang"):
                    begin()
                elif worker.jobs == _MOST_JOBS:
                    worker.end()
                    begin()
                else:
                    begin(worker)
    finally:
        for worker in busy.values():
            worker.process.kill()
            worker.process.join()


def _serve(connection: Connection, spare_bytes: int) -> None:
    from fuzzing.cuts import Cutter
    from fuzzing.images import Decoder
    from fuzzing.parsers import Parsers

    sys.stderr = os.fdopen(os.dup(2), "w")  # for Python's own end alone
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the decoders tell at length what is wrong with every image
    logging.disable()
    decoder = Decoder()
    with tempfile.TemporaryDirectory() as folder:
        decoder.warm_up()
        parsers, cutter = Parsers(Path(folder)), Cutter(MOST_BYTES)
        used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most_bytes = used_bytes + max(_LIMIT_OVER_SPARE * spare_bytes, _LEAST_LIMIT_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        connection.send("ready")
        while (job := connection.recv()) is not None:
            examiner = decoder if job.kind in IMAGES else cutter if job.kind == "seekable" else parsers
            connection.send(_examine(job, examiner, spare_bytes))


def _examine(job: Job, examiner: Cutter | Decoder | Parsers, spare_bytes: int) -> Result:
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before_bytes, start = _peak_bytes(), time.monotonic()
    # The kernel ends what takes longer, however many threads it runs on and whatever else the machine does.
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + MOST_SECONDS, -1))
    mutants = {number: mutant(job.kind, job.seed, number) for number in job.numbers}
    try:
        result = examiner.examine(job, mutants)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        result = Result(Counter(), "error", f"{type(error).__name__}: {str(error)[:2000]}", tuple(mutants))
    taken_bytes = _peak_bytes() - before_bytes
    if taken_bytes > spare_bytes and not result.cause:
        result = Result(Counter(), "memory", f"{taken_bytes >> 20:,} MiB taken", tuple(mutants))
    return result._replace(seconds=time.monotonic() - start, taken_bytes=taken_bytes)


def _peak_bytes() -> int:
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak[1]) << 10
