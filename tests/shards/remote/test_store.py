"""One object on a store: a server that goes wrong in every way, and what is made of it."""

from __future__ import annotations

import asyncio
import importlib
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from serving import ENDLESS_BYTES, SOON, Server

from gpuloader.errors import ConfigError, GPULoaderError, RemoteError, ShardChangedError, ShardNotFoundError
from gpuloader.shards.remote import Entry, RemoteShard, requests, store, urls

pytestmark = pytest.mark.slow(kept=24, of="stores")

SIZE = 100_000
CONTENT = bytes(i * i % 251 for i in range(SIZE))


def always() -> bool:
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.tar").write_bytes(CONTENT)
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    """Serves one object."""
    with Server(folder) as running:
        yield running


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryFileSystem]:
    """fsspec's store in memory, which stands for those that cannot be reached from here."""
    monkeypatch.setattr(urls, "PROTOCOLS", (*urls.PROTOCOLS, "memory"))
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()


def downloaded(shard: RemoteShard, path: Path) -> bytes:
    with io.FileIO(path, "a+") as file:
        shard.download(shard.version(always), file, always, lambda _: None)
    return path.read_bytes()


# --- what works


def test_a_version_is_size_and_tag(server: Server, folder: Path) -> None:
    shard = RemoteShard(f"{server.url}/a.tar")
    first = shard.version(always)
    assert (first.size_bytes, first.tag) == (SIZE, f'"{(folder / "a.tar").stat().st_mtime_ns:x}"')
    assert shard.version(always) == first
    os.utime(folder / "a.tar", ns=(1, 1))
    assert shard.version(always) != first


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, SIZE), (12_345, 54_321), (SIZE - 1, SIZE)])
def test_a_part_is_that_part(server: Server, start: int, end: int) -> None:
    shard = RemoteShard(f"{server.url}/a.tar")
    assert shard.read(shard.version(always), start, end, always) == CONTENT[start:end]
    assert server.sent_bytes["a.tar"] == end - start


@pytest.mark.parametrize("ranges", ["yes", "ignored", "refused"])
def test_a_download_is_the_object(server: Server, tmp_path: Path, ranges: str) -> None:
    server.ranges = ranges
    assert downloaded(RemoteShard(f"{server.url}/a.tar"), tmp_path / "out") == CONTENT
    assert server.asked["GET", "a.tar"] == 1


def test_an_empty_object_is_downloaded(server: Server, folder: Path) -> None:
    (folder / "empty").touch()
    assert downloaded(RemoteShard(f"{server.url}/empty"), folder / "out") == b""


def test_a_download_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(CONTENT[:70_000])
    assert downloaded(RemoteShard(f"{server.url}/a.tar"), tmp_path / "out") == CONTENT
    assert server.sent_bytes["a.tar"] == SIZE - 70_000


def test_a_small_object_is_read_whole_and_one_that_is_not_there_is_none(server: Server) -> None:
    assert RemoteShard(f"{server.url}/a.tar").read_small(SIZE, always) == CONTENT
    assert RemoteShard(f"{server.url}/b.tar").read_small(SIZE, always) is None
    server.fault("a.tar", "403")
    assert RemoteShard(f"{server.url}/a.tar").read_small(SIZE, always) is None


def test_redirects_are_followed(server: Server, tmp_path: Path) -> None:
    for method in ("HEAD", "GET"):
        server.fault("moved.tar", f"redirect {server.url}/a.tar", method=method)
    assert downloaded(RemoteShard(f"{server.url}/moved.tar"), tmp_path / "out") == CONTENT


# --- what is said in headers

