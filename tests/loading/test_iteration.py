"""Threads that share an iterator: one clear error, and no batch lost or doubled; and what a user's code raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from itertools import chain, count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from gpuloader import Field, GPULoader, MixedLoader
from gpuloader.errors import DataError, LoaderError

SAID = "two threads are in this loader at once: give each thread its own loader, or use a lock"
SETTINGS = {"preset": "imagenet_eval", "shuffle": "none", "decoder": {"num_threads": 1, "prefetch": 1}}


def single(shards: list[Path], **settings: Any) -> Any:  # noqa: ANN401
    return GPULoader(shards, 2, None, output="dict", **{**SETTINGS, **settings})


def mixed(shards: list[Path], **settings: Any) -> Any:  # noqa: ANN401
    return MixedLoader({"one": single(shards, **settings)})


def keys(batch: Any) -> tuple[str, ...]:  # noqa: ANN401
    return tuple((batch[1] if isinstance(batch, tuple) else batch)["key"])


@pytest.fixture(params=[single, mixed], ids=["GPULoader", "MixedLoader"])
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param


def test_a_second_thread_gets_an_error_and_does_not_wait(shards: list[Path], make: Callable[..., Any]) -> None:
    reading, go_on = Event(), Event()

    def collate(components: Sequence[bytes]) -> list[bytes]:
        reading.set()
        go_on.wait(20)
        return list(components)

    with make(shards, fields={"json": collate}) as loader, ThreadPoolExecutor(1) as other:
        epoch = iter(loader)
        first = other.submit(next, epoch)
        assert reading.wait(60)
        for _ in range(2):
            with pytest.raises(LoaderError, match=SAID):
                next(epoch)
        with pytest.raises(LoaderError, match=SAID):  # nor by an iterator of its own
            next(iter(loader))
        assert not first.done()
        go_on.set()
        assert keys(first.result()) == ("000000", "000001")
        assert keys(next(epoch)) == ("000002", "000003")  # the error has changed nothing


def test_threads_that_share_an_iterator_lose_and_double_nothing(shards: list[Path], make: Callable[..., Any]) -> None:
    with make(shards) as loader, ThreadPoolExecutor(4) as threads:
        whole = [keys(batch) for batch in loader]
        epoch = iter(loader)

        def received(_: int) -> list[tuple[str, ...]]:
            batches = []
            while True:
                try:
                    batches.append(keys(next(epoch)))
                except LoaderError as error:
                    assert str(error) == SAID  # noqa: PT017 - any other fails the test
                except StopIteration:
                    return batches

        each = list(threads.map(received, range(4)))
    assert sorted(chain(*each)) == whole
    assert all(batches == sorted(batches) for batches in each)


# --- what a user's code raises in the reading thread


def raising(error: BaseException, at: int) -> Callable[..., Any]:
    """Returns a function that returns its argument, and raises an error at one call."""
    calls = count()

    def function(given: Any) -> Any:  # noqa: ANN401
        if next(calls) == at:
            raise error
        return given

    return function


def by_a_collator(error: BaseException) -> dict[str, Any]:
    return {"fields": {"json": raising(error, at=2)}}  # once for each batch


def by_a_parser(error: BaseException) -> dict[str, Any]:
    return {"fields": {"json": Field("json", raising(error, at=4))}}  # once for each of 2 samples


def by_an_order(error: BaseException) -> dict[str, Any]:
    given = raising(error, at=2)  # two calls are for the loader's making
    return {"shuffle": lambda _: given(range(40))}


USERS = pytest.mark.parametrize("settings", [by_a_collator, by_a_parser, by_an_order])


@USERS
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError])
def test_what_a_users_code_raises_reaches_the_loop(
    shards: list[Path], kind: type[BaseException], settings: Callable[[BaseException], dict[str, Any]]
) -> None:
    error, received = kind("mine"), []
    with single(shards, **settings(error)) as loader:
        epoch = iter(loader)
        with pytest.raises(kind) as caught:
            received.extend(map(keys, epoch))
        assert caught.value is error
        received.extend(map(keys, epoch))  # the loop may go on, from the batch that failed
    assert received == [(f"{number:06d}", f"{number + 1:06d}") for number in range(0, 40, 2)]


PLACE = r"StopIteration, raised in function \(.*test_iteration\.py, line \d+\)"


@pytest.mark.parametrize(
    ("settings", "kind", "says"),
    [
        (by_a_collator, DataError, "the field json: of 2 samples, .*StopIteration"),
        (by_a_parser, RuntimeError, PLACE),
        (by_an_order, RuntimeError, PLACE),
    ],
)
def test_a_stop_iteration_of_a_users_code_does_not_end_the_epoch(
    shards: list[Path], settings: Callable[[BaseException], dict[str, Any]], kind: type[Exception], says: str
) -> None:
    with single(shards, **settings(StopIteration())) as loader, pytest.raises(kind, match=says):
        list(loader)
