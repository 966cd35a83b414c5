"""Numbers as people say them."""

from __future__ import annotations


def format_bytes(count: float) -> str:
    """Bytes in three digits: 45.9 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
