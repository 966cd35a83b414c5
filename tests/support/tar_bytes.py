"""Tars made byte by byte, so that they may be what no program writes."""

from __future__ import annotations

import numpy as np

END = bytes(1024)


def forged(
    name: bytes = b"a.jpg",
    size: bytes | int = 0,
    kind: bytes = b"0",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    signed: bool = False,
) -> bytes:
    """A header block with a right checksum, whatever its fields say."""
    field = b"%011o\0" % size if isinstance(size, int) else size.ljust(12, b"\0")
    block = bytearray(512)
    for start, value in ((0, name), (124, field), (156, kind), (257, magic), (345, prefix)):
        block[start : start + len(value)] = value
    block[148:156] = b" " * 8
    total = sum(np.frombuffer(block, np.int8 if signed else np.uint8).tolist())
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def extended(kind: bytes, data: bytes) -> bytes:
    return forged(size=len(data), kind=kind, name=b"././@LongLink") + padded(data)


def record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(b"%d" % length + rest) != length:
        length += 1
    return b"%d" % length + rest


def member(name: str | bytes, data: bytes = b"") -> bytes:
    """A file."""
    return forged(name.encode() if isinstance(name, str) else name, len(data)) + padded(data)
