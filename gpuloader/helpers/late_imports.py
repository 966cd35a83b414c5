"""Imports large packages when they are first needed."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType, ModuleType


def import_late(name: str) -> ModuleType:
    """Imports a module, and delays Ctrl-C until it is done.

    If the import of torch is interrupted, the process cannot use torch: the next import finds half of it.
    """
    with hold_back_interrupts():
        return importlib.import_module(name)


@contextmanager
def hold_back_interrupts() -> Iterator[None]:
    """Delays SIGINT until the end of the block, if its handler is one of Python's and may be changed."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or current_thread() is not main_thread():
        yield
        return
    interrupted: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: interrupted.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupted:
            handler(signal.SIGINT, interrupted[0])
