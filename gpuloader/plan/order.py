"""Maps positions in an epoch to sample ids: a bijection of [0, n), computed for any position alone, in O(1) memory.

    none    position p holds sample p
    full    a Feistel network over the smallest power of two that holds n, walked until it lands below n
    block   blocks of BLOCK_SAMPLES neighbours are permuted, then the samples within each window of WINDOW_BLOCKS
            blocks; each epoch draws where the blocks begin
    shards  by groups of shards, see `gpuloader.plan.grouped_sampler`

`block` is for disks with slow random access: a window reads WINDOW_BLOCKS short runs of the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.plan.draws import Stream, words

Shuffle: TypeAlias = Literal["none", "full", "block", "shards"]
IdsAt: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.int64]]

BLOCK_SAMPLES = 256
WINDOW_BLOCKS = 16
ROUNDS = 8
_32, _33 = np.uint64(32), np.uint64(33)  # made once, because making them takes as long as using them
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


def make_order(shuffle: Shuffle, samples: int, seed: int, epoch: int) -> IdsAt:
    """Makes the order of one epoch: a function from positions in [0, samples), int64 (k,), to ids, int64 (k,).

    Raises:
        ConfigError: `shuffle` is unknown, or is "shards", which needs the shards.
    """
    if shuffle == "none":
        return lambda positions: positions
    if shuffle == "full":
        return Permutation(samples, words(seed, epoch, Stream.ORDER, ROUNDS))
    if shuffle == "block":
        return BlockShuffle(samples, words(seed, epoch, Stream.ORDER, 2 * ROUNDS + 1))
    if shuffle == "shards":
        raise ConfigError('shuffle="shards" needs all samples of the shards, each once: use "full" or "block" here')
    allowed = ", ".join(map(repr, get_args(Shuffle)))
    raise ConfigError(f"shuffle={shuffle!r}: allowed are {allowed}, True, False and a function of the epoch")


def seed_of_part(seed: int, number: int) -> int:
    """Returns the seed for the order of a part of the data; part 0 has `seed` itself."""
    return (seed + number * 0x9E3779B97F4A7C15) % 2**64


class Permutation:
    """A pseudo-random bijection of [0, size), or several bijections: a Feistel network with cycle walking.

    The domain is the smallest power of two that holds `size`, so a position takes fewer than two turns on average.

    Args:
        sizes: the size; or (w,) int64 for several bijections.
        keys: of the rounds; several bijections derive their own keys.
    """

    def __init__(self, sizes: int | NDArray[np.int64], keys: Sequence[int]) -> None:
        bits: Any
        of_each: Any = np.array(keys, np.uint64)
        if isinstance(sizes, np.ndarray):
            bits = np.maximum(np.frexp(sizes - 1.0)[1], 2)  # a float's exponent is the bit length of its integer
            salts = np.arange(len(sizes), dtype=np.uint64) * np.uint64(0x9E3779B9) & np.uint64(0xFFFFFFFF)
            of_each = of_each[:, None] ^ salts
        else:
            bits = np.int64(max(2, (sizes - 1).bit_length()))
        low = bits // 2
        low_mask, high_mask = ((np.uint64(1) << each.astype(np.uint64)) - np.uint64(1) for each in (low, bits - low))
        self._network = _Network(np.uint64(sizes), low.astype(np.uint64), low_mask, high_mask, of_each << _32)

    def __call__(self, positions: NDArray[np.int64], which: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Returns ids (k,) int64 at positions (k,) int64 in [0, size); `which` (k,) chooses the bijection of each."""
        network = self._network if which is None else self._network.at(which)
        # The network is a bijection of the domain. So walking through ids outside `size` ends at an id inside, a
        # different one for each position.
        ids = network.turn(positions.astype(np.uint64))
        while (outside := ids >= network.sizes).any():
            ids[outside] = (network if which is None else network.at(outside)).turn(ids[outside])
        return ids.astype(np.int64)


class _Network(NamedTuple):
    """The constants of one or several bijections; `keys` has a row for each round."""

    sizes: Any
    low_bits: Any
    low_masks: Any
    high_masks: Any
    keys: Any

    def at(self, which: NDArray[Any]) -> _Network:
        return _Network(*(numbers[..., which] for numbers in self))

    def turn(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low, high = values & self.low_masks, values >> self.low_bits
        for turn, key in enumerate(self.keys):
            if turn % 2:
                low = low ^ (_mix(high ^ key) & self.low_masks)
            else:
                high = high ^ (_mix(low ^ key) & self.high_masks)
        return (high << self.low_bits) | low


class BlockShuffle:
    """A permutation of blocks, then of the samples within each window of blocks; see the module's docstring."""

    def __init__(self, size: int, keys: Sequence[int]) -> None:
        self._size = size
        self._blocks = size // BLOCK_SAMPLES  # the remaining samples come last; they are drawn
        self._of_blocks = Permutation(max(self._blocks, 1), keys[:ROUNDS])
        self._within_keys = keys[ROUNDS : 2 * ROUNDS]
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
        # Slots are already permuted within windows. Now the blocks are permuted over all of the data, without the rest
        # after the last full block. The rotation makes blocks begin at other samples in each epoch.
        block, offset = np.divmod(slots, BLOCK_SAMPLES)
        full = block < self._blocks
        block[full] = self._of_blocks(block[full])
        return np.asarray((block * BLOCK_SAMPLES + offset + self._rotation) % self._size, dtype=np.int64)


def _within(window: int, size: int, keys: Sequence[int]) -> Permutation:
    """Makes the permutation of a window; each window has its own."""
    return Permutation(size, [key ^ (window * 0x9E3779B9 & 0xFFFFFFFF) for key in keys])


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Applies the 64-bit finaliser of MurmurHash3 (Appleby): every input bit changes every output bit."""
    values = (values ^ values >> _33) * _FIRST
    values = (values ^ values >> _33) * _SECOND
    return values ^ values >> _33
