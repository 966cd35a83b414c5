"""Long runs, interrupts, ends: what a loader takes it gives back, and no batch is lost or doubled meanwhile."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import resource
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from inspect import CO_GENERATOR
from itertools import count
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import numpy as np
import pytest
from lifecycles import (
    NewProcess,
    delivered,
    grown,
    interrupted,
    left_behind,
    loader,
    loop_without_end,
    records,
    threads_and_files,
)
from making import SIZES, damaged_jpeg, encoded, jpeg, picture, write_shard
from PIL import Image
from serving import Server

import gpuloader
from gpuloader import Cache, Decoder, GPULoader
from gpuloader.errors import BadImageError, LoaderError
from gpuloader.shards import Arena, ShardSet

pytestmark = pytest.mark.slow(kept=2, of="lifecycle")

OURS = str(Path(gpuloader.__file__).parent)
SLOW = {"batch_size": 8, "read_seconds": 0.1}  # 0.8 s for a batch, 4 s for all
SLOWER = {"batch_size": 40, "read_seconds": 1.0}  # 40 s for a batch
SOON = 20
"""Seconds: ten times the two that docs/guarantees.md promises; half of what a batch of SLOWER takes."""
LARGE = {"batch_size": 2, "read_seconds": 0.0, "preset": "imagenet_eval"}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images that take a tenth of a second each to decode."""
    tiles = np.tile(np.asarray(picture(500, 500)), (7, 9, 1))
    image = encoded(Image.fromarray(tiles), "JPEG", quality=95)
    samples = [{"__key__": f"{i}", "jpg": image, "cls": b"1"} for i in range(12)]
    return [write_shard(tmp_path_factory.mktemp("large") / "train-0000.tar", samples)]


def names(shards: list[Path]) -> list[str]:
    return list(map(str, shards))


# --- long runs


@pytest.fixture(scope="module")
def process() -> Iterator[NewProcess]:
    with NewProcess() as new:
        yield new


@pytest.mark.slow(kept=1)
@pytest.mark.parametrize(
    ("way", "times"), [("epochs", 300), ("states", 100), ("loops broken off", 100), ("damaged images", 100)]
)
def test_memory_threads_and_files_do_not_grow(process: NewProcess, tmp_path: Path, way: str, times: int) -> None:
    images = [jpeg(*SIZES[i % len(SIZES)], seed=i) for i in range(8)]
    if way == "damaged images":
        images[5] = damaged_jpeg()
    shards = [
        write_shard(tmp_path / f"train-{part}.tar", [{"__key__": f"{i}", "jpg": images[i], "cls": b"1"} for i in rows])
        for part, rows in enumerate([range(4), range(4, 8)])
    ]
    found = process.ask(grown, tar=names(shards), way=way, times=times)
    before, after = found["rss"]
    assert after < 1.05 * before
    assert found["left_behind"] == {}


# --- interrupts


