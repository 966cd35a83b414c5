"""What fsspec and s3fs do not promise, as it is in 2024.2, the first version that is allowed, and in 2026.9."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """The answer to GET, of whose content nothing is read yet.

    Attributes:
        status: that of HTTP.
        headers: of HTTP, found by their names in lower case.
        read: gives what has come, at most as many bytes as it is told, and b"" at the end.
        close: ends it, wherever it is; to be called in the file system's loop.
    """

    status: int
    headers: Mapping[str, str]
    read: Callable[[int], Coroutine[Any, Any, bytes]]
    close: Callable[[], None]


def begin(store: Any, what: str, path: str, **options: Any) -> Coroutine[Any, Any, Any]:  # noqa: ANN401
    """The coroutine of a method of an asynchronous file system, such as "info", to be run in the file system's loop.

    Relies on the methods' coroutines having their names with an underscore before, as in 2024.2. fsspec's documentation
    says so, but only for file systems made with `asynchronous=True`. The public methods block until they are done:
    nothing can interrupt them.
    """
    coroutine: Coroutine[Any, Any, Any] = getattr(store, f"_{what}")(path, **options)
    return coroutine


async def get(store: Any, url: str, headers: Mapping[str, str]) -> Answer:  # noqa: ANN401
    """The answer of an HTTP server, from fsspec's file system for HTTP; aiohttp's error where it is one.

    Relies on `HTTPFileSystem.set_session`, `kwargs` (what each request is given) and `encode_url`, which are not
    documented, as in 2024.2. The public ways, `cat_file` and `open`, read whole answers, or blocks of their own size.
    """
    session = await store.set_session()
    given = {**store.kwargs, "headers": {**store.kwargs.get("headers", {}), **headers}, "raise_for_status": True}
    response = await session.get(store.encode_url(url), **given)
    return Answer(response.status, response.headers, response.content.read, response.close)


async def get_from_s3(store: Any, path: str, headers: Mapping[str, str]) -> Answer:  # noqa: ANN401
    """The answer of an S3 server, from s3fs's file system; s3fs's error where it is one. Of `headers`, `Range` counts.

    Relies on `S3FileSystem._call_s3`, which takes what is given to each request first, on `split_path` and `req_kw`,
    which are not documented, and on the body's `read` and `close` being those of aiobotocore with aiohttp, as in 2024.2
    with aiobotocore 2.5. The public ways read whole answers.
    """
    bucket, key, version = store.split_path(path)
    given = {"Range": headers.get("Range"), "VersionId": version}
    answer = await store._call_s3(
        "get_object", store.req_kw, Bucket=bucket, Key=key, **{name: value for name, value in given.items() if value}
    )
    told = answer["ResponseMetadata"]
    return Answer(told["HTTPStatusCode"], told["HTTPHeaders"], answer["Body"].read, answer["Body"].close)


def what_happened(error: Exception) -> Exception:
    """The error of the request, of what a file system raised.

    Relies on `HTTPFileSystem.info`, which calls every failure to ask a missing file, with that failure as the cause,
    as in 2024.2. There is no other method that asks for the size alone.
    """
    cause = error.__cause__
    return cause if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) else error
