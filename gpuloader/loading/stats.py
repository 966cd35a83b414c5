"""`Stats`: what a loader has done, for those who want to know where the time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuloader.shards import CacheStats


@dataclass(frozen=True)
class Stats:
    """What a loader has done since it was made.

    Attributes:
        batches: batches delivered.
        samples: samples in them, padding included.
        elapsed_seconds: time spent in loops over the loader, the loop's body included.
        waiting_seconds: the part of it that the loop waited for the loader.
        decoding_seconds: the part of that in which decoded images were waited for.
        delivering_seconds: the part in which they were delivered: labels to the device, mixing.
        reading_seconds: time that the reading thread spent, beside the loop, on reading those batches' bytes.
        gating_seconds: time that it spent on the gate, draws, labels and fields.
        ready_batches: batches that are read and wait for being decoded.
        cache: what the cache of shards on stores did; None where all shards are local.
        bad: the bad images met so far that were replaced: sample id -> cause.
        last: the same of the last batch alone.

    Example:
        >>> from gpuloader import GPULoader
        >>> with GPULoader("shards/", 8, "cpu") as loader:
        ...     loader.stats().batches
        0
    """

    batches: int = 0
    samples: int = 0
    elapsed_seconds: float = 0.0
    waiting_seconds: float = 0.0
    decoding_seconds: float = 0.0
    delivering_seconds: float = 0.0
    reading_seconds: float = 0.0
    gating_seconds: float = 0.0
    ready_batches: int = 0
    cache: CacheStats | None = None
    bad: Mapping[int, str] = field(default_factory=dict)
    last: Stats | None = None

    def after(self, step: Stats) -> Stats:
        """With those of one batch more."""
        sums = {name: total + getattr(step, name) for name, total in vars(self).items() if name not in _NOT_SUMMED}
        return Stats(**sums, ready_batches=step.ready_batches, last=step)


_NOT_SUMMED = ("ready_batches", "cache", "bad", "last")
