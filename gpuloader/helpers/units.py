"""Numbers as people say them."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with what it counts: 1 shard, 1,200 shards, 2 classes. The plural is the noun and an s by default."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_bytes(count: float) -> str:
    """Bytes in three digits: 45.9 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
