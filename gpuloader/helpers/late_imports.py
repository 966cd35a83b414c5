"""Importing what is large when it is needed, not before."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType, ModuleType


def import_late(name: str) -> ModuleType:
    """Imports a module, with Ctrl-C held back.

    torch is of no use in a process in which its import was interrupted: another finds half of it.
    """
    with hold_back_interrupts():
        return importlib.import_module(name)


@contextmanager
def hold_back_interrupts() -> Iterator[None]:
    """SIGINT waits for the end of the block, where its handler is one of Python's and may be changed."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or current_thread() is not main_thread():
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(signal.SIGINT, came[0])
