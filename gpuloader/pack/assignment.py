"""Assigns samples to shards in an order that is a pure function of the keys, the sizes and the `Options`.

The order is the order of `gpuloader.plan` for epoch 0 of the seed. Whether a sample is held out for validation depends
on the seed and its key alone, so it stays held out when the collection grows. Samples then fill one shard after the
other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.pack.options import VALIDATION, Options
from gpuloader.plan import make_order

DEFAULT_SAMPLES_PER_SHARD = 1000


def assign(keys: Sequence[str], sizes: Sequence[int | None], options: Options) -> dict[str, NDArray[np.int64]]:
    """Assigns samples to shards: first come the shards for training, then those for validation.

    Returns each shard's path below the destination, and the source numbers of its samples, (n,) in the shard's order.

    Args:
        keys: unique, one for each sample.
        sizes: bytes of each sample; only `shard_bytes` needs them.
    """
    if options.shard_bytes is not None and None in sizes:
        raise ConfigError("shard_bytes: this source does not tell sizes in advance; give samples_per_shard instead")
    order = make_order("full" if options.shuffle else "none", len(keys), options.seed, 0)(np.arange(len(keys)))
    splits = {options.prefix: order}
    if options.val_share:
        held_out = np.array([_draw(key, options.seed) < options.val_share for key in keys])[order]
        splits = {f"{options.prefix}/{options.prefix}": order[~held_out], f"{VALIDATION}/{VALIDATION}": order[held_out]}
    return {
        f"{beginning}-{number:06d}.tar": samples
        for beginning, of_split in splits.items()
        for number, samples in enumerate(_cut(of_split, sizes, options))
    }


def _cut(samples: NDArray[np.int64], sizes: Sequence[int | None], options: Options) -> list[NDArray[np.int64]]:
    """Splits into consecutive samples, as many as one shard may hold, and at least one."""
    if options.shard_bytes is None:
        step = options.samples_per_shard or DEFAULT_SAMPLES_PER_SHARD
        return [samples[start : start + step] for start in range(0, len(samples), step)]
    ends = np.cumsum([sizes[sample] for sample in samples.tolist()], dtype=np.int64)
    shards = []
    start = 0
    while start < len(samples):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + options.shard_bytes, side="right")))
        shards.append(samples[start:end])
        start = end
    return shards


def _draw(key: str, seed: int) -> float:
    """Draws a number in [0, 1)."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8, salt=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little") / 2**64
