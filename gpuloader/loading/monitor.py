"""Whether the training loop waits for data, and why."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from gpuloader.errors import ConfigError, LoaderError
from gpuloader.loading.stats import Stats

_log = logging.getLogger("gpuloader")
_UNKNOWN_CAUSE = (
    "Give a DataLoader more workers (num_workers), or move its images to shards and GPULoader; watch each loader of a "
    "MixedLoader with a WaitMonitor of its own."
)


class _Watched(Protocol):
    """A loader that counts its own waiting."""

    def __iter__(self) -> Iterator[Any]: ...

    def stats(self) -> Stats: ...


class WaitMonitor:
    """Says which share of the time a training loop waits for its loader: call `step` once in each step.

    A `GPULoader` counts its own waiting. Any other loader, such as torch's `DataLoader` or a `MixedLoader`, is counted
    where the loop goes over the monitor: `for batch in monitor`, which gives the loader's batches.

    Args:
        loader: that of the loop.
        every_steps: how many steps are looked at together; the first such steps of all, in which caches fill, count for
            the log but not for the warning. At least 1.
        log: takes each share, in [0, 1]: into a logger of yours. None logs it at level INFO.
        warn_above: the share above which a warning with the likely cause is logged, once.

    Attributes:
        loader: that of the loop.

    Raises:
        ConfigError: `loader` cannot be looped over, or `every_steps` is below 1.

    Example:
        >>> from gpuloader import GPULoader, WaitMonitor
        >>> loader = GPULoader("shards/", 8, "cpu", preset="cifar10_eval")
        >>> shares = []
        >>> monitor = WaitMonitor(loader, every_steps=2, log=shares.append)
        >>> for images, labels in monitor:
        ...     _ = monitor.step()
        >>> len(shares)
        2
    """

    def __init__(
        self,
        loader: Iterable[Any],
        every_steps: int = 50,
        log: Callable[[float], object] | None = None,
        warn_above: float = 0.1,
    ) -> None:
        counts = hasattr(loader, "stats")
        if not counts and not isinstance(loader, Iterable):
            kind = f"{type(loader).__module__}.{type(loader).__name__}"
            raise ConfigError(f"loader is a {kind}: allowed is a GPULoader, or any other loader that a loop goes over")
        if every_steps < 1:
            raise ConfigError(f"every_steps={every_steps!r}: allowed is at least 1")
        self.loader = loader
        self._watched: _Watched = loader if counts else _Counted(loader)  # type: ignore[assignment]  # as it counts
        self._every_steps = every_steps
        self._log = log
        self._warn_above = warn_above
        self._before = self._watched.stats()
        self._looked = 0
        self._warned = False

    def __iter__(self) -> Iterator[Any]:
        """The loader's batches, its waiting counted."""
        return iter(self._watched)

    def step(self) -> float | None:
        """The share of the last `every_steps` steps that was waited, where they are full; else None.

        Raises:
            LoaderError: there was no batch yet: the loop goes over a loader that does not count its own waiting.
        """
        now = self._watched.stats()
        if not now.batches:
            raise LoaderError(
                f"step() before any batch of the {type(self.loader).__name__}: call it in the loop, and where that is "
                f"no GPULoader, loop over the monitor: `for batch in monitor`"
            )
        if now.batches - self._before.batches < self._every_steps:
            return None
        share = waiting_share(self._before, now)
        if self._log is None:
            _log.info("waiting for data: %.1f%% of the time", 100 * share)
        else:
            self._log(share)
        if share > self._warn_above and self._looked and not self._warned:
            self._warned = True
            counted = isinstance(self._watched, _Counted)
            cause = _UNKNOWN_CAUSE if counted else likely_cause(self._before, now)
            _log.warning("waiting for data: %.0f%% of the time. %s", 100 * share, cause)
        self._before = now
        self._looked += 1
        return share


class _Counted:
    """A loader that does not count its own waiting."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._stats = Stats()

    def __iter__(self) -> Iterator[Any]:
        given = started = time.perf_counter()
        for batch in self._loader:
            now = time.perf_counter()
            step = Stats(batches=1, elapsed_seconds=now - given, waiting_seconds=now - started)
            self._stats, given = self._stats.after(step), now
            yield batch
            started = time.perf_counter()

    def stats(self) -> Stats:
        return self._stats


def waiting_share(before: Stats, now: Stats) -> float:
    """The share of the time between two stats of a loader that its loop waited, in [0, 1]."""
    elapsed = now.elapsed_seconds - before.elapsed_seconds
    return (now.waiting_seconds - before.waiting_seconds) / elapsed if elapsed > 0 else 0.0


def likely_cause(before: Stats, now: Stats) -> str:
    """What a loop that waits most likely waits for, and what to do about it."""
    spent = {
        name: getattr(now, name) - getattr(before, name)
        for name in ("elapsed_seconds", "waiting_seconds", "delivering_seconds", "reading_seconds", "gating_seconds")
    }
    thread = spent["reading_seconds"] + spent["gating_seconds"]
    if spent["delivering_seconds"] > 0.5 * spent["waiting_seconds"]:
        return (
            "Most of that goes into handing batches out, labels to the device and mixing: give the loader the GPU that "
            "trains (device_id), or use larger batches."
        )
    if thread > 0.8 * spent["elapsed_seconds"]:
        if spent["reading_seconds"] > spent["gating_seconds"]:
            return (
                'Reading the shards takes nearly all of the time: put them on a faster disk, or use shuffle="block", '
                "which reads neighbours together."
            )
        return "Labels or fields take nearly all of the time: ask for fewer `fields`, or take labels from .cls."
    return (
        "Decoding is behind: give it more cores (Decoder(num_threads=...)), let a GPU decode (device_id), or store "
        "smaller images; a larger Decoder(prefetch=...) only evens out uneven steps."
    )