ODD = '"\xff\xfe\x80"'  # no UTF-8, but bytes that HTTP allows in an entity tag


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": ODD},
        {"ETag": '"' + "x" * 7000 + '"'},
        {"ETag": None, "Last-Modified": ODD},
        {"ETag": None, "Last-Modified": None},
        {"Accept-Ranges": ODD, "Content-Type": ODD, "Server": ODD},
    ],
    ids=ascii,
)
def test_any_bytes_may_tell_versions_apart(
    server: Server, folder: Path, tmp_path: Path, headers: dict[str, str | None]
) -> None:
    server.headers = headers
    shard = RemoteShard(f"{server.url}/a.tar")
    version = shard.version(always)
    assert shard.version(always) == version
    assert shard.read(version, 100, 200, always) == CONTENT[100:200]
    assert downloaded(shard, tmp_path / "out") == CONTENT
    keys = {Entry(shard, replace(version, tag=tag)).key for tag in (version.tag, version.tag + "\udcff", "\ud800", "?")}
    assert len(keys) == 4  # different versions are different files of the cache
    server.headers = {"ETag": '"another"', "Last-Modified": None}
    if version.tag:
        with pytest.raises(ShardChangedError, match="another") as caught:
            shard.check_version(version, always)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"Content-Range": ODD}, r"""the part '"\udcff\udcfe\udc80"' came in place of 'bytes 100-199/100000'"""),
        ({"Content-Range": "bytes 100-199/" + "9" * 5000}, "the part 'bytes 100-199/9999"),
        ({"Content-Range": "x" * 7000}, "the part 'xxxxx"),
    ],
    ids=ascii,
)
def test_headers_of_a_part_that_cannot_be_read_are_an_error(
    server: Server, headers: dict[str, str | None], says: str
) -> None:
    shard = RemoteShard(f"{server.url}/a.tar")
    version = shard.version(always)
    server.headers = headers
    with pytest.raises(RemoteError) as caught:
        shard.read(version, 100, 200, always)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "place", ["/\xff\xfe", "http://\xff\xfe/a.tar", "http://127.0.0.1:99999/", "http://[", "//", ""]
)
def test_a_redirect_that_cannot_be_read_is_an_error(server: Server, place: str) -> None:
    for method in ("HEAD", "GET"):
        server.fault("moved.tar", f"redirect {place}", method=method)
    with pytest.raises(GPULoaderError) as caught:
        RemoteShard(f"{server.url}/moved.tar").version(always)
    assert "/moved.tar" in str(caught.value)


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"size": -5}, "the store does not say how large it is"),
        ({"size": "5"}, "the store does not say how large it is"),
        ({"size": 5, "md5Hash": "abcde"}, "Error: "),
        ({"size": 5, "md5Hash": 3}, "TypeError: "),
        ({"size": 5, "ETag": 10**5000}, "ValueError: "),
    ],
    ids=lambda value: None if isinstance(value, str) else ascii(list(value)),
)
def test_what_a_store_says_that_cannot_be_read_is_an_error(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, info: dict[str, object], says: str
) -> None:
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *_: {"name": "a.tar", "type": "file", **info})
    with pytest.raises(RemoteError, match=says):
        RemoteShard("memory://bucket/a.tar").version(always)


# --- what goes wrong once


@pytest.mark.parametrize("ranges", ["yes", "ignored"])
@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("fault", ["500", "503", "429", "408", "drop"])
def test_what_goes_wrong_once_is_tried_again(
    server: Server, tmp_path: Path, fault: str, method: str, ranges: str
) -> None:
    server.ranges = ranges
    server.fault("a.tar", fault, times=2, method=method)
    if method == "HEAD":
        server.fault("a.tar", fault, times=1, method="GET")  # fsspec tries that before it gives up
    assert downloaded(RemoteShard(f"{server.url}/a.tar"), tmp_path / "out") == CONTENT


def test_a_server_that_is_silent_is_asked_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "REQUEST_SECONDS", 0.3)
    server.fault("a.tar", "silent", times=1)
    assert downloaded(RemoteShard(f"{server.url}/a.tar"), tmp_path / "out") == CONTENT


