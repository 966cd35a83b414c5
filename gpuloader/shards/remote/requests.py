"""Requests to stores, through fsspec, with time and size limits. A request ends when it is no longer wanted.

Responses of HTTP and S3 are read as a stream. Other stores are read in blocks, because their libraries return only
whole responses.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from gpuloader.base import fsspec as internals
from gpuloader.errors import ConfigError
from gpuloader.shards.remote.cancellation import POLL_SECONDS, WantedCallback, check_wanted
from gpuloader.shards.remote.failures import is_beyond_the_end
from gpuloader.shards.remote.urls import protocol_of

Answer = TypeVar("Answer")

REQUEST_SECONDS = 60.0
SLOWEST_BYTES_PER_SECOND = 10_000  # a slower answer, measured over REQUEST_SECONDS, is given up
_SILENT_SECONDS = 30.0  # an answer without new bytes for this long is given up, too
_BUFFER_BYTES = 256 << 10
_PLAIN: Mapping[str, str] = {"Accept-Encoding": "identity"}


@lru_cache
def file_system(protocol: str, process: int) -> Any:  # noqa: ANN401
    """Returns fsspec's file system for a protocol, one in each process."""
    import fsspec  # here, so that loaders of local shards do not wait for it

    # fsspec's default is one for each thread, which keeps its listings: see `forget_listings`.
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        fsspec.get_filesystem_class(protocol)
        if protocol in ("http", "https"):
            import aiohttp

            limits = aiohttp.ClientTimeout(total=None, sock_connect=_SILENT_SECONDS, sock_read=_SILENT_SECONDS)
            configured = fsspec.config.conf.get(protocol, {}).get("client_kwargs", {})
            own = {"timeout": limits, "trust_env": True, "auto_decompress": False, "read_bufsize": _BUFFER_BYTES}
            options["client_kwargs"] = {**own, **configured}
    except ImportError as error:
        raise ConfigError(f"{protocol}:// needs packages that are missing: pip install 'gpuloader[remote]'") from error
    return fsspec.filesystem(protocol, **options)


def forget_listings(urls: Iterable[str]) -> None:
    """Discards cached listings of objects, which Hugging Face's file system keeps in spite of the options."""
    for protocol in set(map(protocol_of, urls)):
        file_system(protocol, os.getpid()).invalidate_cache()


class Requests:
    """Requests for the object of a URL, for as long as it is `wanted`. Each raises the errors of the store's library.

    Attributes:
        streams: whether answers are read as a stream.
    """

    def __init__(self, url: str, wanted: WantedCallback) -> None:
        from fsspec.core import strip_protocol

        protocol = protocol_of(url)
        self._store = file_system(protocol, os.getpid())
        self._path = strip_protocol(url)
        self._wanted = wanted
        self._get = internals.get_from_s3 if protocol == "s3" else internals.get
        self.streams = protocol in ("http", "https", "s3")

    def info(self) -> Mapping[str, Any]:
        """Returns what the store says about the object."""
        info: Mapping[str, Any] = self._ask("info")
        return info

    def match(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the objects whose paths match the URL, a glob: path -> what the store says about it."""
        found: Mapping[str, Mapping[str, Any]] = self._store.glob(self._path, detail=True)
        return found

    def upload(self, file: Path) -> None:
        """Uploads a file as the object; the store shows it once it is complete."""
        seconds = REQUEST_SECONDS + file.stat().st_size / SLOWEST_BYTES_PER_SECOND
        self._ask("put_file", seconds, str(file), rpath=self._path)

    def read_block(self, start: int, end: int) -> bytes:
        """Reads the bytes from `start` to before `end`."""
        check_wanted(self._wanted)  # a file system that is not asynchronous does not check it
        data: bytes = self._ask("cat_file", start=start, end=end) or b""
        check_size(len(data), end - start)
        return data

    def read_beginning(self, size: int) -> bytes:
        """Reads the first bytes of the object, at most `size`."""
        try:
            return self._ask("cat_file", start=0, end=size) or b""
        except OSError as error:
            if is_beyond_the_end(error):  # the object is empty
                return b""
            raise

    @contextmanager
    def open_answer(self, start: int = 0, end: int | None = None) -> Iterator[internals.HttpResponse]:
        """Opens the answer with the bytes from `start` to before `end`, or with all; its status tells which."""
        part = {} if end is None else {"Range": f"bytes={start}-{end - 1}"}
        answer = self._await(self._get(self._store, self._path, {**_PLAIN, **part}), REQUEST_SECONDS)
        try:
            yield answer
        finally:
            self._store.loop.call_soon_threadsafe(answer.close)

    def read_chunks(self, answer: internals.HttpResponse, most_bytes: int | None = None) -> Iterator[bytes]:
        """Yields the answer's bytes as they arrive; raises OSError if there are too many, or if they are too slow."""
        since, total_bytes, counted_bytes = time.monotonic(), 0, 0
        while chunk := self._await(answer.read(_BUFFER_BYTES), _SILENT_SECONDS):
            check_wanted(self._wanted)
            total_bytes += len(chunk)
            if most_bytes is not None and total_bytes > most_bytes:
                raise OSError(f"the answer has more than the {most_bytes} bytes that were asked for")
            yield chunk
            if (seconds := time.monotonic() - since) > REQUEST_SECONDS:
                if total_bytes - counted_bytes < SLOWEST_BYTES_PER_SECOND * seconds:
                    raise OSError(f"{total_bytes - counted_bytes} bytes came in {seconds:.0f} s: that is too slow")
                since, counted_bytes = time.monotonic(), total_bytes

    def _ask(self, what: str, seconds: float = REQUEST_SECONDS, path: str | None = None, **options: Any) -> Any:  # noqa: ANN401
        """Calls a method of the file system, with the object's path as the first argument unless another is given."""
        from fsspec.asyn import AsyncFileSystem

        if isinstance(self._store, AsyncFileSystem):
            return self._await(internals.begin(self._store, what, path or self._path, **options), seconds)
        return getattr(self._store, what)(path or self._path, **options)

    def _await(self, request: Coroutine[Any, Any, Answer], seconds: float) -> Answer:
        """Waits for a request, which runs in fsspec's thread; cancels it when it is no longer wanted."""
        answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        task = asyncio.run_coroutine_threadsafe(_await_answer(request, seconds, answers), self._store.loop)
        try:
            while True:
                try:
                    answer, error = answers.get(timeout=POLL_SECONDS)
                    break
                except Empty:
                    check_wanted(self._wanted)
                    if task.done() and answers.empty():  # it was cancelled before it began
                        request.close()  # otherwise Python warns of it
                        raise asyncio.CancelledError from None
        finally:
            task.cancel()
        if error is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame
        return answer


def check_size(received: int, expected: int) -> None:
    """Raises OSError if the answer has not exactly the requested number of bytes."""
    if received != expected:
        raise OSError(f"{received} bytes came in place of the {expected} that were asked for")


async def _await_answer(
    request: Coroutine[Any, Any, Any], seconds: float, answers: SimpleQueue[tuple[Any, BaseException | None]]
) -> None:
    try:
        answers.put((await asyncio.wait_for(request, seconds), None))
    except (asyncio.TimeoutError, TimeoutError):
        answers.put((None, TimeoutError("it takes too long to answer")))
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
        answers.put((None, error))
