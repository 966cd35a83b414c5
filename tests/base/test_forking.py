"""What a forked child does with what it has of its parent."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

from gpuloader.base.forking import at_fork


class Owner:
    def __init__(self, name: str, left: list[str]) -> None:
        self.name, self.left = name, left

    def leave(self) -> None:
        self.left.append(self.name)


def in_a_child(ask: Callable[[], str]) -> str:
    """What it answers."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, ask().encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        return answer.read()


def test_each_owner_that_lives_leaves_in_the_child_and_not_in_the_parent() -> None:
    left: list[str] = []
    owners = [Owner(name, left) for name in "abc"]
    for owner in owners:
        at_fork(owner, Owner.leave)
    assert in_a_child(lambda: "".join(sorted(left))) == "abc"
    del owners[1], owner
    gc.collect()  # being noted does not keep an owner
    assert in_a_child(lambda: "".join(sorted(left))) == "ac"
    assert left == []


def test_an_owner_of_a_child_leaves_in_its_children() -> None:
    left: list[str] = []
    owner = Owner("a", left)
    at_fork(owner, Owner.leave)
    assert in_a_child(lambda: in_a_child(lambda: "".join(left))) == "aa"
