"""Ahead: the links under it run in a thread, and give what they would give without it, in the same order."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import replace
from threading import active_count
from typing import Any

import numpy as np
import pytest

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.chain.batch import Batch
from gpuloader.chain.link import Ahead, Causes, Over, Pulled, Wanted
from gpuloader.errors import DataError, LoaderError
from gpuloader.plan import Cursor, Draws, PlannedBatch

DEPTH = 2
RECIPE = Compose([T.Resize((8, 8))])
BAD: Causes = {0: "cut"}


def numbered(number: int) -> Batch:
    ids = np.array([number])
    planned = PlannedBatch(Cursor(0, number), ids, ids, Draws(0, 0, ids))
    return Batch.of(planned, RECIPE.graphs[0].of_none)


class Head:
    """Gives batches of one row, numbered from `place` on, before an end or an error; notes what it is asked."""

    def __init__(self, end: int = 9, error: BaseException | None = None) -> None:
        self.end, self.error, self.at = end, error, 0
        self.asked: list[Any] = []

    def seek(self, place: int) -> None:
        self.at = place
        self.asked.append(("seek", place))

    def next(self) -> Batch | None:
        if self.at == self.end and self.error is not None:
            raise self.error
        number, self.at = self.at, self.at + 1
        self.asked.append(number if number < self.end else None)
        return numbered(number) if number < self.end else None

    def again(self, batch: Batch, causes: Causes) -> Batch | None:
        number = int(batch.ids[0])
        self.asked.append(("again", number))
        if number == 7:
            raise DataError("no other image")
        return None if number == 6 else replace(batch, ids=batch.ids + 100)

    def close(self) -> None:
        self.asked.append("close")


def ahead_of(head: Head, place: int = 0) -> Ahead:
    made = Ahead(head, DEPTH, Wanted(), "ahead")
    made.seek(place)
    return made


def number(batch: Batch | None) -> int | None:
    return None if batch is None else int(batch.ids[0])


def numbers(link: Any, most: int = 99) -> list[int | None]:  # noqa: ANN401
    """The next numbers of batches, and None for the end."""
    found: list[int | None] = []
    while len(found) < most and None not in found:
        found.append(number(link.next()))
    return found


def wait_for(head: Head, count: int) -> None:
    ends = time.monotonic() + 20
    while len(head.asked) < count and time.monotonic() < ends:
        time.sleep(0.001)


@pytest.mark.parametrize(("place", "end"), [(0, 9), (3, 4), (5, 5)])
def test_batches_and_the_end_come_in_order(place: int, end: int) -> None:
    link = ahead_of(Head(end), place)
    assert numbers(link) == [*range(place, end), None]
    assert link.next() is None
    link.close()


def test_it_makes_so_many_batches_ahead() -> None:
    head = Head(5)
    link = ahead_of(head)
    given = [head.asked.copy()]
    for _ in range(6):
        link.next()
        wait_for(head, len(given) + 1 + DEPTH + 1)
        given.append(head.asked.copy())
    link.close()
    made = [[each for each in asked if isinstance(each, int)] for asked in given]
    assert [len(each) for each in made] == [0, 3, 4, 5, 5, 5, 5]


@pytest.mark.parametrize("kind", [DataError, SystemExit, KeyboardInterrupt])
def test_an_error_comes_behind_the_batches_before_it_and_seek_goes_on(kind: type[BaseException]) -> None:
    head = Head(2, error := kind("mine"))
    link = ahead_of(head)
    assert numbers(link, 2) == [0, 1]
    with pytest.raises(kind) as caught:
        link.next()
    assert caught.value is error
    link.close()
    head.error = None
    link.seek(1)
    assert numbers(link) == [1, None]
    link.close()


@pytest.mark.parametrize(
    ("first", "instead"), [(0, 100), (6, None)], ids=["another batch in its place", "nothing in its place"]
)
def test_again_comes_behind_what_was_asked_for_which_is_given_as_if_it_were_not(
    first: int, instead: int | None
) -> None:
    head = Head(first + 6)
    link = ahead_of(head, first)
    batch = link.next()
    assert batch is not None
    assert number(link.again(batch, BAD)) == instead
    assert head.asked[2:] == [first, first + 1, first + 2, ("again", first)]
    assert numbers(link) == [*range(first + 1, first + 6), None]
    link.close()


def test_what_again_raises_leaves_the_batches_behind_it() -> None:
    link = ahead_of(Head(11), 7)
    batch = link.next()
    assert batch is not None
    with pytest.raises(DataError, match="no other image"):
        link.again(batch, BAD)
    assert numbers(link) == [8, 9, 10, None]
    link.close()


def test_an_error_that_was_asked_for_before_again_comes_after_it() -> None:
    link = ahead_of(Head(1, ValueError("mine")))
    batch = link.next()
    assert batch is not None
    assert number(link.again(batch, BAD)) == 100
    with pytest.raises(ValueError, match="mine"):
        link.next()
    link.close()


def test_seek_drops_what_was_made_and_close_may_come_twice() -> None:
    before, link = active_count(), ahead_of(Head())
    assert numbers(link, 2) == [0, 1]
    link.seek(5)
    assert numbers(link, 2) == [5, 6]
    for _ in range(2):
        link.close()
        assert active_count() == before
        assert link.ready == 0
    link.seek(8)
    assert numbers(link) == [8, None]
    link.close()


def test_a_forked_child_starts_a_thread_of_its_own() -> None:
    link = ahead_of(Head())
    assert numbers(link, 2) == [0, 1]
    if (child := os.fork()) == 0:
        found: list[int | None] = []
        try:
            link.close()  # it must not wait for a thread that the child does not have
            link.seek(6)
            found = numbers(link)
        finally:
            os._exit(found != [6, 7, 8, None])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert numbers(link, 2) == [2, 3]
    link.close()


def test_without_close_its_thread_ends_with_it_and_no_garbage_needs_to_be_collected() -> None:
    gc.collect()
    gc.disable()
    try:
        before, link = active_count(), ahead_of(Head())
        assert numbers(link, 1) == [0]
        assert active_count() == before + 1
        del link
        assert active_count() == before
    finally:
        gc.enable()


def test_decoded_images_cannot_be_asked_for_again() -> None:
    with pytest.raises(LoaderError, match="cut"):
        Over(Head()).again(numbered(0), BAD)


@pytest.mark.parametrize("error", [None, ValueError("mine")])
def test_pulled_keeps_the_end_or_an_error_for_behind_its_batches(error: ValueError | None) -> None:
    pulled = Pulled()
    pulled.add(numbered(4))
    assert not pulled.ended
    if error is None:
        pulled.add(None)
        pulled.finish()
    else:
        try:
            raise error from OSError("its cause")
        except ValueError as caught:
            pulled.fail(caught)
        assert error.__traceback__ is None  # frames would keep a pipeline
        with pytest.raises(ValueError, match="mine") as found:
            pulled.finish()
        assert isinstance(found.value.__cause__, OSError)
    assert (pulled.ended, [number(batch) for batch in pulled.batches]) == (True, [4])
    pulled.begin()
    pulled.finish()
    assert not pulled.ended
