"""GPULoader on shards from stores: the same batches as from the same shards on a disk, whatever happens meanwhile."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from changing import CHANGES
from lifecycles import delivered, loader, records
from making import jpeg, write_samples, write_shard
from naming import named
from serving import SOON, Server, wait_for

from gpuloader import BadImages, Cache, Decoder
from gpuloader.errors import RemoteError, TarError
from gpuloader.loading.loader import GPULoader

pytestmark = pytest.mark.slow(kept=7, of="remote loading")

SAMPLES = 40
SHARDS = 5


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Five shards of eight samples each, without indexes."""
    return write_samples(tmp_path / "local", SAMPLES, shards=SHARDS)


@pytest.fixture
def server(shards: list[Path], tmp_path: Path) -> Iterator[Server]:
    write_samples(tmp_path / "served", SAMPLES, shards=SHARDS)
    with Server(tmp_path / "served") as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def urls(server: Server) -> str:
    return f"{server.url}/train-{{0000..{SHARDS - 1:04d}}}.tar"


def shard_bytes(shards: list[Path]) -> int:
    return max(shard.stat().st_size for shard in shards)


def forget(cache: Path) -> None:
    """The shards go, the indexes stay: what a loader needs has to be downloaded while it runs."""
    for file in cache.glob("*.tar"):
        file.unlink()


def indexed(server: Server, cache: Path) -> None:
    loader(urls(server), cache=Cache(cache)).close()
    forget(cache)


# --- the same batches


def assert_same(batches: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        for name, value in batch.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, other[name]), name
            else:
                assert value == other[name], name


@pytest.mark.slow(kept=1)
@pytest.mark.parametrize("room", [None, 1.5], ids=["all fits", "one shard fits"])
@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": "none"},
        {"shuffle": "full"},
        {"shuffle": "block"},
        {"shuffle": "shards"},
        {"batch_size": 3, "last_batch": "pad"},
        {"label_from": "json:label", "fields": ["json"]},
        {"sampling": {"subset": lambda columns: columns["label"] < 5}},
        {"sampling": {"weights": "balanced"}},
        {"world": {"rank": 1, "world_size": 2}},
        {"decoder": {"num_threads": 1, "prefetch": 1}},
    ],
    ids=named,
)
def test_batches_are_those_of_the_same_shards_on_a_disk(
    shards: list[Path], server: Server, cache: Path, settings: dict[str, Any], room: float | None
) -> None:
    cache_bytes = None if room is None else int(room * shard_bytes(shards))
    with (
        loader(shards, **settings) as local,
        loader(urls(server), cache=Cache(cache, max_bytes=cache_bytes), **settings) as far,
    ):
        for _ in range(2):
            assert_same(list(far), list(local))
        stats = far.stats().cache
    assert local.stats().cache is None
    assert stats is not None
    assert stats.hits + stats.misses > 0
    if cache_bytes is None:
        assert stats.downloaded_bytes == sum(shard.stat().st_size for shard in shards)
    else:
        assert stats.held_bytes <= cache_bytes


def test_disk_and_store_can_be_mixed(shards: list[Path], server: Server, cache: Path) -> None:
    mixed = [shards[0], f"{server.url}/train-{{0001,0002}}.tar", *shards[3:]]
    sources = [{"tar": f"{server.url}/train-0000.tar", "weight": 3}, {"tar": shards[1:]}]
    with loader(shards) as local, loader(mixed, cache=Cache(cache)) as far:
        assert_same(list(far), list(local))
    with (
        loader([{"tar": shards[0], "weight": 3}, {"tar": shards[1:]}]) as local,
        loader(sources, cache=Cache(cache)) as far,
    ):
        assert_same(list(far), list(local))


@pytest.mark.parametrize("saved_on", ["disk", "store"])
def test_a_state_goes_from_disk_to_store_and_back(
    shards: list[Path], server: Server, cache: Path, saved_on: str
) -> None:
    def make(on: str) -> GPULoader:
        return loader(shards) if on == "disk" else loader(urls(server), cache=Cache(cache))

    with make("disk") as whole:
        expected = list(whole)
    with make(saved_on) as first:
        epoch = iter(first)
        begun = [next(epoch), next(epoch)]
        state = first.state_dict()
    with make("store" if saved_on == "disk" else "disk") as second:
        second.load_state_dict(state)
        assert_same(begun + list(second), expected)


