"""Random numbers as a function of (seed, pass, sample id), without the state of a generator.

They come from Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). Philox's input is
the address of a number, so any number of any sample can be computed alone and in any order:

    key     = seed, its low and high 32 bits
    counter = (block within the stream and the stream itself, id's low 32 bits, id's high 32 bits, pass)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.values import is_integer
from gpuloader.errors import ConfigError

_MASK = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_BLOCKS_PER_STREAM = 1 << 16
_STREAMS = 64
OCCURRENCES, VIEWS = 16, 64
EPOCHS = 2**32  # the most that the counter can distinguish


class Stream(IntEnum):
    """The purpose of random numbers. These values decide what a seed means, so never reuse or change them."""

    ORDER = 0
    CROP = 1
    FLIP = 2
    JITTER = 3
    REPLACEMENT = 4
    VERTICAL_FLIP = 5
    ROTATION = 6
    AFFINE = 7
    PERSPECTIVE = 8
    GRAYSCALE = 9
    BLUR = 10
    SOLARIZE = 11
    POSTERIZE = 12
    EQUALIZE = 13
    AUTOCONTRAST = 14
    SHARPNESS = 15
    INVERT = 16
    ERASING = 17
    APPLY = 18
    CHOICE = 19
    AUTO_AUGMENT = 20
    RAND_AUGMENT = 21
    TRIVIAL_AUGMENT = 22
    AUG_MIX = 23
    MIX = 24
    SAMPLING = 25
    FIELD = 26
    SCALE = 27
    ZOOM_OUT = 28
    FILTER = 29
    GROUPS = 30
    OWN = 31
    NONE = 63


@dataclass(frozen=True)
class Draw:
    """The random numbers of one transform for some samples: `draw(count)` is (n, count) in [0, 1).

    Attributes:
        draws: the samples, n of them.
        stream: the purpose of the numbers.
        blocks: the blocks of the stream that the transform may use, each with 4 numbers.
    """

    draws: Draws
    stream: int
    blocks: range = range(_BLOCKS_PER_STREAM)

    @property
    def samples(self) -> int:
        return len(self.draws.ids)

    def __call__(self, count: int) -> NDArray[np.float64]:
        """Returns (n, count) multiples of 2**-32; the first c columns do not depend on `count`."""
        if count > 4 * len(self.blocks):
            raise ConfigError(
                f"{count} random numbers for a sample, but {4 * len(self.blocks)} are left: nest fewer transforms"
            )
        return self.draws.uniform(self.stream, count, self.blocks.start)

    def keys(self) -> NDArray[np.uint64]:
        """Returns (n, 2) keys, each for a generator of its own."""
        words = self.draws.words(self.stream, 4, self.blocks.start)
        return words[:, :2] << _32 | words[:, 2:]

    def take(self, rows: NDArray[np.int64]) -> Draw:
        return replace(self, draws=self.draws.take(rows))

    def of(self, stream: Stream) -> Draw:
        """Returns another stream for the same transform, which does not change its other numbers."""
        return replace(self, stream=self.stream - self.stream % _STREAMS + stream)

    def split(self, parts: int) -> list[Draw]:
        """Returns separate random numbers for each nested transform."""
        size = len(self.blocks) // parts
        return [Draw(self.draws, self.stream, self.blocks[part * size : (part + 1) * size]) for part in range(parts)]


@dataclass(frozen=True)
class Draws:
    """The random numbers of some samples in one epoch, or in passes over the data.

    Attributes:
        seed: in [0, 2**64).
        epoch: in [0, 2**32).
        ids: (n,) int64 sample ids, not negative.
        passes: (n,) int64 in [0, 2**32), the pass of each sample; None for the epoch.
    """

    seed: int
    epoch: int
    ids: NDArray[np.int64]
    passes: NDArray[np.int64] | None = None

    def take(self, rows: slice | NDArray[np.int64]) -> Draws:
        return replace(self, ids=self.ids[rows], passes=None if self.passes is None else self.passes[rows])

    @staticmethod
    def joined(parts: Sequence[Draws]) -> Draws:
        """Joins the numbers of samples of one epoch."""
        first, ids = parts[0], np.concatenate([part.ids for part in parts])
        passes = [part.passes for part in parts if part.passes is not None]
        return replace(first, ids=ids, passes=np.concatenate(passes) if passes else None)

    def of(self, stream: Stream, occurrence: int = 0, view: int = 0) -> Draw:
        """Returns the numbers of the `occurrence`-th transform of its kind in a view of the image."""
        if not (0 <= occurrence < OCCURRENCES and 0 <= view < VIEWS):
            raise ConfigError(
                f"a recipe may have {VIEWS} views, and {OCCURRENCES} transforms of one kind in each; this has more"
            )
        return Draw(self, stream + _STREAMS * (occurrence + OCCURRENCES * view))

    def uniform(self, stream: int, count: int, first_block: int = 0) -> NDArray[np.float64]:
        """Returns (n, count) multiples of 2**-32 in [0, 1); the first c columns do not depend on `count`."""
        return self.words(stream, count, first_block).astype(np.float64) * 2.0**-32

    def words(self, stream: int, count: int, first_block: int = 0) -> NDArray[np.uint64]:
        """Returns the numbers of `uniform` as integers of 32 bits."""
        # A block has four numbers. The counter's first word counts a stream's blocks from its own multiple of 2**16.
        # Streams times occurrences times views are 2**16, so it stays below 2**32 without overlap.
        blocks = np.arange(-(-count // 4), dtype=np.uint64) + np.uint64(stream * _BLOCKS_PER_STREAM + first_block)
        ids = self.ids.astype(np.uint64)[:, None]
        passes = np.uint64(self.epoch) if self.passes is None else self.passes.astype(np.uint64)[:, None]
        counter = list(np.broadcast_arrays(blocks[None, :], ids & _MASK, ids >> _32, passes))
        drawn = np.stack(philox4x32(counter, self.seed), axis=-1)
        return drawn.reshape(len(self.ids), 4 * len(blocks))[:, :count]


def philox4x32(counter: list[NDArray[np.uint64]], key: int) -> list[NDArray[np.uint64]]:
    """Computes Philox4x32-10 of four arrays of 32-bit words (held in uint64) under a 64-bit key."""
    a, b, c, d = counter
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (second >> _32) ^ b ^ np.uint64(low), second & _MASK
        c, d = (first >> _32) ^ d ^ np.uint64(high), first & _MASK
        low, high = (low + _WEYL[0]) & 0xFFFFFFFF, (high + _WEYL[1]) & 0xFFFFFFFF
    return [a, b, c, d]


def words(seed: int, epoch: int, stream: Stream, count: int) -> list[int]:
    """Draws `count` 32-bit words for an epoch instead of a sample, at the address of sample 0."""
    [drawn] = Draws(seed, epoch, np.zeros(1, np.int64)).words(stream, count).tolist()
    return drawn


def check_seed(seed: int) -> int:
    """Returns the seed; raises ConfigError unless it is an integer in [0, 2**64)."""
    return _check("seed", seed, 64)


def check_epoch(epoch: int) -> int:
    """Returns the epoch; raises ConfigError unless it is an integer in [0, 2**32)."""
    return _check("epoch", epoch, 32)


def _check(name: str, value: int, bits: int) -> int:
    if not is_integer(value.item() if isinstance(value, np.integer) else value, 0, 2**bits):
        raise ConfigError(f"{name}={value!r}: allowed is an integer in [0, 2**{bits})")
    return int(value)
