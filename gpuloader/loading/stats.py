"""`Stats`: the number of batches and samples of a loader, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuloader.shards import CacheStats

_NOT_SUMMED = ("ready_batches", "cache", "bad", "last")


@dataclass(frozen=True, repr=False)
class Stats:
    """The statistics of a loader since it was created.

    Attributes:
        batches: the number of delivered batches.
        samples: the number of delivered samples, including delivered padding.
        digest: a number in [-2**63, 2**63) to compare runs. It is the sum, as an int64 that wraps, of a hash of each
            delivered sample: of its epoch, place in the epoch, id, and the height and width of its first view. Padding
            and dropped samples do not count; a replacement counts with its own id. The digests of all ranks add up, and
            so do those of the parts of a resumed run.
        elapsed_seconds: the time of the loops over the loader, including the body of the loop.
        waiting_seconds: the part of `elapsed_seconds` that the loop waited for the loader.
        decoding_seconds: the part of `waiting_seconds` for decoded images.
        own_code_seconds: the part of `decoding_seconds` for own code: its processes or threads were behind.
        delivering_seconds: the part of `waiting_seconds` for delivery: copying labels to the device, mixing.
        reading_seconds: the time of the reading thread, parallel to the loop, for reading these batches.
        gating_seconds: the time of the reading thread for validation, random parameters, labels and fields.
        ready_batches: the number of batches that are read but not decoded yet.
        cache: the statistics of the cache for shards on stores; None if all shards are local.
        bad: the bad images that were replaced or dropped so far: sample id -> cause.
        last: the statistics of the last batch alone.

    Example:
        >>> from gpuloader import GPULoader
        >>> with GPULoader("shards/", 8, "cpu") as loader:
        ...     loader.stats().batches
        0
    """

    batches: int = 0
    samples: int = 0
    digest: int = 0
    elapsed_seconds: float = 0.0
    waiting_seconds: float = 0.0
    decoding_seconds: float = 0.0
    own_code_seconds: float = 0.0
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
        """Returns the numbers by name, such as "gpuloader/waiting_seconds", for loggers such as TensorBoard.

        `digest` is left out, because a float cannot hold it.
        `gpuloader/bad_images` is the number of entries in `bad`. A `cache` adds `gpuloader/cache_hits` and so on.
        """
        numbers = {name: value for name, value in vars(self).items() if name not in ("digest", "cache", "bad", "last")}
        cache = {} if self.cache is None else vars(self.cache)
        numbers |= {"bad_images": len(self.bad), **{f"cache_{name}": value for name, value in cache.items()}}
        return {f"gpuloader/{name}": float(value) for name, value in numbers.items()}

    def after(self, step: Stats) -> Stats:
        """Returns the statistics after one more batch."""
        sums = {name: total + getattr(step, name) for name, total in vars(self).items() if name not in _NOT_SUMMED}
        sums["digest"] = (sums["digest"] + 2**63) % 2**64 - 2**63
        return Stats(**sums, ready_batches=step.ready_batches, last=step)