def test_shards_are_downloaded_before_they_are_needed(server: Server, cache: Path) -> None:
    indexed(server, cache)
    with loader(urls(server), 2, cache=Cache(cache), shuffle="none", decoder=Decoder(prefetch=1)) as batches:
        epoch = iter(batches)
        next(epoch)
        wait_for(lambda: len(list(cache.glob("*.tar"))) == SHARDS)
        list(epoch)
        stats = batches.stats().cache
    assert stats is not None
    assert stats.misses <= 2  # of the first batches


@pytest.mark.parametrize(
    ("shuffle", "room", "told"), [("full", None, 0), ("none", 1, 0), ("none", 2, 0), ("full", 1, 1), ("full", 2, 1)]
)
def test_an_order_that_the_cache_is_too_small_for_is_said_once(
    server: Server, cache: Path, caplog: pytest.LogCaptureFixture, shuffle: str, room: int | None, told: int
) -> None:
    cache_bytes = None if room is None else room * shard_bytes([*server.folder.glob("*.tar")])
    with loader(urls(server), cache=Cache(cache, max_bytes=cache_bytes), shuffle=shuffle) as batches:
        for _ in range(2):
            next(iter(batches))
            batches.load_state_dict(batches.state_dict())
    said = [record.getMessage() for record in caplog.records if "the order uses" in record.getMessage()]
    assert len(said) == told
    for message in said:
        assert "(Cache(max_bytes=...))" in message
        assert 'shuffle="shards"' in message


# --- when the store fails


def test_a_store_that_dies_is_an_error_and_the_loop_goes_on_when_it_is_back(
    shards: list[Path], server: Server, cache: Path
) -> None:
    indexed(server, cache)
    names = [shard.name for shard in shards]
    with loader(shards, 4, shuffle="none") as local:
        expected = [records(batch) for batch in local]
    with loader(urls(server), 4, shuffle="none", cache=Cache(cache)) as batches:
        server.fault(names[2], "500")
        epoch, received = iter(batches), []
        with pytest.raises(RemoteError, match=r"train-0002\.tar: HTTP 500 .*\(5 tries\).*To resume, loop again"):
            received.extend(records(batch) for batch in epoch)
        assert received == expected[:4]
        state = batches.state_dict()
        assert state["delivered"] == 16
        with pytest.raises(RemoteError):
            next(epoch)
        server.faults.clear()
        assert received + [records(batch) for batch in epoch] == expected
    forget(cache)
    with loader(urls(server), 4, shuffle="none", cache=Cache(cache)) as resumed:
        resumed.load_state_dict(state)
        assert received + [records(batch) for batch in resumed] == expected


