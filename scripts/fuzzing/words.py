"""Changes texts, values of JSON, and headers: of tars, indexes, states, recipes, arrays."""

from __future__ import annotations

import json
import random
import re

from forging import parts_of, sealed
from hostile import TEXTS, paths, removed, replaced

from fuzzing.layouts import TAR_BLOCK_BYTES, with_tar_checksum

_NUMBERS = (
    "0",
    "-1",
    "1e999",
    "nan",
    "-0.0",
    "1e-300",
    "0.5",
    "3",
    "255",
    "8193",
    "1e7",
    "-1e7",
    f"{10**8}",
    f"{2**31}",
    f"{2**64}",
    "9" * 5000,
)
_WORDS = (
    "null",
    "true",
    "no",
    "[]",
    "{}",
    "[1, 2]",
    "{0: 32, 5: 64}",
    "&a",
    "*a",
    "!!x",
    "1:59:59",
    "RandAugment",
    "x",
)


def change_value(data: bytes, rng: random.Random) -> bytes:
    """A value of JSON is another one, or absent."""
    try:
        tree = json.loads(data)
        path = rng.choice(list(paths(tree)))
    except (ValueError, RecursionError):  # a mutation before has seen to that
        return data
    if path and rng.random() < 0.1:
        return json.dumps(removed(tree, path)).encode()
    before, _, after = json.dumps(replaced(tree, path, "@here@")).partition('"@here@"')
    return (before + rng.choice(TEXTS) + after).encode("utf-8", "surrogatepass")


def change_index_header(data: bytes, rng: random.Random) -> bytes:
    """A value in an index's header is another one, or absent."""
    parts = parts_of(data)
    return sealed(parts._replace(header=change_value(parts.header, rng)))


def change_word(data: bytes, rng: random.Random) -> bytes:
    """A word or number in a text is another of it, or a hostile one."""
    words = list(re.finditer(rb"[\w.+-]+", data))
    if not words:
        return data
    start, end = rng.choice(words).span()
    new = rng.choice(words)[0] if rng.random() < 0.4 else rng.choice((*_NUMBERS, *_WORDS)).encode()
    return data[:start] + new + data[end:]


def change_lines(data: bytes, rng: random.Random) -> bytes:
    """A line is missing, comes many times, stands elsewhere or deeper."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    place = rng.randrange(len(lines))
    line = lines[place]
    match rng.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines[place:place] = [line] * rng.choice((1, 3, 100))
        case 2:
            lines.insert(rng.randrange(len(lines)), lines.pop(place))
        case _:
            lines[place] = b"  " * rng.choice((1, 2, 40)) + line
    return b"".join(lines)


def change_tar_field(data: bytes, rng: random.Random) -> bytes:
    """A field of a header is another: name, mode, size, time, type, link, magic, prefix."""
    headers = _tar_headers(data)
    if not headers:
        return data
    start, size = rng.choice(((0, 100), (100, 8), (124, 12), (124, 12), (124, 12), (136, 12), (156, 1), (157, 100),
                              (257, 8), (345, 155)))  # fmt: skip
    place = rng.choice(headers) + start
    value = rng.choice(
        (
            b"%o" % rng.choice((0, 1, 511, 512, 513, 2**32, 2**33 - 1)),
            bytes([0x80]) + rng.randbytes(size),
            b"\xff" * size,
            rng.choice((b"x", b"g", b"L", b"K", b"S", b"1", b"2", b"5", b"7", b"V", b"\0")),
            rng.choice((b"a.jpg", b"../../a.jpg", b"/a.b.jpg", b".jpg", b"a.\xff\xfe", b"./", b"a.JPG")),
            rng.randbytes(size),
        )
    )
    return data[:place] + value[:size].ljust(size, b"\0") + data[place + size :]


def change_tar_blocks(data: bytes, rng: random.Random) -> bytes:
    """A block of 512 bytes is missing, comes twice or is another."""
    if not data:
        return data
    place = rng.randrange(-(-len(data) // TAR_BLOCK_BYTES)) * TAR_BLOCK_BYTES
    block = data[place : place + TAR_BLOCK_BYTES]
    instead = rng.choice((b"", 2 * block, bytes(TAR_BLOCK_BYTES), rng.randbytes(TAR_BLOCK_BYTES), block + block[:7]))
    return data[:place] + instead + data[place + TAR_BLOCK_BYTES :]


def with_tar_checksums(data: bytes) -> bytes:
    """What looks like a header has a right checksum; without it, most tars would be refused for that alone."""
    for place in _tar_headers(data):
        data = with_tar_checksum(data, place)
    return data


def _tar_headers(data: bytes) -> list[int]:
    return [place for place in range(0, len(data), TAR_BLOCK_BYTES) if data[place + 257 : place + 262] == b"ustar"]
