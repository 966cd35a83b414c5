"""`WaitMonitor`: measures whether the training loop waits for data, and why."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias

from gpuloader.errors import ConfigError, LoaderError
from gpuloader.loading.loader import GPULoader
from gpuloader.loading.stats import Stats

_log = logging.getLogger("gpuloader")
_UNKNOWN_CAUSE = (
    "Give a DataLoader more workers (num_workers), or move its images to shards and GPULoader; for a MixedLoader, use "
    "a separate WaitMonitor for each of its loaders."
)
_STRONGER = "more cores (Decoder(num_threads=...)) or a GPU (device_id)"
_SMALLER = "smaller images (`gpuloader pack --max-size`)"

Bottleneck: TypeAlias = Literal["read", "gate", "decode", "resize", "pixels", "own code", "delivery"]
MOST_OF_THE_TIME = 0.5
_LIMITS: dict[Bottleneck, tuple[str, str]] = {  # what limits, and what to change
    "read": (
        "Reading the images is",
        f'put the shards on a faster disk, use shuffle="block", which reads neighbours together, or store {_SMALLER}. '
        f"Of many small files, make a few large shards (`gpuloader pack`)",
    ),
    "gate": (
        "The work for each image before decoding (header, random parameters, labels, fields) is",
        "use labels from .cls and fewer `fields`, or spread the work over more processes",
    ),
    "decode": (
        "Decoding is",
        f"give it {_STRONGER}, or store {_SMALLER}, decoded ones (`gpuloader pack --decoded`), or seekable ones, of "
        f"which only the part around a crop is decoded (`gpuloader pack --seekable`)",
    ),
    "resize": ("Resizing and normalising are", f"give them {_STRONGER}, or store {_SMALLER}"),
    "pixels": ("The recipe's operations on pixels are", f"give them {_STRONGER}, or use fewer of them"),
    "own code": (
        "Own code is",
        "give it more processes (`Decoder(processes=...)`), make it faster, or put it behind a crop or Resize",
    ),
    "delivery": (
        "Delivering batches (labels to the device, mixing) is",
        "use larger batches, or the GPU that trains (device_id)",
    ),
}


class WaitMonitor:
    """A monitor for the share of time that a training loop waits for its loader. Call `step` once in each step.

    A `GPULoader` measures its own waiting. For any other loader, such as torch's `DataLoader` or a `MixedLoader`, loop
    over the monitor, which yields the loader's batches: `for batch in monitor`.

    Args:
        loader: the loader of the loop.
        every_steps: the number of steps of a measurement, at least 1. The first measurement is logged but never warns,
            because caches fill.
        log: a function that receives each share, in [0, 1], for your own logger. None logs it at level INFO.
        warn_above: the first share above this logs a warning with the likely cause.

    Attributes:
        loader: the loader of the loop.

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
            raise ConfigError(f"loader is a {kind}: allowed is a GPULoader, or any other loader that you can loop over")
        if every_steps < 1:
            raise ConfigError(f"every_steps={every_steps!r}: allowed is at least 1")
        self.loader = loader
        self._watched: GPULoader[Any] | _TimedLoader = loader if counts else _TimedLoader(loader)  # type: ignore[assignment]  # has `stats`
        self._every_steps = every_steps
        self._log = log
        self._warn_above = warn_above
        self._before = self._watched.stats()
        self._looked = 0
        self._warned = False

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the loader's batches and measures the waiting."""
        return iter(self._watched)

    def step(self) -> float | None:
        """Returns the share of the last `every_steps` steps spent waiting; None until there are that many steps.

        Raises:
            LoaderError: there was no batch yet: for a loader that does not measure its waiting, loop over the monitor.
        """
        now = self._watched.stats()
        if not now.batches:
            raise LoaderError(
                f"step() before any batch of the {type(self.loader).__name__}: call it in the loop; if the loader is "
                f"not a GPULoader, loop over the monitor: `for batch in monitor`"
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
            counted = isinstance(self._watched, _TimedLoader)
            cause = _UNKNOWN_CAUSE if counted else likely_cause(self._before, now)
            _log.warning("waiting for data: %.0f%% of the time. %s", 100 * share, cause)
        self._before = now
        self._looked += 1
        return share


class _TimedLoader:
    """A loader whose waiting is measured from outside."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._stats = Stats()

    def __iter__(self) -> Iterator[Any]:
        delivered_at = started = time.perf_counter()
        for batch in self._loader:
            now = time.perf_counter()
            step = Stats(batches=1, elapsed_seconds=now - delivered_at, waiting_seconds=now - started)
            self._stats, delivered_at = self._stats.after(step), now
            yield batch
            started = time.perf_counter()

    def stats(self) -> Stats:
        return self._stats


def waiting_share(before: Stats, now: Stats) -> float:
    """Returns the share of the time between two stats of a loader that its loop spent waiting, in [0, 1]."""
    elapsed = now.elapsed_seconds - before.elapsed_seconds
    return (now.waiting_seconds - before.waiting_seconds) / elapsed if elapsed > 0 else 0.0


def likely_cause(before: Stats, now: Stats) -> str:
    """Returns a sentence on what a waiting loop most likely waits for, and what to change."""
    spent = {name: getattr(now, name) - getattr(before, name) for name in vars(now) if name.endswith("_seconds")}
    thread = spent["reading_seconds"] + spent["gating_seconds"]
    if spent["delivering_seconds"] > MOST_OF_THE_TIME * spent["waiting_seconds"]:
        return describe_bottleneck("delivery")
    if spent["own_code_seconds"] > MOST_OF_THE_TIME * spent["waiting_seconds"]:
        return describe_bottleneck("own code")
    if thread > 0.8 * spent["elapsed_seconds"]:
        return describe_bottleneck("read" if spent["reading_seconds"] > spent["gating_seconds"] else "gate")
    return describe_bottleneck("decode")


def describe_bottleneck(bottleneck: Bottleneck, share: str = "") -> str:
    """Returns a sentence on a bottleneck and what to change; `share` is its share of the time in words."""
    what, advice = _LIMITS[bottleneck]
    return f"{what} the bottleneck{f' ({share})' if share else ''}: {advice}."
