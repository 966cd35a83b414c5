"""Whether the training loop waits for data, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gpuloader.errors import ConfigError
from gpuloader.loading.loader import GPULoader
from gpuloader.loading.stats import Stats

_log = logging.getLogger("gpuloader")


class WaitMonitor:
    """Says which share of the time a training loop waits for its loader: call `step` once in each step.

    Args:
        loader: that of the loop.
        every_steps: how many steps are looked at together; the first such steps of all, in which caches fill, count for
            the log but not for the warning. At least 1.
        log: takes each share, in [0, 1]: into a logger of yours. None logs it at level INFO.
        warn_above: the share above which a warning with the likely cause is logged, once.

    Attributes:
        loader: that of the loop.

    Raises:
        ConfigError: `loader` is no GPULoader, or `every_steps` is below 1.

    Example:
        >>> from gpuloader import GPULoader, WaitMonitor
        >>> loader = GPULoader("shards/", 8, "cpu", preset="cifar10_eval")
        >>> shares = []
        >>> monitor = WaitMonitor(loader, every_steps=2, log=shares.append)
        >>> for images, labels in loader:
        ...     _ = monitor.step()
        >>> len(shares)
        2
    """

    def __init__(
        self,
        loader: GPULoader,
        every_steps: int = 50,
        log: Callable[[float], object] | None = None,
        warn_above: float = 0.1,
    ) -> None:
        if not hasattr(loader, "stats"):
            kind = f"{type(loader).__module__}.{type(loader).__name__}"
            raise ConfigError(f"loader is a {kind}: allowed is the GPULoader of the loop, which counts its own waiting")
        if every_steps < 1:
            raise ConfigError(f"every_steps={every_steps!r}: allowed is at least 1")
        self.loader = loader
        self._every_steps = every_steps
        self._log = log
        self._warn_above = warn_above
        self._before = loader.stats()
        self._looked = 0
        self._warned = False

    def step(self) -> float | None:
        """The share of the last `every_steps` steps that was waited, where they are full; else None."""
        now = self.loader.stats()
        if now.batches - self._before.batches < self._every_steps:
            return None
        share = waiting_share(self._before, now)
        if self._log is None:
            _log.info("waiting for data: %.1f%% of the time", 100 * share)
        else:
            self._log(share)
        if share > self._warn_above and self._looked and not self._warned:
            self._warned = True
            _log.warning("waiting for data: %.0f%% of the time. %s", 100 * share, likely_cause(self._before, now))
        self._before = now
        self._looked += 1
        return share


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
