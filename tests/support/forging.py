"""Index files with right digests around any content, by the text of `gpuloader.shards.table` alone."""

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
