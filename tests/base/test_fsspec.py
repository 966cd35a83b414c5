"""Each test asks a server through fsspec, and fails where that is not as gpuloader.base.fsspec takes it to be."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import pytest
import s3fs
from fsspec.asyn import AsyncFileSystem
from serving import ENDLESS_BYTES, Server

from gpuloader.base.fsspec import HttpResponse, begin, get, get_from_s3, what_happened

OTHER_SIDE = f"fsspec {fsspec.__version__} with aiohttp {aiohttp.__version__} and s3fs {s3fs.__version__}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "bucket").mkdir()
    for name in ("a.txt", "bucket/b.txt"):
        (tmp_path / name).write_bytes(b"0123456789")
    with Server(tmp_path) as running:
        yield running


@pytest.fixture
def store() -> AsyncFileSystem:
    return fsspec.filesystem("http", skip_instance_cache=True)


@pytest.fixture
def s3(server: Server) -> s3fs.S3FileSystem:
    """An object of S3 is asked for as a file on a server of HTTP is."""
    given = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    return s3fs.S3FileSystem(skip_instance_cache=True, endpoint_url=server.url, client_kwargs=given)


def run(store: Any, coroutine: Any) -> Any:  # noqa: ANN401
    return asyncio.run_coroutine_threadsafe(coroutine, store.loop).result(60)


async def read(answer: Coroutine[Any, Any, HttpResponse]) -> tuple[int, str, bytes]:
    """Status, length and content of an answer, which is read by little pieces."""
    got = await answer
    pieces = []
    while piece := await got.read(4):
        assert len(piece) <= 4
        pieces.append(piece)
    got.close()
    return got.status, got.headers["content-length"], b"".join(pieces)


@pytest.mark.parametrize(
    ("what", "options", "gives"), [("info", {}, {"size": 10}), ("cat_file", {"start": 2, "end": 5}, b"234")]
)
def test_a_method_has_a_coroutine(server: Server, store: Any, what: str, options: dict[str, int], gives: Any) -> None:  # noqa: ANN401
    given = run(store, begin(store, what, f"{server.url}/a.txt", **options))
    assert (gives if isinstance(gives, bytes) else {**given, **gives}) == given


@pytest.mark.parametrize("what", ["info", "cat_file"])
def test_so_it_has_on_the_other_stores(what: str) -> None:
    assert inspect.iscoroutinefunction(getattr(s3fs.S3FileSystem, f"_{what}"))


PART = {"Range": "bytes=2-4"}


@pytest.mark.parametrize(
    ("each", "headers", "status", "data"),
    [({}, {}, 200, b"0123456789"), ({}, PART, 206, b"234"), (PART, {}, 206, b"234")],
    ids=["nothing", "a part", "a part in each request"],
)
def test_an_answer_of_http_is_to_what_was_asked(
    server: Server, each: dict[str, str], headers: dict[str, str], status: int, data: bytes
) -> None:
    store = fsspec.filesystem("http", skip_instance_cache=True, headers=each)
    assert run(store, read(get(store, f"{server.url}/a.txt", headers))) == (status, str(len(data)), data)


@pytest.mark.parametrize(("headers", "status", "data"), [({}, 200, b"0123456789"), (PART, 206, b"234")])
def test_an_answer_of_s3_is_to_what_was_asked(
    server: Server, s3: s3fs.S3FileSystem, headers: dict[str, str], status: int, data: bytes
) -> None:
    assert run(s3, read(get_from_s3(s3, "bucket/b.txt", headers))) == (status, str(len(data)), data)


@pytest.mark.parametrize(
    ("status", "kind"), [("403", PermissionError), ("404", FileNotFoundError), ("410", OSError)], ids=str
)
def test_an_error_of_s3_is_s3fss(server: Server, s3: Any, status: str, kind: type[OSError]) -> None:  # noqa: ANN401
    server.fault("bucket/b.txt", status)
    with pytest.raises(kind) as caught:
        run(s3, get_from_s3(s3, "bucket/b.txt", {}))
    assert caught.value.__cause__.response["ResponseMetadata"]["HTTPStatusCode"] == int(status)  # type: ignore[union-attr]


@pytest.mark.parametrize("protocol", ["http", "s3"])
def test_what_is_not_read_of_an_answer_does_not_come(
    server: Server, store: AsyncFileSystem, s3: s3fs.S3FileSystem, protocol: str
) -> None:
    server.fault("bucket/b.txt", "endless")

    async def read_little(answer: Any) -> int:  # noqa: ANN401
        got = await answer
        count = len(await got.read(4))
        await asyncio.sleep(0.5)  # in which all would come
        got.close()
        return count

    if protocol == "http":
        assert run(store, read_little(get(store, f"{server.url}/bucket/b.txt", {}))) == 4
    else:
        assert run(s3, read_little(get_from_s3(s3, "bucket/b.txt", {}))) == 4
    assert server.sent_bytes["bucket/b.txt"] < ENDLESS_BYTES / 2


@pytest.mark.parametrize("status", [404, 503])
def test_an_error_of_http_is_found_in_the_missing_file_that_it_is_called(
    server: Server, store: AsyncFileSystem, status: int
) -> None:
    for method in ("HEAD", "GET"):
        server.fault("a.txt", str(status), method=method)
    with pytest.raises(FileNotFoundError) as caught:
        store.info(f"{server.url}/a.txt")
    happened = what_happened(caught.value)
    assert isinstance(happened, aiohttp.ClientResponseError)
    assert happened.status == status


def test_a_missing_file_is_itself() -> None:
    error = FileNotFoundError("a")
    assert what_happened(error) is error
