"""Uses an undocumented part of `multiprocessing`."""

from __future__ import annotations

from multiprocessing import process
from multiprocessing.process import BaseProcess


def forget_child(child: BaseProcess) -> None:
    """Makes a forked process forget a child of its parent, which it would otherwise end at its own end."""
    process._children.discard(child)  # type: ignore[attr-defined]
