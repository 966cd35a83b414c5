"""The corpus of index files that nobody wrote so: damaged ones, and forged ones with right digests.

Digests are made by the text of `gpuloader.shards.table` alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.shards.index import Index

BLOCK_BYTES = 1 << 20


class Parts(NamedTuple):
    """The content of an index file: the JSON, the columns in the head and the other columns with their zeros."""

    header: bytes
    table: bytes
    columns: bytes


def parts_of(data: bytes) -> Parts:
    """Takes an index file apart."""
    head_at, json_bytes = (int.from_bytes(data[at : at + 8], "little") for at in (8, 16))
    columns = data[56:head_at]
    digests_bytes = 32 * -(-len(columns) // BLOCK_BYTES)
    table_at = head_at + -(-json_bytes // 8) * 8
    return Parts(data[head_at : head_at + json_bytes], data[table_at : len(data) - digests_bytes], columns)


def sealed(parts: Parts, version: int = 6) -> bytes:
    """Puts an index file together, with right digests."""
    blocks = [parts.columns[at : at + BLOCK_BYTES] for at in range(0, len(parts.columns), BLOCK_BYTES)]
    head = parts.header + b" " * (-len(parts.header) % 8) + parts.table + b"".join(map(digest, blocks))
    head_at, json_bytes = ((number).to_bytes(8, "little") for number in (56 + len(parts.columns), len(parts.header)))
    start = b"GPULIDX" + bytes([version]) + head_at + json_bytes
    return start + digest(start + head) + parts.columns + head


def with_column(data: bytes, name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> bytes:
    """Returns an index file in which one column has other values, with right digests."""
    parts = parts_of(data)
    counts = json.loads(parts.header)["counts"]
    for area, kinds in (("table", Index.HEAD), ("columns", Index.COLUMNS)):
        content, at = getattr(parts, area), 0
        for each, (kind, rows) in kinds.items():
            column = np.frombuffer(content, kind, counts[rows], at)
            if each == name:
                changed = change(column).astype(kind).tobytes()
                parts = parts._replace(**{area: content[:at] + changed + content[at + len(changed) :]})
            at += -(-column.nbytes // 8) * 8
    return sealed(parts)


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def damages(whole: bytes) -> dict[str, bytes]:
    """What a disk, a network or another program makes of an index file; no reader may take any of it."""
    parts = parts_of(whole)
    flipped = {place: whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in (0, 8, 24, 57, -2)}
    return {
        **{f"cut to {size}": whole[:size] for size in (0, 1, 50, len(whole) - 1)},
        **{f"flipped at {place}": data for place, data in flipped.items()},
        **{f"version {version}": sealed(parts, version) for version in (0, 3, 5, 255)},
        "longer": whole + b"\0",
        "twice": whole * 2,
        "behind a byte": b"x" + whole,
        "a page": b"<!DOCTYPE html>",
    }


CONTRADICTIONS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "key_end, backwards": lambda ends: ends[::-1],
    "key_end, of empty keys": lambda ends: ends * 0 + ends[-1],
    "key_end, with a byte in no key": lambda ends: ends - 1,
    "component_end, one too many": lambda ends: ends + 1,
    "component_end, far below": lambda ends: ends - 2**62,
    "component_extension, above": lambda numbers: numbers + 1,
    "component_extension, below": lambda numbers: numbers - 1,
    "folder": lambda numbers: numbers + 1,
    "height": lambda heights: -heights,
    "width": lambda widths: widths * 0,
    "orientation": lambda orientations: orientations + 9,
    "traits": lambda traits: traits + 32,
    "label": lambda labels: labels + 1,
}
"""Columns that contradict the others: the column's name, and what becomes of it."""

HEADERS = (b'{"a": ' * 5000, b"9" * 5000, b"NaN", b"[]", b'{"counts": {"samples": -1}}')


def forgeries(whole: bytes) -> dict[str, bytes]:
    """Index files with right digests around what cannot be; no reader may use any of it."""
    parts = parts_of(whole)
    columns = {name: with_column(whole, name.partition(",")[0], change) for name, change in CONTRADICTIONS.items()}
    return {**columns, **{f"header {header[:9]!r}": sealed(parts._replace(header=header)) for header in HEADERS}}


def use(index: Index) -> None:
    """All that the library asks an index; it may not reach outside its shards."""
    keys, rows = list(index.each_key()), np.arange(len(index))
    assert [index.key(row) for row in range(len(index))] == keys, "keys differ"
    places = [(offset, size) for row in range(len(index)) for _, offset, size in index.components(row)]
    found = [index.component(row, extension) for row in range(len(index)) for extension in index.extensions]
    assert len(places) >= len([place for place in found if place is not None])
    places += zip(index.column("image_offset").tolist(), index.column("image_size").tolist(), strict=True)
    most = int(index.shard_bytes.max())
    assert all(0 <= offset <= offset + size <= most for offset, size in places), "outside the shard"
    for name in ("image_offset", "image_size", "height", "width", "orientation", "traits", "label"):
        assert index.at(name, rows).tolist() == index.column(name).tolist()
    assert len(index.image_extensions()) == len(index.column("label")) == len(keys), "other lengths"
    assert all(len(index.rows_without(extension)) <= len(keys) for extension in ("jpg", "npy", *index.extensions))
    assert all(0 <= number < len(index.folders()) for number in index.column("folder").tolist())
    assert len(index.left_out) <= index.left_out_count.sum()
    assert len(index.digest()) == 32
    index.data_digest_of_shards(0, len(index.sample_end))
    index.data_digest_of(0, len(index))
    index.largest_image(10**6)
    if len(index.sample_end) == 1:
        Index.parse_one(index.to_bytes(), "again")
