"""Uses undocumented parts of fsspec and s3fs, as in 2024.2, the first allowed version, and in 2026.9."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HttpResponse:
    """The answer to GET, before its content is read.

    Attributes:
        status: of HTTP.
        headers: of HTTP, with names in lower case.
        read: returns what has arrived, at most as many bytes as asked for, and b"" at the end.
        close: ends it at any point; must be called in the file system's loop.
    """

    status: int
    headers: Mapping[str, str]
    read: Callable[[int], Coroutine[Any, Any, bytes]]
    close: Callable[[], None]


def begin(store: Any, what: str, path: str, **options: Any) -> Coroutine[Any, Any, Any]:  # noqa: ANN401
    """Makes the coroutine of a method of an asynchronous file system, such as "info", to run in the system's loop.

    Relies on the coroutines being named as the methods with an underscore in front, as in 2024.2. fsspec documents
    this only for file systems made with `asynchronous=True`. The public methods block until they are done, and nothing
    can interrupt them.
    """
    coroutine: Coroutine[Any, Any, Any] = getattr(store, f"_{what}")(path, **options)
    return coroutine


async def get(store: Any, url: str, headers: Mapping[str, str]) -> HttpResponse:  # noqa: ANN401
    """Gets the answer of an HTTP server, from fsspec's file system for HTTP; raises aiohttp's error if it is one.

    Relies on `HTTPFileSystem.set_session`, `kwargs` (passed to each request) and `encode_url`, which are not
    documented, as in 2024.2. The public methods `cat_file` and `open` read all of an answer, or blocks of their size.
    """
    session = await store.set_session()
    options = {**store.kwargs, "headers": {**store.kwargs.get("headers", {}), **headers}, "raise_for_status": True}
    response = await session.get(store.encode_url(url), **options)
    return HttpResponse(response.status, response.headers, response.content.read, response.close)


async def get_from_s3(store: Any, path: str, headers: Mapping[str, str]) -> HttpResponse:  # noqa: ANN401
    """Gets the answer of an S3 server, from s3fs's file system; raises s3fs's error if it is one. Uses `Range` alone.

    Relies on `S3FileSystem._call_s3`, which first takes the arguments of each request, and on `split_path` and
    `req_kw`, which are not documented; and on the body's `read` and `close` being those of aiobotocore with aiohttp, as
    in 2024.2 with aiobotocore 2.5. The public methods read all of an answer.
    """
    bucket, key, version = store.split_path(path)
    options = {"Range": headers.get("Range"), "VersionId": version}
    answer = await store._call_s3(
        "get_object", store.req_kw, Bucket=bucket, Key=key, **{name: value for name, value in options.items() if value}
    )
    metadata = answer["ResponseMetadata"]
    return HttpResponse(metadata["HTTPStatusCode"], metadata["HTTPHeaders"], answer["Body"].read, answer["Body"].close)


def what_happened(error: Exception) -> Exception:
    """Returns the error of the request, from the error that a file system raised.

    Relies on `HTTPFileSystem.info`, which reports every failure as a missing file, with the failure as the cause,
    as in 2024.2. No other method asks for the size alone.
    """
    cause = error.__cause__
    return cause if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) else error
