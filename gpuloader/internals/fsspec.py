"""What fsspec does not promise, as it is in 2024.2, the first version that pyproject.toml allows, and in 2026.9."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any


def begin(store: Any, what: str, path: str, **options: Any) -> Coroutine[Any, Any, Any]:  # noqa: ANN401
    """The coroutine of a method of an asynchronous file system, such as "info", to be run in the file system's loop.

    Relies on the methods' coroutines having their names with an underscore before, as in 2024.2. fsspec's documentation
    says so, but only for file systems made with `asynchronous=True`. The public methods block until they are done:
    nothing can interrupt them.
    """
    coroutine: Coroutine[Any, Any, Any] = getattr(store, f"_{what}")(path, **options)
    return coroutine


async def get(store: Any, url: str, headers: Mapping[str, str]) -> Any:  # noqa: ANN401
    """aiohttp's response to GET, of which nothing is read yet, from fsspec's file system for HTTP.

    Relies on `HTTPFileSystem.set_session`, `kwargs` (what each request is given) and `encode_url`, which are not
    documented, as in 2024.2. The public ways, `cat_file` and `open`, read whole answers, or blocks of their own size.
    """
    session = await store.set_session()
    given = {**store.kwargs, "headers": {**store.kwargs.get("headers", {}), **headers}}
    return await session.get(store.encode_url(url), **given)


def what_happened(error: Exception) -> Exception:
    """The error of the request, of what a file system raised.

    Relies on `HTTPFileSystem.info`, which calls every failure to ask a missing file, with that failure as the cause,
    as in 2024.2. There is no other method that asks for the size alone.
    """
    cause = error.__cause__
    return cause if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) else error
