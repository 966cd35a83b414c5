"""Reading ahead: each call is made once, in order, as far ahead as asked, and its error comes in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from gpuloader.base.read_ahead import EndOfItems, ReadAhead

NAME = "ahead-in-a-test"


def running() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


def same(number: int, _: Callable[[], bool]) -> int:
    if number == 13:
        raise ValueError("thirteen")
    return number


def calls(taken: list[int], count: int) -> Iterator[Callable[[Callable[[], bool]], int]]:
    for number in range(count):
        taken.append(number)
        yield partial(same, number)


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_items_come_in_order_and_so_many_are_made_ahead(depth: int) -> None:
    taken: list[int] = []
    ahead = ReadAhead(calls(taken, 10), depth, NAME)
    for number in range(10):
        assert ahead.next() == number
        assert len(taken) == min(number + 1 + depth, 10)
    for _ in range(2):
        with pytest.raises(EndOfItems):
            ahead.next()
    ahead.close()
    assert running() == 0


def test_an_error_comes_in_its_place_and_does_not_end_the_others() -> None:
    ahead = ReadAhead(calls([], 15), 3, NAME)
    assert [ahead.next() for _ in range(13)] == list(range(13))
    assert isinstance(ahead.take(), ValueError)
    assert ahead.next() == 14
    assert isinstance(ahead.take(), EndOfItems)
    ahead.close()


def test_one_more_item_is_made_behind_those_under_way_which_stay_the_next_ones() -> None:
    ahead = ReadAhead(calls([], 6), 2, NAME)
    assert ahead.next() == 0
    assert ahead.make(partial(same, 100)) == 100
    assert ahead.ready == 2
    with pytest.raises(ValueError, match="thirteen"):
        ahead.make(partial(same, 13))
    assert [ahead.next() for _ in range(5)] == [1, 2, 3, 4, 5]
    ahead.close()


@pytest.mark.parametrize("count", [3, 13, 20])
def test_a_loop_ends_the_thread_however_it_ends(count: int) -> None:
    received = []
    try:
        for number in (loop := iter(ReadAhead(calls([], count), 1, NAME))):
            received.append(number)
            if number == 11:
                break
        loop.close()  # type: ignore[attr-defined]
    except ValueError:
        pass
    assert received == list(range(min(count, 12)))
    assert running() == 0
