"""Questions about values that users give."""

from __future__ import annotations

from typing import TypeGuard


def is_integer(value: object, least: int, end: int | None = None) -> TypeGuard[int]:
    """Whether it is an integer in [least, end), without an end if `end` is None. True and False are no integers."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value and (end is None or value < end)