@pytest.mark.parametrize("change", ["overwritten", "cut", "touched"])
def test_a_shard_that_changes_in_the_cache_is_downloaded_again(
    shards: list[Path], server: Server, cache: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    with loader(shards) as local, loader(urls(server), cache=Cache(cache)) as batches:
        for file in cache.glob("*.tar"):
            CHANGES[change](file)
        assert_same(list(batches), list(local))
    assert "train-0000.tar was changed in the cache by something else" in caplog.text


def spoil(file: Path, how: str) -> None:
    """Damages a shard in the cache; its size and time stay."""
    before, data = file.stat(), bytearray(file.read_bytes())
    if how == "zeros":
        data[:] = bytes(len(data))
    else:
        data[data.rindex(b"\xff\xd8\xff")] = 0
    with file.open("r+b") as opened:
        opened.write(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("how", "indexes", "when"),
    [
        *(("zeros", indexes, when) for indexes in ("kept", "lost") for when in ("before", "after an epoch")),
        *(("an image", "kept", when) for when in ("before", "after an epoch")),  # it would be bad by a new index
    ],
)
def test_a_shard_that_is_damaged_in_the_cache_is_downloaded_again(
    shards: list[Path], server: Server, cache: Path, how: str, indexes: str, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"shuffle": "full", "label_from": "json:label", "fields": ["json"]}
    with loader(urls(server), cache=Cache(cache), **settings) as first:
        list(first)
    damaged = sorted(cache.glob("*.tar"))[:2]
    for file in damaged if when == "before" else []:
        spoil(file, how)
    for file in cache.glob("*.gpuidx") if indexes == "lost" else []:
        file.unlink()
    with loader(shards, **settings) as local, loader(urls(server), cache=Cache(cache), **settings) as far:
        assert_same(list(far), list(local))
        for file in damaged if when != "before" else []:
            spoil(file, how)
        assert_same(list(far), list(local))
        assert_same(list(far), list(local))
        stats = far.stats()
    assert stats.bad == {}
    assert stats.cache is not None
    assert stats.cache.downloaded_bytes == sum(file.stat().st_size for file in damaged)
    assert caplog.text.count(": it is downloaded again") == len(damaged)


def test_what_is_damaged_on_the_store_too_stays_an_error(server: Server, cache: Path) -> None:
    server.headers = {"ETag": None, "Last-Modified": None}  # it says that nothing changes
    with loader(urls(server), cache=Cache(cache), shuffle="none") as batches:
        list(batches)
    served = server.folder / "train-0000.tar"
    served.write_bytes(bytes(served.stat().st_size))
    for file in cache.glob("*.tar"):
        spoil(file, "zeros")
    with loader(urls(server), cache=Cache(cache), shuffle="none") as batches:
        for _ in range(2):
            with pytest.raises(TarError, match=r"train-0000\.tar: nothing but zeros"):
                list(batches)
    assert server.asked["GET", served.name] < 10  # once for each call, and for batches that are read ahead


def test_a_bad_image_on_the_store_is_no_damage(server: Server, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = [b"no image" if i % 3 == 0 else jpeg(40, 50, seed=i) for i in range(9)]
    write_shard(server.folder / "a.tar", [{"__key__": f"{i}", "jpg": image} for i, image in enumerate(images)])
    on_error = BadImages(replace=True, max_share=1.0)
    settings = {"label_from": None, "on_error": on_error, "batch_size": 3, "shuffle": "none"}
    for downloaded in (1, 0):
        with loader(f"{server.url}/a.tar", cache=Cache(cache), **settings) as batches:
            for _ in range(2):
                assert [batch["valid"].tolist() for batch in batches] == [[False, True, True]] * 3
            stats = batches.stats()
        assert sorted(stats.bad) == [0, 3, 6]
        assert stats.cache is not None
        assert stats.cache.downloaded_bytes == downloaded * (server.folder / "a.tar").stat().st_size
    assert "in the cache" not in caplog.text


# --- interrupts and ends


@pytest.mark.parametrize("when", ["opening", "reading"])
def test_ctrl_c_while_a_shard_is_waited_for_comes_through(server: Server, cache: Path, when: str) -> None:
    indexed(server, cache)
    for number in range(SHARDS):
        server.fault(f"train-{number:04d}.tar", "silent", method="HEAD" if when == "opening" else "GET")
    batches = None if when == "opening" else loader(urls(server), cache=Cache(cache))
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(iter(batches or loader(urls(server), cache=Cache(cache))))
    assert time.monotonic() - started < SOON
    server.faults.clear()
    with batches or loader(urls(server), cache=Cache(cache)) as batches:
        assert len(delivered(batches)) == SAMPLES


@pytest.mark.parametrize("how", ["closed", "collected"])
def test_a_loader_that_ends_while_it_downloads_leaves_no_thread_and_no_file(
    server: Server, cache: Path, how: str
) -> None:
    loader(urls(server), cache=Cache(cache)).close()
    with loader(urls(server), cache=Cache(cache)) as batches:
        next(iter(batches))  # libraries keep threads and files of their own from now on
    forget(cache)
    gc.collect()
    before = len(our_threads()), shard_files(cache)
    for number in range(1, SHARDS):
        server.fault(f"train-{number:04d}.tar", "silent")
    batches = loader(urls(server), 1, cache=Cache(cache), shuffle="none", decoder=Decoder(prefetch=1))
    epoch = iter(batches)
    next(epoch)
    assert len(our_threads()) > before[0]
    watched, started = weakref.ref(batches), time.monotonic()
    if how == "closed":
        batches.close()
    del batches, epoch
    gc.collect()
    assert watched() is None
    assert time.monotonic() - started < SOON
    assert (len(our_threads()), shard_files(cache)) == before


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gpuloader")]


def shard_files(cache: Path) -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # other threads close theirs, and so does the listing
            count += str(cache) in str(entry.readlink())
    return count
