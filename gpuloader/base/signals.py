"""Defers signals while this process must not be interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import current_thread, main_thread
from typing import Any


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Delays, in the main thread, all signals with a Python handler until the end of the block.

    Use it wherever a process is started. Python drops an error that a handler raises in a hook at fork, and the hook
    stays unfinished: logging's lock would stay held. A signal mask would not help, because other threads take signals.
    """
    if current_thread() is not main_thread():  # only the main thread runs handlers
        yield
        return
    handlers: dict[int, Any] = {each: it for each in signal.valid_signals() if callable(it := signal.getsignal(each))}
    arrived: list[Any] = []
    waits = True

    def handle(number: int, frame: object) -> None:
        if waits:
            arrived.append((number, frame))
        else:  # another signal ended the loop that restores the handlers
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, handle)
        yield
    finally:
        try:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        finally:
            waits = False
            with ExitStack() as stack:  # calls each handler, also if another one raises
                for each in reversed(arrived):
                    stack.callback(handlers[each[0]], *each)


def leave_signals_to_the_parent() -> None:
    """Ignores, in a child, SIGINT and all signals with a Python handler, but lets SIGTERM end it."""
    for number in signal.valid_signals():
        if number == signal.SIGINT or callable(signal.getsignal(number)):
            ends = number in (signal.SIGTERM, signal.SIGCHLD)  # without SIGCHLD, the child could not wait for its own
            signal.signal(number, signal.SIG_DFL if ends else signal.SIG_IGN)
