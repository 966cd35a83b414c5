"""Position in the epoch -> sample id: a bijection of [0, n), computed for any position alone, in O(1) memory.

    none    position p holds sample p
    full    a Feistel network over the smallest power of two that holds n, walked until it lands below n
    block   runs of BLOCK_SAMPLES neighbours stay near each other: the blocks are permuted, then the samples within
            each window of WINDOW_BLOCKS blocks; each epoch draws where the blocks begin
    shards  the shards are permuted, then the samples within each window of WINDOW_SHARDS shards: O(shards) memory

`block` is for disks that are slow at random access: a window's reads fall into WINDOW_BLOCKS short runs of the shards.
`shards` is for data on stores that is larger than the cache: each shard is needed only during one window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.plan.draws import Stream, words

Shuffle: TypeAlias = Literal["none", "full", "block", "shards"]
Order: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.int64]]

BLOCK_SAMPLES = 256
WINDOW_BLOCKS = 16
WINDOW_SHARDS = 16
_ROUNDS = 8
_32, _33 = np.uint64(32), np.uint64(33)  # made once, because making them takes as long as using them
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


def make_order(shuffle: Shuffle, samples: int | NDArray[np.int64], seed: int, epoch: int) -> Order:
    """Makes the order of one epoch: a function of positions in [0, samples), int64 (k,), that returns as many ids.

    Args:
        samples: how many; for "shards", (s,) how many each shard has.

    Raises:
        ConfigError: an unknown `shuffle`, or "shards" without the shards' sizes.
    """
    if isinstance(samples, np.ndarray):
        return ShardShuffle(samples, words(seed, epoch, Stream.ORDER, 2 * _ROUNDS))
    if shuffle == "none":
        return lambda positions: positions
    if shuffle == "full":
        return Permutation(samples, words(seed, epoch, Stream.ORDER, _ROUNDS))
    if shuffle == "block":
        return BlockShuffle(samples, words(seed, epoch, Stream.ORDER, 2 * _ROUNDS + 1))
    if shuffle == "shards":
        raise ConfigError('shuffle="shards" needs all samples of the shards, each once: use "full" or "block" here')
    allowed = ", ".join(map(repr, get_args(Shuffle)))
    raise ConfigError(f"shuffle={shuffle!r}: allowed are {allowed}, True, False and a function of the epoch")


def seed_of_part(seed: int, number: int) -> int:
    """Returns the seed of the order of a part of the data; `seed` itself is that of part 0."""
    return (seed + number * 0x9E3779B97F4A7C15) % 2**64


class Permutation:
    """A pseudo-random bijection of [0, size): an alternating Feistel network with cycle walking.

    The domain is the smallest power of two that holds `size`, so a position takes fewer than two turns on average.
    """

    def __init__(self, size: int, keys: Sequence[int]) -> None:
        bits = max(2, (size - 1).bit_length())
        self._size = size
        self._keys = [np.uint64(key) << _32 for key in keys]
        self._low_bits = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << bits // 2) - 1)
        self._high_mask = np.uint64((1 << bits - bits // 2) - 1)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns ids (k,) int64 at positions (k,) int64 in [0, size)."""
        # The network is a bijection of the domain, so following it from one id outside of `size` to the next ends at an
        # id inside, a different one for each position.
        ids = self._turn(positions.astype(np.uint64))
        while (outside := ids >= self._size).any():
            ids[outside] = self._turn(ids[outside])
        return ids.astype(np.int64)

    def _turn(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low, high = values & self._low_mask, values >> self._low_bits
        for turn, key in enumerate(self._keys):
            if turn % 2:
                low = low ^ (_mix(high ^ key) & self._low_mask)
            else:
                high = high ^ (_mix(low ^ key) & self._high_mask)
        return (high << self._low_bits) | low


class BlockShuffle:
    """Blocks permuted, then the samples within each window of blocks; see the module's text."""

    def __init__(self, size: int, keys: Sequence[int]) -> None:
        self._size = size
        self._blocks = size // BLOCK_SAMPLES  # the samples left over come last; which ones they are is drawn
        self._of_blocks = Permutation(max(self._blocks, 1), keys[:_ROUNDS])
        self._within_keys = keys[_ROUNDS : 2 * _ROUNDS]
        self._rotation = keys[-1] * size >> 32

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns ids (k,) int64 at positions (k,) int64 in [0, size)."""
        slots = np.empty_like(positions)
        window_samples = BLOCK_SAMPLES * WINDOW_BLOCKS
        windows = positions // window_samples
        for window in np.unique(windows):
            start = int(window) * window_samples
            within = _within(int(window), min(window_samples, self._size - start), self._within_keys)
            here = windows == window
            slots[here] = start + within(positions[here] - start)
        # The order's slots are permuted within windows by now. Their blocks are permuted over all of the data; the rest
        # behind the last full block stays. The rotation makes blocks begin at other samples in each epoch.
        block, offset = np.divmod(slots, BLOCK_SAMPLES)
        full = block < self._blocks
        block[full] = self._of_blocks(block[full])
        return np.asarray((block * BLOCK_SAMPLES + offset + self._rotation) % self._size, dtype=np.int64)


class ShardShuffle:
    """Shards permuted, then the samples within each window of shards; see the module's text."""

    def __init__(self, sizes: NDArray[np.int64], keys: Sequence[int]) -> None:
        shards = Permutation(len(sizes), keys[:_ROUNDS])(np.arange(len(sizes)))
        self._ends = np.cumsum(sizes[shards])
        # A slot and its sample's id differ by the same number in all of a shard.
        self._shifts = (np.cumsum(sizes) - sizes)[shards] - (self._ends - sizes[shards])
        last_ones = np.minimum(np.arange(WINDOW_SHARDS, len(sizes) + WINDOW_SHARDS, WINDOW_SHARDS), len(sizes)) - 1
        self._window_ends = self._ends[last_ones]
        self._within_keys = keys[_ROUNDS:]

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns ids (k,) int64 at positions (k,) int64 below the sum of the sizes."""
        slots = np.empty_like(positions)
        windows = np.searchsorted(self._window_ends, positions, side="right")
        for window in np.unique(windows):
            start = int(self._window_ends[window - 1]) if window else 0
            within = _within(int(window), int(self._window_ends[window]) - start, self._within_keys)
            here = windows == window
            slots[here] = start + within(positions[here] - start)
        return np.asarray(slots + self._shifts[np.searchsorted(self._ends, slots, side="right")], dtype=np.int64)


def _within(window: int, size: int, keys: Sequence[int]) -> Permutation:
    """Makes the permutation of a window; each window has its own."""
    return Permutation(size, [key ^ (window * 0x9E3779B9 & 0xFFFFFFFF) for key in keys])


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Applies the 64-bit finaliser of MurmurHash3 (Appleby): every input bit changes every output bit."""
    values = (values ^ values >> _33) * _FIRST
    values = (values ^ values >> _33) * _SECOND
    return values ^ values >> _33
