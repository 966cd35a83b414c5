"""The digest of data: it identifies the samples and their order, independent of how they are stored.

A sample's number x is BLAKE2b, of 16 bytes, of its height and width (two little-endian int32) and its key in UTF-8
without a leading "./". The digest of samples x_1 ... x_n is the polynomial

    x_1 b^(n-1) + x_2 b^(n-2) + ... + x_n   modulo p = 2^127 - 1

at a fixed b. So the digest of two consecutive parts is (digest of the first) b^(samples of the second) + (digest of the
second), and the borders of shards have no effect. p is a prime: two different sequences of n samples have the same
digest for at most n of the p values of b, so the chance of a collision is below 10^-26 even for 10^12 samples. The
digest is not a protection against someone who constructs a collision.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

DIGEST_BYTES = 16

_PRIME = 2**127 - 1
_BASE = int.from_bytes(hashlib.blake2b(b"gpuloader's data", digest_size=DIGEST_BYTES).digest(), "little") % _PRIME
_SIDES = struct.Struct("<ii")


class DataDigest(NamedTuple):
    """The digest of a sequence of samples."""

    samples: int = 0
    value: int = 0

    @classmethod
    def of(cls, samples: Iterable[tuple[bytes, int, int]]) -> DataDigest:
        """Returns the digest of samples (key, height, width).

        Example:
            >>> cat, dog = (b"cats/1", 375, 500), (b"dogs/2", 500, 375)
            >>> DataDigest.of([cat]) + DataDigest.of([dog]) == DataDigest.of([cat, dog])
            True
        """
        count, value = 0, 0
        for key, height, width in samples:
            content = _SIDES.pack(height, width) + key.removeprefix(b"./")
            sample = hashlib.blake2b(content, digest_size=DIGEST_BYTES)
            value = (value * _BASE + int.from_bytes(sample.digest(), "little")) % _PRIME
            count += 1
        return cls(count, value)

    def __add__(self, other: object) -> DataDigest:
        """Returns the digest of these samples followed by the other samples."""
        if not isinstance(other, DataDigest):
            return NotImplemented
        return DataDigest(self.samples + other.samples, (self.value * _power(other.samples) + other.value) % _PRIME)

    def to_bytes(self) -> bytes:
        """Returns the value in 16 bytes, little-endian."""
        return self.value.to_bytes(DIGEST_BYTES, "little")

    @classmethod
    def from_bytes(cls, samples: int, data: bytes) -> DataDigest:
        """Makes a digest from the result of `to_bytes`."""
        return cls(samples, int.from_bytes(data, "little") % _PRIME)

    def __str__(self) -> str:
        return f"{self.value:032x}"


@lru_cache(maxsize=1 << 14)
def _power(samples: int) -> int:
    return pow(_BASE, samples, _PRIME)
