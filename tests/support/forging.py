"""Index files with right digests around any content, by the text of `gpuloader.shards.index_format` alone."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

BLOCK_BYTES = 1 << 20


class Parts(NamedTuple):
    """The content of an index file: the JSON with its spaces, the table and the columns with their zeros."""

    header: bytes
    table: bytes
    columns: bytes


def parts_of(data: bytes) -> Parts:
    """Takes an index file apart."""
    json_bytes, head_bytes = (int.from_bytes(data[at : at + 8], "little") for at in (8, 16))
    columns = data[56 + head_bytes :]
    digests_bytes = 32 * -(-len(columns) // BLOCK_BYTES)
    return Parts(data[56 : 56 + json_bytes], data[56 + json_bytes : 56 + head_bytes - digests_bytes], columns)


def sealed(parts: Parts, version: int = 3) -> bytes:
    """Puts an index file together, with right digests."""
    header = parts.header + b" " * (-len(parts.header) % 8)
    blocks = [parts.columns[at : at + BLOCK_BYTES] for at in range(0, len(parts.columns), BLOCK_BYTES)]
    head = header + parts.table + b"".join(map(digest, blocks))
    start = b"GPULIDX" + bytes([version]) + len(header).to_bytes(8, "little") + len(head).to_bytes(8, "little")
    return start + digest(start + head) + head + parts.columns


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()
