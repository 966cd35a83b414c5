"""`Ahead`: batches come in order, so many are made ahead, and one that is made again comes before all of these."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gpuloader.chain.link import Ahead, Causes, Wanted

NAME = "ahead-in-a-test"


class Head:
    """Hands on the numbers from a place to 11; `again` hands on a square, or raises the first cause."""

    def __init__(self) -> None:
        self.at = 0

    def seek(self, place: int) -> None:
        self.at = place

    def next(self) -> Any:  # noqa: ANN401
        if self.at == 12:
            return None
        self.at += 1
        return self.at - 1

    def again(self, batch: Any, causes: Causes) -> Any:  # noqa: ANN401
        if causes:
            raise ValueError(causes[0])
        return batch**2

    def close(self) -> None:
        pass


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_batches_come_in_order_and_so_many_are_made_ahead(depth: int) -> None:
    head = Head()
    ahead: Any = Ahead(head, depth, Wanted(), NAME)
    for first in (0, 5):  # a place may be sought while others are made ahead
        ahead.seek(first)
        for number in range(first, 9):
            assert ahead.next() == number
            assert ahead.again(20 + number, {}) == (20 + number) ** 2  # behind what was asked for, so that is made
            assert (head.at, ahead.ready) == (min(number + 1 + depth, 12), min(depth, 12 - number))
    with pytest.raises(ValueError, match="thirteen"):
        ahead.again(13, {0: "thirteen"})
    assert [ahead.next() for _ in range(4)] == [9, 10, 11, None]
    ahead.close()
    assert not any(thread.name == NAME for thread in threading.enumerate())