@pytest.mark.parametrize(
    ("data", "settings", "delays"),
    [("shards", SLOW, [0.2, 1.2, 0.6]), ("shards", SLOWER, [0.5]), ("large", LARGE, [0.05, 0.1, 0.15])],
    ids=["reading", "reading a batch that takes long", "decoding"],
)
def test_ctrl_c_does_not_wait_for_a_batch_and_the_loop_can_go_on(
    request: pytest.FixtureRequest, process: NewProcess, data: str, settings: dict[str, Any], delays: list[float]
) -> None:
    shards = request.getfixturevalue(data)
    with loader(shards, **{name: value for name, value in settings.items() if name != "read_seconds"}) as batches:
        whole = delivered(batches)
    found = process.ask(interrupted, tar=names(shards), delays=delays, **settings)
    assert found["records"] == whole
    assert len(found["seconds"]) == len(delays)
    assert max(found["seconds"]) < SOON
    assert found["batches_before"] * settings["batch_size"] < len(whole)  # the interrupts came before the end


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th place where Python may handle signals: as a function begins or C returns."""

    def __init__(self, place: int, everywhere: bool) -> None:
        self.place = place
        self.everywhere = everywhere
        self.seen = 0
        self.where: str | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "c_return") or code.co_filename == __file__:
            return
        if getattr(argument, "__name__", "") == "__enter__":  # Python 3.14 alone handles signals here (gh-148874)
            return
        if not self.everywhere and not code.co_filename.startswith(OURS):
            return
        if event == "call" and code.co_flags & CO_GENERATOR:  # a generator that is closed keeps the interrupt to itself
            return
        self.seen += 1
        if self.seen > self.place:
            sys.setprofile(None)
            self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}, {event} {argument or ''}"
            raise KeyboardInterrupt

    def run(self, step: Callable[[], Any]) -> tuple[Any, bool]:
        """The step's result, if it came to its end, and whether it did.

        No garbage is collected in it: an interrupt in the finalizer of an earlier loader, which Python keeps to itself,
        would say nothing of the step.
        """
        gc.disable()
        sys.setprofile(self)
        try:
            return step(), True
        except KeyboardInterrupt:
            return None, False
        finally:
            sys.setprofile(None)
            gc.enable()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as running:
        yield running


@pytest.mark.slow(kept=1)
@pytest.mark.parametrize(
    ("steps", "bad", "everywhere", "every", "remote"),
    [
        (0, None, False, 23, False),  # the pipeline begins: thousands of places, most in DALI's making of the graph
        (1, None, False, 7, False),
        (1, None, True, 23, False),
        (2, 5, False, 31, False),  # decoding fails, and the pipeline is made again
        (4, None, True, 1, False),  # there is no step any more
        (0, None, False, 41, True),
        (1, None, False, 11, True),
    ],
    ids=["first", "in the middle", "in the middle, in DALI too", "damaged image", "end", "first, URL", "middle, URL"],
)
def test_an_interrupt_at_any_place_of_a_step_loses_and_doubles_no_batch(
    tmp_path: Path,
    server: Server,
    places: Callable[[int], Iterator[int]],
    steps: int,
    bad: int | None,
    everywhere: bool,
    every: int,
    remote: bool,
) -> None:
    images = [damaged_jpeg() if i == bad else jpeg(40, 50, seed=i) for i in range(8)]
    samples = [{"__key__": f"{i}", "jpg": image, "cls": b"1"} for i, image in enumerate(images)]
    path = write_shard(tmp_path / "train-0000.tar", samples)
    shard = f"{server.url}/{path.name}" if remote else path
    cache = tmp_path / "cache"
    wrong: dict[str, str] = {}
    with loader(
        shard, 2, decoder=Decoder(num_threads=1), shuffle="none", on_error="replace", cache=Cache(cache)
    ) as batches:
        start = batches.state_dict()
        whole = [records(batch) for batch in batches]
    gc.collect()  # what other tests left behind
    at_start = threads_and_files()
    for place in places(every):
        with loader(
            shard, 2, decoder=Decoder(num_threads=1), shuffle="none", on_error="replace", cache=Cache(cache)
        ) as batches:
            batches.load_state_dict(start)
            epoch = iter(batches)
            received = [records(next(epoch)) for _ in range(steps)]
            interrupt = InterruptAt(place, everywhere)
            batch, ended = interrupt.run(lambda epoch=epoch: next(epoch, None))
            if interrupt.where is None:
                break
            if ended and batch is not None:  # there is code in torch that keeps an interrupt to itself
                received.append(records(batch))
            if (said := batches.state_dict()["delivered"]) != 2 * len(received):
                wrong[interrupt.where] = f"received {2 * len(received)} samples, the state says {said}"
            try:
                received += [records(batch) for batch in epoch]
            except LoaderError as error:
                wrong[interrupt.where] = str(error)
            else:
                if received != whole:
                    wrong[interrupt.where] = f"received {len(received)} of {len(whole)} batches"
    del batches, epoch
    gc.collect()
    assert wrong == {}
    assert place > 5
    assert left_behind(at_start) == {}


def test_an_interrupt_as_the_reading_thread_starts_leaves_no_thread_behind(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with loader(shards) as batches:
        whole = delivered(batches)
    gc.collect()  # what other tests left behind
    at_start = threads_and_files()
    start = Thread.start

    def start_and_interrupt(thread: Thread) -> None:  # it waits for the thread, so this is a likely place
        start(thread)
        raise KeyboardInterrupt

    with loader(shards) as batches:
        epoch = iter(batches)
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", start_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(epoch)
        assert delivered(epoch) == whole
    gc.collect()
    assert left_behind(at_start) == {}


@pytest.mark.slow(kept=1)
@pytest.mark.parametrize("remote", [False, True], ids=["disk", "URL"])
def test_an_interrupt_at_any_place_of_closing_leaves_no_thread_and_no_file_behind(
    tmp_path: Path, server: Server, places: Callable[[int], Iterator[int]], remote: bool
) -> None:
    samples = [{"__key__": f"{i}", "jpg": jpeg(40, 50), "cls": b"1"} for i in range(4)]
    path = write_shard(tmp_path / "train-0000.tar", samples)
    shard = f"{server.url}/{path.name}" if remote else path

    def begun() -> GPULoader:
        batches = loader(shard, 1, decoder=Decoder(num_threads=1), shuffle="none", cache=Cache(tmp_path / "cache"))
        next(iter(batches))
        return batches

    begun().close()  # libraries keep threads and files of their own from their first use on
    gc.collect()
    at_start = threads_and_files()
    for place in places(10):
        batches = begun()
        interrupt = InterruptAt(place, everywhere=False)
        interrupt.run(batches.close)
        del batches
        gc.collect()
        if interrupt.where is None:
            break
        assert left_behind(at_start) == {}, interrupt.where
    assert place > 5


def test_an_interrupt_at_any_place_of_reading_leaves_no_file_behind_and_reading_goes_on(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))  # so that each file is closed for the next

    def read(shard_set: ShardSet) -> list[bytes]:
        return [view.tobytes() for view in shard_set.read_images(np.array([0, 39, 1]), Arena())]

    whole = read(ShardSet.open(shards))
    gc.collect()
    at_start = threads_and_files()
    for place in count():
        shard_set = ShardSet.open(shards)
        interrupt = InterruptAt(place, everywhere=False)
        interrupt.run(partial(read, shard_set))
        assert read(shard_set) == whole, interrupt.where
        shard_set.close()
        assert left_behind(at_start) == {}, interrupt.where
        if interrupt.where is None:
            break
    assert place > 5


def test_an_interrupt_at_any_place_of_loading_a_state_leaves_it_or_the_one_before(
    tmp_path: Path, places: Callable[[int], Iterator[int]]
) -> None:
    samples = [{"__key__": f"{i}", "jpg": jpeg(40, 50), "cls": b"1"} for i in range(12)]
    tars = [write_shard(tmp_path / f"train-{part}.tar", samples[part::3]) for part in range(3)]

    def make(batch_size: int) -> GPULoader:  # the quantum is the batch size, or that of a state
        options = {"sampling": {"buckets": [(32, 40), (40, 32)]}, "last_batch": "pad"}
        return loader(tars, batch_size, decoder=Decoder(num_threads=1), shuffle="none", **options)

    with make(4) as earlier:
        next(iter(earlier))
        state = {**earlier.state_dict(), "quarantine": [[1, "torn"]]}
    with make(2) as batches:
        fresh, whole = batches.state_dict(), list(map(records, batches))
        batches.load_state_dict(state)
        after, rest = batches.state_dict(), list(map(records, batches))
        for place in places(5):
            batches.load_state_dict(fresh)
            epoch = iter(batches)
            next(epoch)
            before = batches.state_dict()
            interrupt = InterruptAt(place, everywhere=False)
            interrupt.run(batches.check_state(state)[1])
            said = batches.state_dict()
            assert said in (before, after), interrupt.where
            goes_on = list(map(records, epoch if said == before else batches))
            assert goes_on == (whole[1:] if said == before else rest), interrupt.where
            if interrupt.where is None:
                break
        assert said == after
        assert place > 5


# --- ends


@pytest.mark.parametrize(("data", "settings"), [("shards", SLOWER), ("large", LARGE)], ids=["reading", "decoding"])
def test_sigterm_does_not_wait_for_a_batch(request: pytest.FixtureRequest, data: str, settings: dict[str, Any]) -> None:
    tar = names(request.getfixturevalue(data))
    with NewProcess() as process:
        process.begin(loop_without_end, tar=tar, **settings)
        assert process.answer() == "begun"
        time.sleep(0.3)
        process.process.terminate()
        assert process.process.wait(SOON) == -signal.SIGTERM


@pytest.mark.parametrize("steps", [None, 0, 1, 4, 5], ids=["not begun", "begun", "first", "last", "end"])
def test_a_loader_can_be_closed_twice_at_any_step(shards: list[Path], steps: int | None) -> None:
    with loader(shards) as batches:  # libraries keep threads and files of their own from their first use on
        next(iter(batches))
    before = threads_and_files()
    batches = loader(shards, 10)
    epoch = None if steps is None else iter(batches)
    for _ in range(steps or 0):
        next(epoch, None)
    batches.close()
    batches.close()
    assert left_behind(before) == {}
    with pytest.raises(LoaderError, match="this loader is closed: make a new one"):
        iter(batches)
    with pytest.raises(LoaderError, match="this loader is closed: make a new one"):
        pickle.dumps(batches)
    if epoch is not None and steps != 5:
        with pytest.raises(LoaderError, match="this loader is closed: make a new one"):
            next(epoch)


@pytest.mark.parametrize("through", ["the loader", "its iterator", "an error of its own"])
def test_a_loader_in_a_cycle_is_collected_and_its_threads_end(tmp_path: Path, through: str) -> None:
    images = [jpeg(40, 50), jpeg(40, 50), damaged_jpeg(), jpeg(40, 50)]
    samples = [{"__key__": f"{i}", "jpg": image, "cls": b"1"} for i, image in enumerate(images)]
    shard = write_shard(tmp_path / "train-0000.tar", samples)
    with loader(shard, 1, shuffle="none") as batches:
        next(iter(batches))
    gc.collect()
    before = threads_and_files()
    gc.disable()  # until it is called for
    try:
        batches = loader(shard, 1, shuffle="none")
        epoch = iter(batches)
        next(epoch)
        cycle: list[Any] = []
        cycle.append(cycle)
        if through == "the loader":
            cycle.append(batches)
        elif through == "its iterator":
            cycle.append(epoch)
        else:
            with pytest.raises(BadImageError) as caught:
                list(epoch)
            batches.load_state_dict({**batches.state_dict(), "delivered": 0})
            next(iter(batches))
            cycle += [caught, caught.value.__traceback__, batches]
            del caught
        watched = weakref.ref(batches)
        del batches, epoch, cycle
        assert watched() is not None
        assert threads_and_files() - before
        gc.collect()
        assert watched() is None
        assert left_behind(before) == {}
    finally:
        gc.enable()


# --- other processes


@pytest.mark.slow(kept=0)
def test_a_loader_that_has_not_begun_goes_to_a_spawned_process(shards: list[Path]) -> None:
    with loader(shards) as batches:
        whole = delivered(batches)
    with loader(shards) as batches:
        next(iter(batches))
        state = batches.state_dict()
    with loader(shards) as unbegun, loader(shards) as restored, multiprocessing.get_context("spawn").Pool(1) as pool:
        restored.load_state_dict(state)
        assert pool.apply(delivered, (unbegun,)) == whole
        assert pool.apply(delivered, (restored,)) == whole[8:]
        assert delivered(unbegun) == whole  # and stays usable here
        pool.close()
        pool.join()


@pytest.mark.parametrize("steps", [1, 5, 6], ids=["first", "last", "end"])
def test_a_loader_that_has_begun_does_not_go_to_a_spawned_process(shards: list[Path], steps: int) -> None:
    with loader(shards) as batches:
        epoch = iter(batches)
        for _ in range(steps):
            next(epoch, None)
        child = multiprocessing.get_context("spawn").Process(target=delivered, args=(batches,))
        with pytest.raises(LoaderError, match=r"a loader that has begun cannot be pickled: send its state_dict\(\)"):
            child.start()