@pytest.mark.parametrize("broken", ["each connection", "once behind a page"])
def test_what_came_is_kept(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setattr(store, "PROGRESS_BYTES", 10_000)
    if broken == "each connection":
        server.fault("a.tar", "drop 10000")
        tries = 10
    else:
        (tmp_path / "out").write_bytes(CONTENT[:70_000])
        server.fault("a.tar", "html", times=2)
        tries = 3
    assert downloaded(RemoteShard(f"{server.url}/a.tar"), tmp_path / "out") == CONTENT
    assert server.asked["GET", "a.tar"] >= tries


def test_a_slow_server_gets_on(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(requests, "SLOWEST_BYTES_PER_SECOND", 1000)
    server.bytes_per_second = 50_000
    assert downloaded(RemoteShard(f"{server.url}/a.tar"), tmp_path / "out") == CONTENT


@pytest.mark.parametrize("ranges", ["yes", "ignored"])
def test_a_server_that_is_too_slow_is_given_up(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: str
) -> None:
    monkeypatch.setattr(requests, "REQUEST_SECONDS", 0.3)
    server.bytes_per_second = 2000
    server.ranges = ranges
    with pytest.raises(RemoteError, match=r"too slow \(5 tries\)"):
        downloaded(RemoteShard(f"{server.url}/a.tar"), tmp_path / "out")


def test_blocks_of_other_stores_are_as_large_as_what_comes(
    memory: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in [("PROGRESS_BYTES", 10_000), ("FIRST_BLOCK_BYTES", 4000), ("BLOCK_BYTES", 30_000)]:
        monkeypatch.setattr(store, name, count)
    memory.pipe("/bucket/a.tar", CONTENT)
    asked, cat_file = [], memory.cat_file

    def breaks(path: str, start: int, end: int) -> bytes:
        asked.append(end - start)
        if end - start > 10_000:
            raise OSError("the connection broke")
        return bytes(cat_file(path, start=start, end=end))

    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda _, *args, **options: breaks(*args, **options))
    assert downloaded(RemoteShard("memory://bucket/a.tar"), tmp_path / "out") == CONTENT
    assert asked[:4] == [4000, 8000, 16_000, 4000]


def test_a_server_that_asks_for_a_pause_gets_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paused: list[float] = []
    monkeypatch.setattr(store, "pause", lambda seconds, _: paused.append(seconds))
    server.fault("a.tar", "503 33", times=2)
    with caplog.at_level(logging.INFO, "gpuloader"):
        assert downloaded(RemoteShard(f"{server.url}/a.tar"), tmp_path / "out") == CONTENT
    assert set(paused) == {33}
    assert "/a.tar: HTTP 503 Service Unavailable: trying again in 33 s" in caplog.text


# --- what goes wrong


@pytest.mark.parametrize(
    ("fault", "says", "tries"),
    [
        ("500", "HTTP 500 Internal Server Error", 5),
        ("503", "HTTP 503", 5),
        ("403", "HTTP 403 Forbidden", 1),
        ("401", "HTTP 401 Unauthorized", 1),
        ("400", "HTTP 400 Bad Request", 1),
        ("drop", "ClientPayloadError", 5),
        ("redirect file:///etc/passwd", "RedirectClientError", 1),
        ("redirect ftp://127.0.0.1/a.tar", "RedirectClientError", 1),
    ],
)
def test_an_object_that_does_not_come_is_an_error_that_says_why(
    server: Server, tmp_path: Path, fault: str, says: str, tries: int
) -> None:
    shard = RemoteShard(f"{server.url}/a.tar")
    server.fault("a.tar", fault)
    with pytest.raises(RemoteError) as caught:
        downloaded(shard, tmp_path / "out")
    assert (caught.value.url, caught.value.tries) == (str(shard), tries)
    assert says in caught.value.problem
    assert str(shard) in str(caught.value)
    assert "root:" not in str(caught.value)


def test_a_store_that_is_not_there_is_an_error(server: Server) -> None:
    server.stop()
    with pytest.raises(RemoteError, match=r"Cannot connect to host .* \(5 tries\)") as caught:
        RemoteShard(f"{server.url}/a.tar").version(always)
    assert caught.value.tries == 5


def test_an_object_that_is_not_there_is_an_error(server: Server) -> None:
    with pytest.raises(ShardNotFoundError, match=r"no such object: http://.*/b\.tar"):
        RemoteShard(f"{server.url}/b.tar").version(always)
    assert server.asked["HEAD", "b.tar"] == 1


def test_a_store_that_does_not_say_the_size_is_an_error(server: Server) -> None:
    server.fault("a.tar", "no length", method="HEAD")
    server.fault("a.tar", "no length")
    with pytest.raises(RemoteError, match="the store does not say how large it is"):
        RemoteShard(f"{server.url}/a.tar").version(always)


def test_a_small_object_that_is_not_small_is_none_and_not_read(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    shard = RemoteShard(f"{server.url}/a.tar")
    assert shard.read_small(SIZE - 1, always) is None
    server.fault("a.tar", "endless")
    with caplog.at_level(logging.INFO, "gpuloader"):
        assert shard.read_small(SIZE, always) is None
    assert f"{shard} has more than {SIZE} bytes; the object is ignored" in caplog.text
    assert server.sent_bytes["a.tar"] < ENDLESS_BYTES / 2


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_an_object_that_changes_is_an_error(server: Server, folder: Path, when: str) -> None:
    shard = RemoteShard(f"{server.url}/a.tar")
    version = shard.version(always)

    def change(_: int) -> None:
        (folder / "a.tar").write_bytes(CONTENT[::-1])

    if when == "before":
        change(0)
    with (folder / "out").open("ab", buffering=0) as file, pytest.raises(ShardChangedError, match=r"/a\.tar has"):
        shard.download(version, file, always, change)


# --- what was not asked for, by HTTP and by S3, whose objects are asked for as files on a server of HTTP are


Stored: TypeAlias = tuple[Server, str, RemoteShard]


@pytest.fixture(params=["http", "s3"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    """A server, its only file, which is in a bucket, and that as a shard."""
    (tmp_path / "served" / "bucket").mkdir(parents=True)
    (tmp_path / "served" / "bucket" / "a.tar").write_bytes(CONTENT)
    (tmp_path / "out").write_bytes(CONTENT[:1000])
    for name, value in [("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", SECRET), ("DEFAULT_REGION", "us-east-1")]:
        monkeypatch.setenv(f"AWS_{name}", value)
    with Server(tmp_path / "served") as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        requests.file_system.cache_clear()
        start = running.url if request.param == "http" else "s3:/"
        yield running, "bucket/a.tar", RemoteShard(f"{start}/bucket/a.tar")
        requests.file_system.cache_clear()


@pytest.mark.parametrize("how", ["read", "download"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("endless", r"more than the \d+ bytes"),
        ("elsewhere", r"the part 'bytes 488-\d+/100000' came in place"),
        ("less", r"\d+ bytes came in place of"),
        ("long", r"\d+ bytes came in place of"),
    ],
)
def test_what_was_not_asked_for_is_not_taken(stored: Stored, tmp_path: Path, how: str, fault: str, says: str) -> None:
    server, name, shard = stored
    version = shard.version(always)
    server.fault(name, fault)
    with pytest.raises(RemoteError, match=says):
        _ = shard.read(version, 1000, 2000, always) if how == "read" else downloaded(shard, tmp_path / "out")
    assert CONTENT.startswith((tmp_path / "out").read_bytes())
    assert server.sent_bytes[name] < 5 * ENDLESS_BYTES / 2  # what fits into sockets, in each try


@pytest.mark.parametrize("ranges", ["yes", "ignored"])
def test_another_version_in_an_answer_is_an_error(stored: Stored, tmp_path: Path, ranges: str) -> None:
    server, name, shard = stored
    server.ranges = ranges
    server.fault(name, "etag")
    with pytest.raises(ShardChangedError, match='now has the ETag "another"'):
        downloaded(shard, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == CONTENT[:1000]


def test_a_server_without_ranges_gives_no_parts_and_no_more_than_all(stored: Stored, tmp_path: Path) -> None:
    server, name, shard = stored
    server.ranges = "ignored"
    assert shard.read(shard.version(always), 10, 20, always) is None
    (tmp_path / "out").write_bytes(b"?" * 70_000)
    assert downloaded(shard, tmp_path / "out") == CONTENT
    server.fault(name, "endless")
    assert shard.read(shard.version(always), 10, 20, always) is None
    with pytest.raises(RemoteError, match=r"more than the \d+ bytes"):
        downloaded(shard, tmp_path / "again")
    assert (tmp_path / "again").stat().st_size <= SIZE
    assert server.sent_bytes[name] < 6 * ENDLESS_BYTES / 2


# --- giving up


@pytest.mark.parametrize("where", ["in a request", "in a pause"])
def test_what_is_not_wanted_any_more_ends_soon(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(store, "FIRST_PAUSE_SECONDS", 60)
    shard = RemoteShard(f"{server.url}/a.tar")
    version = shard.version(always)
    server.fault("a.tar", "silent" if where == "in a request" else "500")
    given_up = threading.Event()
    threading.Timer(0.3, given_up.set).start()
    started = time.monotonic()
    with pytest.raises(InterruptedError):
        shard.read(version, 0, 1, lambda: not given_up.is_set())
    assert time.monotonic() - started < SOON


def test_a_download_that_is_not_wanted_any_more_ends_though_bytes_come(server: Server, folder: Path) -> None:
    shard, came = RemoteShard(f"{server.url}/a.tar"), list[int]()
    server.bytes_per_second = 400_000  # a piece comes before each look
    with (folder / "out").open("ab", buffering=0) as file, pytest.raises(InterruptedError):
        shard.download(shard.version(always), file, lambda: not came, came.append)
    assert (folder / "out").read_bytes() == CONTENT[: sum(came)]
    assert sum(came) < SIZE


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_a_request_that_is_cancelled_in_its_loop_ends(server: Server, begun: bool) -> None:
    shard, loop = RemoteShard(f"{server.url}/a.tar"), requests.file_system("http", os.getpid()).loop
    version = shard.version(always)
    server.fault("a.tar", "silent")

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    if begun:
        threading.Timer(0.3, lambda: loop.call_soon_threadsafe(cancel)).start()
    else:  # the loop is busy until the request is there, and then cancels it at once
        loop.call_soon_threadsafe(lambda: (time.sleep(0.3), loop.call_soon(cancel)))
    with pytest.raises(asyncio.CancelledError):
        shard.read(version, 0, 1, always)


# --- secrets


SECRET = "hunter2"
SECRET_URLS = [
    f"http://user:{SECRET}@127.0.0.1:1/a.tar",
    f"http://127.0.0.1:1/a.tar?X-Amz-Signature={SECRET}",
    f"http://127.0.0.1:1/a.tar?X-Amz-Signature={SECRET}&x=1",
    f"s3://key:{SECRET}@bucket/a.tar",
]


@pytest.mark.parametrize("url", SECRET_URLS)
def test_a_shard_is_shown_without_secrets(url: str) -> None:
    shard = RemoteShard(url)
    assert shard.name == "a.tar"
    assert SECRET not in f"{shard} {shard!r} {shard.beside('.gpuidx')}"
    assert shard.beside(".gpuidx").name == "a.tar.gpuidx"
    assert SECRET in shard.beside(".gpuidx").url  # and it can be asked for


@pytest.mark.parametrize("fault", ["", "500", "403", "404", "redirect file:///etc/passwd", "drop"])
def test_errors_and_logs_have_no_secrets(
    server: Server, tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    host = server.url.removeprefix("http://")
    shard = RemoteShard(f"http://user:{SECRET}@{host}/a.tar?X-Amz-Signature={SECRET}")
    if fault:
        server.fault("a.tar", fault)
    else:
        server.stop()
    with pytest.raises(GPULoaderError) as caught:
        downloaded(shard, tmp_path / "out")
    error: BaseException | None = caught.value
    assert SECRET not in f"{error} {error!r}"
    assert error is not None
    assert error.__cause__ is None
    assert error.__context__ is None  # which a traceback would show
    assert SECRET not in caplog.text


# --- the ways to stores


@pytest.mark.parametrize("protocol", ["s3", "gs", "hf", "http"])
def test_a_protocol_whose_packages_are_not_here_says_what_to_install(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "http": "aiohttp"}[protocol]
    monkeypatch.setitem(sys.modules, needs, None)
    monkeypatch.delitem(importlib.import_module("fsspec.registry")._registry, protocol, raising=False)
    if protocol == "http":
        monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    requests.file_system.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'gpuloader\[remote\]'"):
        RemoteShard(f"{protocol}://bucket/a.tar").version(always)
    requests.file_system.cache_clear()


def test_any_file_system_of_fsspec_will_do(memory: MemoryFileSystem, tmp_path: Path) -> None:
    memory.pipe("/bucket/a.tar", CONTENT)
    memory.pipe("/bucket/b.tar", b"")
    memory.pipe("/bucket/deep/c.tar", b"")
    shard = RemoteShard("memory://bucket/a.tar")
    assert store.list_shards("memory://bucket/*.tar") == [shard, RemoteShard("memory://bucket/b.tar")]
    first = shard.version(always)
    assert shard.read(first, 10, 20, always) == CONTENT[10:20]
    assert shard.read_small(SIZE, always) == CONTENT
    assert shard.read_small(SIZE - 1, always) is None
    (tmp_path / "out").write_bytes(CONTENT[:100])
    assert downloaded(shard, tmp_path / "out") == CONTENT
    memory.pipe("/bucket/a.tar", CONTENT)
    assert shard.version(always) != first  # it is another one, with another time
    with pytest.raises(ShardNotFoundError, match=r"no such object: memory://bucket/d\.tar"):
        RemoteShard("memory://bucket/d.tar").version(always)
    with pytest.raises(ShardNotFoundError, match="is a folder: end its URL with a slash"):
        RemoteShard("memory://bucket/deep").version(always)


@pytest.mark.parametrize(
    ("info", "checksum"),
    [
        ({"md5Hash": "XUFAKrxLKna5cZ2REBfFkg=="}, ("md5", "5d41402abc4b2a76b9719d911017c592")),
        ({"lfs": {"sha256": "ab" * 32, "size": 5}}, ("sha256", "ab" * 32)),
        ({"ETag": '"5d41402abc4b2a76b9719d911017c592"'}, None),  # of an encrypted object, this is no MD5
        ({"lfs": None}, None),
    ],
)
def test_a_checksum_is_taken_where_the_store_says_what_it_is(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, info: dict[str, Any], checksum: object
) -> None:
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *_: {"size": 5, **info})
    assert RemoteShard("memory://bucket/a.tar").version(always).checksum == checksum
