"""Runs tasks in this process, in processes of this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import Any, TypeVar

from gpuloader.base.cores import available_cores
from gpuloader.base.signals import deferred_signals
from gpuloader.errors import ConfigError, PackError

Task = TypeVar("Task")
Result = TypeVar("Result")


def run(
    function: Callable[[Task], Result], tasks: Sequence[Task], workers: int | None, ray: str | None
) -> Iterator[Result]:
    """Yields the function's results for the tasks, in the order in which they finish.

    Args:
        workers: the number of processes; 1 uses this one, None as many as there are cores.
        ray: the address of a Ray cluster to use instead.
    """
    if ray is not None:
        return _on_ray(function, tasks, ray)
    processes = min(len(tasks), workers or available_cores())
    return map(function, tasks) if processes <= 1 else _in_processes(function, tasks, processes)


def _in_processes(function: Callable[[Task], Result], tasks: Sequence[Task], processes: int) -> Iterator[Result]:
    context = multiprocessing.get_context("spawn")  # fork is not safe beside threads, which torch and others start
    # Nothing is sent through this pipe. Its other end closes when this process gives up or ends, in whatever way; the
    # workers wait for that and end, too, instead of writing shards that nobody waits for.
    lifeline, held = context.Pipe(duplex=False)
    with (
        lifeline,
        held,
        ProcessPoolExecutor(processes, context, initializer=_hang_on, initargs=(lifeline,)) as executor,
    ):
        try:
            # If it were interrupted while it starts processes, the executor would leave half-started ones.
            with deferred_signals(), _keep_interrupts_from_children():
                futures = [executor.submit(function, task) for task in tasks]
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            raise PackError(
                "a worker process died: it was killed, perhaps for lack of memory (dmesg tells; use fewer workers), "
                'or the calling script lacks `if __name__ == "__main__":`. Run the same again; finished shards are kept'
            ) from None
        except BaseException:
            held.close()
            raise


def _hang_on(lifeline: Connection) -> None:
    """Ends a worker when nobody holds the other end, because the main process has ended or given up."""
    Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    wait([lifeline])  # nothing is ever sent
    os._exit(1)


@contextmanager
def _keep_interrupts_from_children() -> Iterator[None]:
    """Keeps Ctrl-C from the processes that are started here: they inherit that it is blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _on_ray(function: Callable[[Task], Result], tasks: Sequence[Task], address: str) -> Iterator[Result]:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"ray={address!r} needs the package ray: pip install 'gpuloader[ray]' ({error})") from None
    begun_here = not ray.is_initialized()
    if begun_here:
        try:
            _check_reachable(address)
            ray.init(address, log_to_driver=False, logging_level="error")
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(f"ray={address!r}: {error}; allowed are auto, local and host:port") from error
    try:
        remote: Any = ray.remote(function)
        # Only tasks in flight, so that the records of the others need not be copied yet.
        most = 2 * max(1, int(ray.cluster_resources().get("CPU", 0)))
        left = iter(tasks)
        running = [remote.remote(task) for task in islice(left, most)]
        while running:
            [done], running = ray.wait(running)
            yield ray.get(done)
            running += [remote.remote(task) for task in islice(left, 1)]
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise PackError(f"Ray failed; run the same again, finished shards are kept: {error}") from error
    finally:
        if begun_here:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Checks the address, because Ray itself takes minutes to say that nobody is there."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
