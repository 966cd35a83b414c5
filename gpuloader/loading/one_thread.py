"""Threads that share an iterator: they take turns, or one of them gets an error."""

from __future__ import annotations

from threading import get_ident

from gpuloader.errors import LoaderError


def enter(inside: dict[str, int]) -> None:
    """Notes that this thread is in a loader, which leaves by putting an empty dictionary in the place of `inside`.

    It is no lock: nobody waits, and an interrupt that comes between entering and leaving lets the same thread enter
    again, and so leave.

    Raises:
        LoaderError: another thread is in it.
    """
    me = get_ident()
    if inside.setdefault("thread", me) != me:  # looks and notes in one step
        raise LoaderError(
            "two threads are in this loader at once: give each a loader of its own, or guard it by a lock"
        )
