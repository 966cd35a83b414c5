"""Damages bytes, whatever they are: bits, cuts, insertions, numbers."""

from __future__ import annotations

import random

EXTREMES = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)
_HEADER_BYTES = 256


def flip(data: bytes, rng: random.Random) -> bytes:
    """Some bits, anywhere."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        if result:
            result[rng.randrange(len(result))] ^= 1 << rng.randrange(8)
    return bytes(result)


def flip_in_header(data: bytes, rng: random.Random) -> bytes:
    """Bits near the beginning."""
    return flip(data[:_HEADER_BYTES], rng) + data[_HEADER_BYTES:]


def cut(data: bytes, rng: random.Random) -> bytes:
    """The end is missing."""
    return data[: rng.randrange(len(data) + 1)]


def remove(data: bytes, rng: random.Random) -> bytes:
    """Some bytes within are missing."""
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 4, 16, 100)) :]


def insert(data: bytes, rng: random.Random) -> bytes:
    """Random bytes are put in."""
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.randbytes(rng.choice((1, 2, 4, 16, 100))) + data[start:]


def repeat(data: bytes, rng: random.Random) -> bytes:
    """A part comes twice."""
    start, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:end] + data[start:]


def blank(data: bytes, rng: random.Random) -> bytes:
    """A part is all zeros or all ones."""
    start, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:start] + rng.choice((b"\0", b"\xff")) * (end - start) + data[end:]


def set_number(data: bytes, rng: random.Random) -> bytes:
    """A number anywhere is an extreme one."""
    size = rng.choice((1, 2, 4, 8))
    value = (rng.choice(EXTREMES) % (1 << 8 * size)).to_bytes(size, rng.choice(("big", "little")))
    start = rng.randrange(max(len(data) - size, 0) + 1)
    return data[:start] + value + data[start + size :]


def set_first_number(data: bytes, rng: random.Random) -> bytes:
    """A number near the beginning is an extreme one."""
    return set_number(data[:_HEADER_BYTES], rng) + data[_HEADER_BYTES:]


def set_last_number(data: bytes, rng: random.Random) -> bytes:
    """A number near the end is an extreme one: that is where Pillow puts a TIFF's directory."""
    return data[:-_HEADER_BYTES] + set_number(data[-_HEADER_BYTES:], rng)


CHANGES = (
    flip,
    flip_in_header,
    cut,
    remove,
    insert,
    repeat,
    blank,
    set_first_number,
    set_first_number,
    set_last_number,
)
