"""Each test asks a server through fsspec, and fails where that is not as gpuloader.internals.fsspec takes it to be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import pytest
import s3fs
from serving import Server

from gpuloader.internals.fsspec import begin, get, what_happened

OTHER_SIDE = f"fsspec {fsspec.__version__} with aiohttp {aiohttp.__version__} and s3fs {s3fs.__version__}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "a.txt").write_bytes(b"0123456789")
    with Server(tmp_path) as running:
        yield running


@pytest.fixture
def store() -> Any:  # noqa: ANN401
    return fsspec.filesystem("http", skip_instance_cache=True, headers={"Accept-Encoding": "gzip"})


def run(store: Any, coroutine: Any) -> Any:  # noqa: ANN401
    return asyncio.run_coroutine_threadsafe(coroutine, store.loop).result(60)


@pytest.mark.parametrize(
    ("what", "options", "gives"),
    [
        ("info", {}, {"size": 10}),
        ("cat_file", {"start": 2, "end": 5}, b"234"),
    ],
)
def test_a_method_has_a_coroutine(server: Server, store: Any, what: str, options: dict[str, int], gives: Any) -> None:  # noqa: ANN401
    given = run(store, begin(store, what, f"{server.url}/a.txt", **options))
    assert (gives if isinstance(gives, bytes) else {**given, **gives}) == given


@pytest.mark.parametrize("what", ["info", "cat_file"])
def test_so_it_has_on_the_other_stores(what: str) -> None:
    assert asyncio.iscoroutinefunction(getattr(s3fs.S3FileSystem, f"_{what}"))


@pytest.mark.parametrize(
    ("headers", "status", "data"), [({}, 200, b"0123456789"), ({"Range": "bytes=2-4"}, 206, b"234")]
)
def test_an_answer_is_to_what_was_asked_and_each_request_is_given(
    server: Server,
    store: Any,  # noqa: ANN401
    headers: dict[str, str],
    status: int,
    data: bytes,
) -> None:
    async def ask() -> tuple[int, bytes, str]:
        response = await get(store, f"{server.url}/a.txt", headers)
        sent = response.request_info.headers["Accept-Encoding"]
        return response.status, await response.content.read(), sent

    assert run(store, ask()) == (status, data, "gzip")


@pytest.mark.parametrize("status", [404, 503])
def test_an_error_of_http_is_found_in_the_missing_file_that_it_is_called(
    server: Server,
    store: Any,  # noqa: ANN401
    status: int,
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
