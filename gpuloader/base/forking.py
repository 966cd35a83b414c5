"""Handles objects in a forked child whose threads and locks stay in the parent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Owner = TypeVar("Owner")
_alive: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def at_fork(owner: Owner, leave: Callable[[Owner], None]) -> None:
    """Calls `leave` with the owner in each forked child, while the owner lives."""
    _alive[owner] = leave


def _leave_to_the_parent() -> None:
    for owner, leave in list(_alive.items()):
        leave(owner)


# One hook for all owners: Python has no way to remove one, so a hook of its own would keep each owner alive.
os.register_at_fork(after_in_child=_leave_to_the_parent)
