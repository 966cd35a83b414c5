"""The bounded folder of shards, which processes share."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from full import full_disk
from making import write_samples
from serving import Server, wait_for
from warm import Program, warm

from gpuloader.errors import ConfigError, DataError, ShardChangedError, TarError
from gpuloader.shards.remote import Entry, RemoteShard, ShardCache, close_shard

ROOM = 10**9


def always() -> bool:
    return True


@pytest.fixture
def served(tmp_path: Path) -> list[Path]:
    """Four shards of one size on a server."""
    shards = write_samples(tmp_path / "served", 16, shards=4, sizes=[(60, 80)])
    size = max(shard.stat().st_size for shard in shards)
    for shard in shards:
        os.truncate(shard, size)  # zeros behind a tar's end belong to it
    return shards


@pytest.fixture
def server(served: list[Path]) -> Iterator[Server]:
    with Server(served[0].parent) as running:
        yield running


@pytest.fixture
def entries(server: Server, served: list[Path]) -> list[Entry]:
    shards = [RemoteShard(f"{server.url}/{shard.name}") for shard in served]
    return [Entry(shard, shard.version(always)) for shard in shards]


@pytest.fixture
def size(served: list[Path]) -> int:
    return served[0].stat().st_size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def content(cache: ShardCache, entry: Entry) -> bytes:
    fd = cache.open(entry, always)
    try:
        return os.pread(fd, entry.version.size_bytes + 1, 0)
    finally:
        close_shard(fd)


def names(folder: Path, end: str) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.endswith(end)}


# --- what is there


def test_a_shard_is_downloaded_once_and_is_the_shard(
    served: list[Path], server: Server, entries: list[Entry], folder: Path
) -> None:
    for _ in range(2):
        for cache in (ShardCache(folder, ROOM), ShardCache(folder, ROOM)):
            for entry, shard in zip(entries, served, strict=True):
                assert content(cache, entry) == shard.read_bytes()
    assert set(server.sent_bytes.values()) == {served[0].stat().st_size}
    assert not names(folder, ".part")


def test_the_folder_is_its_owners_and_names_say_nothing(entries: list[Entry], folder: Path) -> None:
    content(ShardCache(folder, ROOM), entries[0])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert names(folder, "") == {"lock", f"{entries[0].key}.tar", f"{entries[0].key}.gpuidx"}
    assert len(entries[0].key) == 32
    assert int(entries[0].key, 16)


def test_what_it_did_is_counted(entries: list[Entry], folder: Path, size: int) -> None:
    cache = ShardCache(folder, ROOM)
    for entry in (entries[0], entries[1], entries[0], entries[0]):
        close_shard(cache.open_for_batch(entry, always))
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.downloaded_bytes, stats.held_bytes) == (2, 2, 2 * size, 2 * size)
    other = ShardCache(folder, ROOM).stats()
    assert (other.hits, other.misses, other.downloaded_bytes, other.held_bytes) == (0, 0, 0, 2 * size)


def test_by_default_it_takes_half_of_what_is_free(folder: Path, tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    assert ShardCache(folder, None).limit_bytes == pytest.approx(disk.f_bavail * disk.f_frsize / 2, rel=0.05)


def test_by_default_it_is_in_the_users_cache_folder() -> None:
    assert ShardCache(None, ROOM).folder == Path(os.environ["XDG_CACHE_HOME"]) / "gpuloader" / "shards"


# --- what goes


def test_what_was_used_longest_ago_goes_first(entries: list[Entry], folder: Path, size: int) -> None:
    cache = ShardCache(folder, 2 * size)
    for use, there in [(0, {0}), (1, {0, 1}), (0, {0, 1}), (2, {0, 2}), (3, {2, 3}), (0, {0, 3})]:
        content(cache, entries[use])
        assert names(folder, ".tar") == {f"{entries[number].key}.tar" for number in there}
        assert cache.held_bytes() <= cache.limit_bytes


def test_what_is_needed_next_goes_last(entries: list[Entry], folder: Path, size: int) -> None:
    cache = ShardCache(folder, 2 * size)
    content(cache, entries[0])
    content(cache, entries[1])
    cache.coming = frozenset({entries[0].key})
    content(cache, entries[2])
    assert names(folder, ".tar") == {f"{entries[number].key}.tar" for number in (0, 2)}
    cache.coming = frozenset({entries[0].key, entries[2].key, entries[3].key})
    cache.fetch(entries[3], always)  # ahead of need: there is only room in place of what is needed sooner
    assert not cache.has(entries[3])
    content(cache, entries[3])  # needed now
    assert cache.has(entries[3])
    assert cache.held_bytes() == 2 * size


def test_files_that_are_not_the_caches_stay_and_do_not_count(entries: list[Entry], folder: Path, size: int) -> None:
    folder.mkdir(mode=0o700)
    others = {folder / name: b"mine" for name in ("train-0000.tar", "a.b.tar", "mine.part", f"{entries[0].key}-1.tar")}
    for path, data in others.items():
        path.write_bytes(data)
        os.utime(path, ns=(1, 1))  # used longest ago
    cache = ShardCache(folder, size)
    for entry in entries[:2]:
        content(cache, entry)
        assert cache.held_bytes() == size
    assert {path: path.read_bytes() for path in others} == others


@pytest.mark.parametrize("who", ["this process", "another process"])
def test_what_is_in_use_stays(entries: list[Entry], folder: Path, size: int, who: str) -> None:
    cache = ShardCache(folder, 2 * size)
    content(cache, entries[0])
    path = folder / f"{entries[0].key}.tar"
    if who == "this process":
        fd = cache.open(entries[0], always)
    else:
        hold = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH); print(1, flush=True); input()"
        other = subprocess.Popen(
            [sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "1\n"
    content(cache, entries[1])
    content(cache, entries[2])
    content(cache, entries[3])
    assert path.exists()
    assert cache.held_bytes() == 2 * size
    if who == "this process":
        close_shard(fd)
    else:
        other.communicate("\n", timeout=300)
    content(cache, entries[1])
    assert not path.exists()


def test_who_needs_room_waits_until_a_shard_is_given_back(entries: list[Entry], folder: Path, size: int) -> None:
    cache = ShardCache(folder, size)
    fd = cache.open(entries[0], always)
    cache.fetch(entries[1], always)  # ahead of need, nobody waits
    assert not cache.has(entries[1])
    thread = threading.Thread(target=content, args=(cache, entries[1]))
    thread.start()
    time.sleep(0.2)
    assert thread.is_alive()
    close_shard(fd)
    thread.join(20)
    assert not thread.is_alive()
    assert cache.has(entries[1])
    fd = cache.open(entries[1], always)
    looks = iter([True] * 5)
    with pytest.raises(InterruptedError):
        cache.open(entries[0], lambda: next(looks, False))
    close_shard(fd)


def test_a_shard_larger_than_the_cache_is_an_error(entries: list[Entry], folder: Path, size: int) -> None:
    ShardCache(folder, size).check_fits(entries[0])
    with pytest.raises(ConfigError, match=rf"max_bytes={size - 1}\): .*has {size} bytes"):
        ShardCache(folder, size - 1).check_fits(entries[0])


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file'\) cannot be used: File exists: name another folder"):
        ShardCache(tmp_path / "file", ROOM)


@pytest.mark.parametrize("ranges", ["yes", "ignored"])
def test_a_folder_that_is_full_is_an_error_and_leaves_what_can_go_on(
    entries: list[Entry], server: Server, folder: Path, size: int, ranges: str
) -> None:
    server.ranges = ranges
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"  # writing more fails
    result = warm().run(full + WORK, entries[0].shard.url, folder, ROOM)
    part = folder / f"{entries[0].key}.{size}.part"
    assert f"ConfigError: {part} cannot be written: File too large" in result.stderr
    assert part.stat().st_size == 10_000


def test_a_folder_without_room_for_its_lock_is_an_error(folder: Path) -> None:
    with full_disk(0), pytest.raises(ConfigError, match=rf"{folder}/lock cannot be written: .*: make room"):
        ShardCache(folder, ROOM)


# --- what others put there


PLACES = {
    "lock": lambda entry: "lock",
    "shard": lambda entry: f"{entry.key}.tar",
    "part": lambda entry: f"{entry.key}.{entry.version.size_bytes}.part",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("kind", "says"), [("link", "it is a link"), ("folder", "a folder"), ("pipe", "a folder or a pipe")]
)
def test_what_is_no_file_in_the_place_of_one_is_an_error(
    entries: list[Entry], folder: Path, tmp_path: Path, place: str, kind: str, says: str
) -> None:
    folder.mkdir(mode=0o700)
    path, other = folder / PLACES[place](entries[0]), tmp_path / "precious"
    other.write_bytes(b"mine")
    {"link": lambda: path.symlink_to(other), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}[kind]()
    with pytest.raises(ConfigError, match=f"{path.name}: a file of the cache cannot be opened: .*Remove it") as caught:
        content(ShardCache(folder, ROOM), entries[0])
    assert says in str(caught.value) or "Is a directory" in str(caught.value)
    assert other.read_bytes() == b"mine"
    if place != "lock":
        assert ShardCache(folder, ROOM).held_bytes() == 0  # it is not the cache's


@pytest.mark.parametrize(
    ("mode", "owner", "allowed"),
    [(0o700, None, True), (0o755, None, True), (0o775, None, False), (0o777, None, False), (0o1777, None, False)]
    + [(0o700, 12345, False)] * (os.geteuid() == 0),
)
def test_a_folder_that_others_may_write_to_is_refused(
    folder: Path, mode: int, owner: int | None, allowed: bool
) -> None:
    folder.mkdir()
    folder.chmod(mode)
    if owner is not None:
        os.chown(folder, owner, owner)
    if allowed:
        ShardCache(folder, ROOM)
    else:
        with pytest.raises(ConfigError, match=rf"has owner \d+ and mode {mode:o}"):
            ShardCache(folder, ROOM)
        assert ShardCache(folder / "shards", ROOM).folder.is_dir()  # as the error advises


# --- what is wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_checksum_beside_the_shard_is_compared(
    entries: list[Entry], served: list[Path], folder: Path, wrong: bool
) -> None:
    digest = hashlib.sha256(served[0].read_bytes() + b"?" * wrong).hexdigest()
    Path(f"{served[0]}.sha256").write_text(f"{digest}  {served[0].name}\n")
    cache = ShardCache(folder, ROOM)
    if wrong:
        with pytest.raises(DataError, match=f"but it should have {digest}"):
            content(cache, entries[0])
        assert names(folder, "") == {"lock"}
    else:
        assert content(cache, entries[0]) == served[0].read_bytes()


def test_a_page_in_the_place_of_a_checksum_is_none(entries: list[Entry], served: list[Path], folder: Path) -> None:
    Path(f"{served[0]}.sha256").write_text("<!DOCTYPE html>" + "a" * 100)
    assert content(ShardCache(folder, ROOM), entries[0]) == served[0].read_bytes()


def test_a_page_in_the_place_of_a_shard_is_an_error(server: Server, folder: Path) -> None:
    for method in ("HEAD", "GET"):
        server.fault("page.tar", "html", method=method)
    shard = RemoteShard(f"{server.url}/page.tar")
    with pytest.raises(TarError, match=r"/page\.tar: not a tar file"):
        content(ShardCache(folder, ROOM), Entry(shard, shard.version(always)))
    assert names(folder, "") == {"lock"}


def test_a_shard_that_changed_on_the_store_is_an_error(entries: list[Entry], served: list[Path], folder: Path) -> None:
    cache = ShardCache(folder, ROOM)
    content(cache, entries[0])
    for shard in served[:2]:
        os.utime(shard, ns=(1, 1))
    content(cache, entries[0])  # that version is here
    with pytest.raises(ShardChangedError, match=r"train-0001\.tar has"):
        content(cache, entries[1])
    assert not names(folder, ".part")


# --- what broke off


def test_a_partial_download_counts_in_full_and_goes_like_the_others(
    entries: list[Entry], folder: Path, size: int
) -> None:
    cache = ShardCache(folder, 2 * size)
    (folder / f"{entries[0].key}.{size}.part").write_bytes(b"1")
    assert cache.held_bytes() == size
    content(cache, entries[1])
    content(cache, entries[2])
    assert not names(folder, ".part")
    assert names(folder, ".tar") == {f"{entries[number].key}.tar" for number in (1, 2)}


def test_what_a_machine_that_stopped_may_have_lost_is_downloaded_again(
    entries: list[Entry], served: list[Path], folder: Path, size: int
) -> None:
    ShardCache(folder, ROOM)
    (folder / "lock").write_text("another start of the machine")
    part = folder / f"{entries[0].key}.{size}.part"
    data = served[0].read_bytes()
    last_image = data.rfind(b"\xff\xd8\xff")
    part.write_bytes(data[: last_image + 100] + bytes(200))  # the last block was not written: no header is hurt
    others = folder / "0.part"
    others.write_bytes(b"mine")
    cache = ShardCache(folder, ROOM)
    assert not part.exists()
    assert others.exists()
    assert content(cache, entries[0]) == data
    (folder / f"{entries[1].key}.{size}.part").write_bytes(served[1].read_bytes()[:1000])
    content(ShardCache(folder, ROOM), entries[1])  # since the same start
    assert ShardCache(folder, ROOM).held_bytes() == 2 * size
    assert cache.stats().downloaded_bytes == size


@pytest.mark.parametrize("checksum", [False, True])
def test_what_was_here_of_a_shard_and_is_damaged_is_downloaded_again(
    entries: list[Entry], served: list[Path], folder: Path, size: int, checksum: bool
) -> None:
    data = bytearray(served[0].read_bytes())
    if checksum:
        Path(f"{served[0]}.sha256").write_text(hashlib.sha256(data).hexdigest())
    damaged = data.copy()
    first = damaged.find(b"\xff\xd8\xff") if checksum else 0  # an image, or a header
    damaged[first + 200 : first + 300] = bytes(100)
    damaged[first : first + 4] = bytes(4)
    cache = ShardCache(folder, ROOM)
    (folder / f"{entries[0].key}.{size}.part").write_bytes(damaged[: size // 2])
    assert content(cache, entries[0]) == data


WORK = (
    "import sys\n"
    "from pathlib import Path\n"
    "from gpuloader.shards.remote import Entry, RemoteShard, ShardCache\n"
    "always = lambda: True\n"
    "shard = RemoteShard(sys.argv[1])\n"
    "entry = Entry(shard, shard.version(always))\n"
    "cache = ShardCache(Path(sys.argv[2]), int(sys.argv[3]))\n"
    "print('ready', flush=True); sys.stdin.readline()\n"
    "cache.open(entry, always)\n"
    "print(cache.stats().downloaded_bytes, flush=True)"
)


def begin(entry: Entry, folder: Path, limit: int = ROOM) -> Program:
    process = Program(WORK, entry.shard.url, folder, limit, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()
    return process


def test_a_download_whose_process_was_killed_goes_on(
    entries: list[Entry], served: list[Path], server: Server, folder: Path, size: int
) -> None:
    server.bytes_per_second = 100_000
    process = begin(entries[0], folder)
    part = folder / f"{entries[0].key}.{size}.part"
    wait_for(lambda: part.exists() and part.stat().st_size)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    here = part.stat().st_size
    assert 0 < here < size
    server.bytes_per_second = 0
    cache = ShardCache(folder, ROOM)
    assert content(cache, entries[0]) == served[0].read_bytes()
    assert cache.stats().downloaded_bytes == size - here
    assert not part.exists()


def test_processes_that_ask_at_once_download_once(
    entries: list[Entry], server: Server, folder: Path, size: int
) -> None:
    server.bytes_per_second = 100_000
    processes = [begin(entries[0], folder) for _ in range(3)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert sorted(map(int, outputs)) == [0, 0, size]
    assert server.sent_bytes["train-0000.tar"] == size


def test_who_waits_for_another_ones_download_says_so_and_can_give_up(
    entries: list[Entry], folder: Path, size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gpuloader.shards.remote.cache.TELL_SECONDS", 0.1)
    cache = ShardCache(folder, ROOM)
    with (folder / f"{entries[0].key}.{size}.part").open("wb") as part, caplog.at_level(logging.INFO):
        part.write(b"x" * 100)
        part.flush()
        fcntl.flock(part, fcntl.LOCK_EX)
        with pytest.raises(InterruptedError):
            cache.open(entries[0], lambda: "waiting for" not in caplog.text)
    assert f"waiting for {entries[0].shard}: 100 of {size} bytes are downloaded" in caplog.text
