"""Assigns samples to shards in an order that is a pure function of the keys, the sizes and the `Layout`.

The order is the order of `gpuloader.plan` for epoch 0 of the seed. Whether a sample is held out for validation depends
on the seed and its key alone, so it stays held out when the collection grows. Samples then fill one shard after the
other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.values import is_integer
from gpuloader.errors import ConfigError
from gpuloader.plan import check_seed, make_order

DEFAULT_SAMPLES_PER_SHARD = 1000
LEAST_BYTES = 2**20
"""The least size of a shard in bytes, unless it is given with a unit."""
VALIDATION = "val"


def parse_bytes(size: int | str) -> int:
    """Returns the value of `shard_bytes` in bytes: it is a number, or text such as "256MiB"."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        size_bytes = int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        raise ConfigError(f"shard_bytes={size!r}: allowed are bytes such as 256MiB, 1GB or 100000000") from None
    if size_bytes < LEAST_BYTES and not (isinstance(size, str) and any(map(str.isalpha, size))):
        raise ConfigError(
            f"shard_bytes={size!r}: a number without a unit counts bytes, and a shard of so few holds "
            f"about one picture: write '{size}MiB', or '{size}B' if you mean bytes"
        )
    return size_bytes


@dataclass(frozen=True)
class Layout:
    """How samples are spread over shards; see `pack`."""

    samples_per_shard: int | None = None
    shard_bytes: int | None = None
    seed: int = 0
    shuffle: bool = True
    val_share: float = 0.0
    prefix: str = "train"

    def places(self, destination: Path) -> dict[str, Path]:
        """Returns the prefixes of its shards' file names, and the folder of each prefix."""
        if not self.val_share:
            return {self.prefix: destination}
        return {prefix: destination / prefix for prefix in (self.prefix, VALIDATION)}

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name, value in (("samples_per_shard", self.samples_per_shard), ("shard_bytes", self.shard_bytes)):
            if value is not None and not is_integer(value, 1):
                raise ConfigError(f"{name}={value!r}: allowed is an integer from 1 on")
        if self.samples_per_shard is not None and self.shard_bytes is not None:
            raise ConfigError("samples_per_shard and shard_bytes were both given: give one of them")
        if not (isinstance(self.val_share, float) or is_integer(self.val_share)) or not 0 <= self.val_share < 1:
            raise ConfigError(f"val_share={self.val_share!r}: allowed is a share from 0 up to, but not including, 1")
        if not self.prefix or set(self.prefix) & set("/\0.{}*?[]") or (self.val_share and self.prefix == VALIDATION):
            raise ConfigError(
                f"prefix={self.prefix!r}: allowed is the beginning of a file name without . / * ? or brackets, "
                f"but not {VALIDATION!r} together with val_share"
            )


@dataclass(frozen=True, eq=False)
class PlannedShard:
    """A shard's path below the destination, and the source numbers of its samples, (n,) int64 in the shard's order."""

    name: str
    samples: NDArray[np.int64]


def assign(keys: Sequence[str], sizes: Sequence[int | None], layout: Layout) -> list[PlannedShard]:
    """Assigns samples to shards: first come the shards for training, then those for validation.

    Args:
        keys: unique, one for each sample.
        sizes: bytes of each sample; only `shard_bytes` needs them.
    """
    if layout.shard_bytes is not None and None in sizes:
        raise ConfigError("shard_bytes: this source does not tell sizes in advance; give samples_per_shard instead")
    order = make_order("full" if layout.shuffle else "none", len(keys), layout.seed, 0)(np.arange(len(keys)))
    places, splits = layout.places(Path()), {layout.prefix: order}
    if layout.val_share:
        held_out = np.array([_draw(key, layout.seed) < layout.val_share for key in keys])[order]
        splits = {layout.prefix: order[~held_out], VALIDATION: order[held_out]}
    return [
        PlannedShard(str(places[prefix] / f"{prefix}-{number:06d}.tar"), samples)
        for prefix, of_split in splits.items()
        for number, samples in enumerate(_cut(of_split, sizes, layout))
    ]


def _cut(samples: NDArray[np.int64], sizes: Sequence[int | None], layout: Layout) -> list[NDArray[np.int64]]:
    """Splits into consecutive samples, as many as one shard may hold, and at least one."""
    if layout.shard_bytes is None:
        step = layout.samples_per_shard or DEFAULT_SAMPLES_PER_SHARD
        return [samples[start : start + step] for start in range(0, len(samples), step)]
    ends = np.cumsum([sizes[sample] for sample in samples.tolist()], dtype=np.int64)
    shards = []
    start = 0
    while start < len(samples):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + layout.shard_bytes, side="right")))
        shards.append(samples[start:end])
        start = end
    return shards


def _draw(key: str, seed: int) -> float:
    """Draws a number in [0, 1)."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8, salt=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little") / 2**64
