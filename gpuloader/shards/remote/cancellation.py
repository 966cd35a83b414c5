"""Cancels a wait when its result is no longer wanted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

WantedCallback: TypeAlias = Callable[[], bool]
"""A function that a long operation calls repeatedly; when it returns False, the operation raises InterruptedError."""

POLL_SECONDS = 0.05


def check_wanted(wanted: WantedCallback) -> None:
    """Raises InterruptedError if the result is no longer wanted."""
    if not wanted():
        raise InterruptedError("reading was given up")


def pause(seconds: float, wanted: WantedCallback) -> None:
    """Sleeps; raises InterruptedError when it is no longer wanted."""
    end = time.monotonic() + seconds
    while True:
        check_wanted(wanted)
        if (left := end - time.monotonic()) <= 0:
            return
        time.sleep(min(left, POLL_SECONDS))
