"""Threads that share an iterator: they take turns, or one of them gets an error."""

from __future__ import annotations

from threading import get_ident
from types import TracebackType

from gpuloader.errors import LoaderError


class OneThread:
    """A context for one thread at a time: a second one gets a LoaderError, and does not wait.

    It remembers the thread that is in it. So an interrupt at any place leaves no lock behind: the same thread may enter
    again, and then leaves it free.
    """

    def __init__(self) -> None:
        self._inside: dict[str, int] = {}

    def __enter__(self) -> None:
        me = get_ident()
        if self._inside.setdefault("thread", me) != me:  # in one step
            raise LoaderError(
                "two threads are in this loader at once: give each a loader of its own, or guard it by a lock"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.clear()
