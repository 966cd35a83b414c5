"""Signals that arrive while this process must not be interrupted, and what a child does with them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from threading import Thread

import pytest

from gpuloader.base.signals import deferred_signals, leave_signals_to_the_parent

TAKEN = (signal.SIGINT, signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1)


class ArrivedError(Exception):
    """Raised by the handlers."""


@pytest.fixture
def arrived() -> Iterator[list[int]]:
    """Has the signals whose handlers were called; each of them raises."""
    numbers: list[int] = []

    def handle(number: int, _: object) -> None:
        numbers.append(number)
        raise ArrivedError

    before = {number: signal.signal(number, handle) for number in TAKEN}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def send_deferred(sent: tuple[int, ...], arrived: list[int], seen: list[int], error: Exception | None = None) -> None:
    """Sends signals in a block, and notes which handlers were called there."""
    with deferred_signals():
        send(*sent)
        seen.append(len(arrived))
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [None, ValueError("of the block")])
@pytest.mark.parametrize("sent", [(each,) for each in TAKEN] + [(signal.SIGALRM, signal.SIGINT, signal.SIGUSR1)])
def test_handlers_are_called_at_the_end_of_the_block(
    arrived: list[int], sent: tuple[int, ...], error: Exception | None
) -> None:
    before, seen = [signal.getsignal(number) for number in TAKEN], list[int]()
    with pytest.raises(ArrivedError):
        send_deferred(sent, arrived, seen, error)
    assert seen == [0]
    assert arrived == list(sent)  # all of them, though the first one raised
    assert [signal.getsignal(number) for number in TAKEN] == before


def test_a_block_in_a_block_waits_for_the_outer_one(arrived: list[int]) -> None:
    seen: list[int] = []

    def send_deferred_twice() -> None:
        with deferred_signals():
            send_deferred((signal.SIGINT,), arrived, seen)
            seen.append(len(arrived))

    with pytest.raises(ArrivedError):
        send_deferred_twice()
    assert seen == [0, 0]
    assert arrived == [signal.SIGINT]


def test_another_thread_defers_nothing(arrived: list[int]) -> None:
    before, found = [signal.getsignal(number) for number in TAKEN], []

    def look() -> None:
        with deferred_signals():
            found.extend(signal.getsignal(number) for number in TAKEN)

    thread = Thread(target=look)
    thread.start()
    thread.join()
    assert found == before


def test_a_child_ignores_what_its_parent_handles_and_ends_by_sigterm(arrived: list[int]) -> None:
    with deferred_signals():
        child = os.fork()
        if not child:
            leave_signals_to_the_parent()
            send(signal.SIGINT, signal.SIGALRM, signal.SIGUSR1)
            send(signal.SIGTERM)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert arrived == []
