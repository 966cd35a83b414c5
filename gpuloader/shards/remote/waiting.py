"""Waiting that ends when nobody wants its outcome any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

Wanted: TypeAlias = Callable[[], bool]
"""Asked again and again while something takes long; once it says no, that ends with InterruptedError."""

POLL_SECONDS = 0.05


def check_wanted(wanted: Wanted) -> None:
    """Raises InterruptedError where something is not wanted any more."""
    if not wanted():
        raise InterruptedError("reading was given up")


def pause(seconds: float, wanted: Wanted) -> None:
    """Sleeps, unless it is not wanted any more."""
    end = time.monotonic() + seconds
    while True:
        check_wanted(wanted)
        if (left := end - time.monotonic()) <= 0:
            return
        time.sleep(min(left, POLL_SECONDS))
