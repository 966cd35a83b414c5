"""Questions about values that users give."""

from __future__ import annotations

from typing import TypeGuard


def is_integer(value: object, least: int | None = None, end: int | None = None) -> TypeGuard[int]:
    """Says whether it is an integer in [least, end); None is no bound. True and False are no integers."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return (least is None or least <= value) and (end is None or value < end)
