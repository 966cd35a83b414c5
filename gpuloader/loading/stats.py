"""`Stats`: what a loader has done, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuloader.shards import CacheStats

_NOT_SUMMED = ("ready_batches", "cache", "bad", "last")


@dataclass(frozen=True, repr=False)
class Stats:
    """What a loader has done since it was created.

    Attributes:
        batches: batches delivered.
        samples: samples in them, padding included if it is delivered.
        elapsed_seconds: time spent in loops over the loader, the loop's body included.
        waiting_seconds: the part of it that the loop waited for the loader.
        decoding_seconds: the part of the waiting that was for decoded images.
        delivering_seconds: the part of the waiting that was for delivery: labels to the device, mixing.
        reading_seconds: the reading thread's time for reading the bytes of these batches; it works beside the loop.
        gating_seconds: the reading thread's time for the gate, draws, labels and fields.
        ready_batches: batches that are read and wait to be decoded.
        cache: what the cache of shards on stores did; None if all shards are local.
        bad: the bad images that were replaced or left out so far: sample id -> cause.
        last: the same for the last batch only.

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

    def __repr__(self) -> str:
        cache = "" if self.cache is None else f"; {self.cache}"
        return (
            f"Stats(batches {self.batches}, samples {self.samples}, bad images {len(self.bad)}, ready batches "
            f"{self.ready_batches}; waited {self.waiting_seconds:.2f} of {self.elapsed_seconds:.2f} s: decoding "
            f"{self.decoding_seconds:.2f}, delivering {self.delivering_seconds:.2f}; beside the loop: reading "
            f"{self.reading_seconds:.2f}, gating {self.gating_seconds:.2f}{cache})"
        )

    def scalars(self) -> dict[str, float]:
        """Returns its numbers by name, such as "gpuloader/waiting_seconds", for TensorBoard and the like.

        `bad` is counted as `gpuloader/bad_images`; `cache` gives `gpuloader/cache_hits` and so on, if there is one.
        """
        numbers = {name: value for name, value in vars(self).items() if name not in ("cache", "bad", "last")}
        cache = {} if self.cache is None else vars(self.cache)
        numbers |= {"bad_images": len(self.bad), **{f"cache_{name}": value for name, value in cache.items()}}
        return {f"gpuloader/{name}": float(value) for name, value in numbers.items()}

    def after(self, step: Stats) -> Stats:
        """Adds the stats of one more batch."""
        sums = {name: total + getattr(step, name) for name, total in vars(self).items() if name not in _NOT_SUMMED}
        return Stats(**sums, ready_batches=step.ready_batches, last=step)
