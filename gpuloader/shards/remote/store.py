"""One object on a store: which version of it is there, and its bytes. Through fsspec, with retries and time limits.

A version is told by size and tag: the store's ETag, or what else it has that changes with the content. An object is
downloaded in blocks by range requests, so that a broken download goes on where it was; as a whole where an HTTP server
does not know ranges.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count
from pathlib import PurePosixPath
from queue import Empty, SimpleQueue
from random import Random
from typing import Any, TypeAlias, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.utils import get_protocol

from gpuloader.errors import ConfigError, RemoteError, ShardChangedError, ShardNotFoundError

PROTOCOLS = ("s3", "gs", "gcs", "http", "https", "hf")

Wanted: TypeAlias = Callable[[], bool]
"""Asked again and again while something takes long; once it says no, that ends with InterruptedError."""

Answer = TypeVar("Answer")

_MOST_TRIES = 5
_FIRST_PAUSE_SECONDS = 0.5  # twice as long before each further try
_REQUEST_SECONDS = 60.0
_SILENT_SECONDS = 30.0  # an HTTP server that sends nothing for so long is given up
_BLOCK_BYTES = 8 << 20
_POLL_SECONDS = 0.05
_TAGS = ("ETag", "etag", "generation", "blob_id", "Last-Modified", "LastModified", "mtime", "updated", "created")
_FORBIDDEN = (401, 403)
_MISSING = (404, 410)
_WORTH_A_RETRY = (408, 425, 429)
# Trying again changes nothing; the second row's are of packages that may not be here.
_FINAL = (PermissionError, IsADirectoryError, NotImplementedError, ValueError, TypeError)
_FINAL_NAMES = frozenset(("NonHttpUrlClientError", "NoCredentialsError"))
_random = Random()


@dataclass(frozen=True)
class Version:
    """What an object was when the store was asked.

    Attributes:
        size_bytes: of the object.
        tag: changes with its content; "" where the store says nothing of the kind.
        checksum: ("md5" or "sha256", hex digits) of the content, where the store says it.
        ranges: whether a part of it may be asked for, as far as is known.
    """

    size_bytes: int
    tag: str
    checksum: tuple[str, str] | None = field(default=None, compare=False)
    ranges: bool = field(default=True, compare=False)


@dataclass(frozen=True, repr=False)
class RemoteShard:
    """A shard on a store.

    Shown without what may be secret in its URL: user, password and query.
    """

    url: str

    def __repr__(self) -> str:
        return f"RemoteShard({str(self)!r})"

    def __str__(self) -> str:
        return without_secrets(self.url)

    @property
    def name(self) -> str:
        """The file's name, as that of a path."""
        return PurePosixPath(str(self)).name

    def beside(self, suffix: str) -> RemoteShard:
        """The object whose name has a suffix more."""
        path, question_mark, query = self.url.partition("?")
        return RemoteShard(path + suffix + question_mark + query)

    def version(self, wanted: Wanted) -> Version:
        """The version that is there now.

        Raises:
            ShardNotFoundError: there is none.
            RemoteError: the store does not say, or not how large it is.
        """
        info = self._tried(lambda store, path: _ask(store, "info", path, wanted=wanted), wanted)
        size = info.get("size")
        if info.get("type") == "directory":
            raise ShardNotFoundError(f"{self} is a folder: end its URL with a slash to take the *.tar in it")
        if not isinstance(size, int):
            raise RemoteError(str(self), "the store does not say how large it is", tries=1)
        tag = next((str(info[name]) for name in _TAGS if info.get(name)), "")
        return Version(size, tag, _stated_checksum(info), info.get("partial") is not False)

    def read(self, start: int, end: int, wanted: Wanted) -> bytes | None:
        """The bytes from `start` to before `end`; None where the store gives no parts."""

        def part(store: Any, path: str) -> bytes | None:  # noqa: ANN401
            if _is_http(self.url):
                data = _await(store, _http_range(store, path, start, end), wanted, _REQUEST_SECONDS)
            else:
                data = _ask(store, "cat_file", path, start=start, end=end, wanted=wanted)
            if data is not None and len(data) != end - start:
                raise OSError(f"{len(data)} bytes came in place of the {end - start} that were asked for")
            return data

        return self._tried(part, wanted)

    def read_small(self, wanted: Wanted) -> bytes | None:
        """All of a small object; None where there is none or it may not be read."""
        try:
            return self._tried(lambda store, path: _ask(store, "cat_file", path, wanted=wanted), wanted)
        except (ShardNotFoundError, _ForbiddenError):
            return None

    def download(self, version: Version, file: io.FileIO, wanted: Wanted, came: Callable[[int], None]) -> None:
        """Writes what a file lacks of the object behind what it has; `came` is told of bytes as they come.

        Raises:
            ShardChangedError: the object has another version than is asked for.
        """
        self.check_version(version, wanted)
        ranges = version.ranges
        start = file.seek(0, os.SEEK_END)
        while start < version.size_bytes and ranges:
            end = min(start + _BLOCK_BYTES, version.size_bytes)
            data = self.read(start, end, wanted)
            if ranges := data is not None:
                _write(file, data)
                came(end - start)
                start = end
        if not ranges and start < version.size_bytes:
            self._tried(lambda store, path: self._download_whole(store, path, version, file, wanted), wanted)
            came(version.size_bytes)
        self.check_version(version, wanted)

    def _download_whole(self, store: Any, path: str, version: Version, file: io.FileIO, wanted: Wanted) -> None:  # noqa: ANN401
        file.seek(0)
        file.truncate()
        _await(store, store._get_file(path, file, headers=_PLAIN), wanted, None)
        if (size := file.tell()) != version.size_bytes:
            raise OSError(f"{size} bytes came, it was said to have {version.size_bytes}")

    def check_version(self, version: Version, wanted: Wanted) -> None:
        """Raises ShardChangedError where the store has another version now."""
        forget_listings([self])
        if (now := self.version(wanted)) != version:
            raise ShardChangedError(
                f"{self} has (size, tag) {(now.size_bytes, now.tag)}, it had {(version.size_bytes, version.tag)} when "
                f"this loader was made. Make the loader anew when the shard is as it shall be"
            )

    def _tried(self, request: Callable[[Any, str], Answer], wanted: Wanted) -> Answer:
        """What a request to the store gives, tried again while that may help."""
        store = file_system(self.url)
        path = store._strip_protocol(self.url)
        for tries in count(1):
            check_wanted(wanted)
            try:
                return request(store, path)
            except (InterruptedError, ShardNotFoundError):
                raise
            except Exception as error:  # noqa: BLE001 - each store has errors of its own
                failure = _underlying(error)
            if isinstance(failure, FileNotFoundError) or _status(failure) in _MISSING:
                raise ShardNotFoundError(f"no such object: {self}")
            if isinstance(failure, PermissionError) or _status(failure) in _FORBIDDEN:
                raise _ForbiddenError(str(self), _said(failure, self.url), tries)
            if tries == _MOST_TRIES or _is_final(failure):
                raise RemoteError(str(self), _said(failure, self.url), tries)
            pause(_FIRST_PAUSE_SECONDS * 2 ** (tries - 1) * _random.uniform(0.5, 1), wanted)
        raise AssertionError


@dataclass(frozen=True)
class Entry:
    """One version of a shard on a store."""

    shard: RemoteShard
    version: Version

    @cached_property
    def key(self) -> str:
        """What its files in the cache are called by."""
        names = "\0".join((self.shard.url, str(self.version.size_bytes), self.version.tag))
        return hashlib.blake2b(names.encode(), digest_size=16).hexdigest()


class _ForbiddenError(RemoteError):
    """The store refuses: the credentials are missing or do not suffice."""


def remote_protocol(source: str) -> str | None:
    """The protocol of a URL of a store, None for a local path.

    Raises:
        ConfigError: a URL that is not read.
    """
    protocol: str = get_protocol(source)
    if protocol == "file":
        return None
    if protocol not in PROTOCOLS or "::" in source:
        allowed = ", ".join(f"{each}://" for each in PROTOCOLS)
        raise ConfigError(
            f"{without_secrets(source)}: {protocol}:// is not read: allowed are local paths and {allowed}"
        )
    return protocol


def list_shards(pattern: str) -> list[RemoteShard]:
    """The objects that match a glob, by name.

    Raises:
        RemoteError: the store cannot be asked.
    """
    protocol = get_protocol(pattern)
    shard = RemoteShard(pattern)
    found = shard._tried(lambda store, path: store.glob(path, detail=True), lambda: True)
    files = sorted(path for path, info in found.items() if info.get("type") != "directory")
    return [RemoteShard(f"{protocol}://{path.removeprefix('/')}") for path in files]


def without_secrets(text: str) -> str:
    """A text in which URLs have no user, password and query. On stores that can list, a ? may stand for a letter."""
    text = re.sub(r"(?<=://)[^/\s]*@", "", text)
    return re.sub(r"(https?://[^\s'\"?]*)\?[^\s'\"]*|\?[^\s'\"]*=[^\s'\"]*", r"\1", text)


def check_wanted(wanted: Wanted) -> None:
    """Raises InterruptedError where something is not wanted any more."""
    if not wanted():
        raise InterruptedError("reading was given up")


def pause(seconds: float, wanted: Wanted) -> None:
    """Sleeps, unless it is not wanted any more."""
    end = time.monotonic() + seconds
    while True:
        check_wanted(wanted)
        if (left := end - time.monotonic()) <= 0:
            return
        time.sleep(min(left, _POLL_SECONDS))


def file_system(url: str) -> Any:  # noqa: ANN401
    """fsspec's file system for a URL, one for each protocol and process."""
    return _file_system(get_protocol(url), os.getpid())


def forget_listings(shards: Iterable[RemoteShard]) -> None:
    """Has the stores asked anew what is there; that of Hugging Face keeps what it listed, whatever it is told."""
    for protocol in {get_protocol(shard.url) for shard in shards}:
        file_system(f"{protocol}://").invalidate_cache()


@lru_cache
def _file_system(protocol: str, process: int) -> Any:  # noqa: ANN401
    # Its own would be one for each thread, and would keep what it listed: see `forget_listings`.
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        fsspec.get_filesystem_class(protocol)
        if protocol in ("http", "https"):
            import aiohttp

            limits = aiohttp.ClientTimeout(total=None, sock_connect=_SILENT_SECONDS, sock_read=_SILENT_SECONDS)
            given = fsspec.config.conf.get(protocol, {}).get("client_kwargs", {})
            options["client_kwargs"] = {"timeout": limits, "trust_env": True, **given}
    except ImportError as error:
        raise ConfigError(f"{protocol}:// needs packages that are not here: pip install 'gpuloader[remote]'") from error
    return fsspec.filesystem(protocol, **options)


_PLAIN: Mapping[str, str] = {"Accept-Encoding": "identity"}


async def _http_range(store: Any, url: str, start: int, end: int) -> bytes | None:  # noqa: ANN401
    """A part of a file; None from a server that would send all of it."""
    session = await store.set_session()
    headers = {**_PLAIN, "Range": f"bytes={start}-{end - 1}"}
    async with session.get(store.encode_url(url), headers=headers) as response:
        store._raise_not_found_for_status(response, url)
        return await response.read() if response.status == 206 else None


def _ask(store: Any, what: str, path: str, wanted: Wanted, **options: Any) -> Any:  # noqa: ANN401
    """Calls a method of a file system."""
    if isinstance(store, AsyncFileSystem):
        return _await(store, getattr(store, f"_{what}")(path, **options), wanted, _REQUEST_SECONDS)
    return getattr(store, what)(path, **options)


def _await(store: Any, request: Coroutine[Any, Any, Answer], wanted: Wanted, seconds: float | None) -> Answer:  # noqa: ANN401
    """What a request gives that runs in fsspec's thread; it is cancelled when it is not wanted any more."""
    answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    task = asyncio.run_coroutine_threadsafe(_answered(request, seconds, answers), store.loop)
    try:
        while True:
            try:
                answer, error = answers.get(timeout=_POLL_SECONDS)
                break
            except Empty:
                check_wanted(wanted)
    finally:
        task.cancel()
    if error is not None:
        try:
            raise error
        finally:
            del error  # it holds this frame
    return answer


async def _answered(
    request: Coroutine[Any, Any, Any], seconds: float | None, answers: SimpleQueue[tuple[Any, BaseException | None]]
) -> None:
    try:
        answers.put((await asyncio.wait_for(request, seconds), None))
    except (asyncio.TimeoutError, TimeoutError):
        answers.put((None, TimeoutError("it takes too long to answer")))
    except Exception as error:  # noqa: BLE001 - raised where it is waited for
        answers.put((None, error))


def _write(file: io.FileIO, data: bytes | None) -> None:
    view = memoryview(data or b"")
    while view:
        view = view[file.write(view) :]


def _is_http(url: str) -> bool:
    return get_protocol(url) in ("http", "https")


def _underlying(error: Exception) -> Exception:
    """What happened, less the frames in which it did. fsspec calls every failure to ask HTTP a missing file."""
    cause = error.__cause__
    happened = cause if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) else error
    return happened.with_traceback(None)


def _status(error: Exception) -> int | None:
    """The HTTP status, wherever the store's library keeps it."""
    for name in ("status", "status_code", "code"):
        for holder in (error, getattr(error, "response", None)):
            if isinstance(found := getattr(holder, name, None), int) and found:
                return found
    response = getattr(error, "response", None)  # that of boto is a dictionary
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None


def _is_final(error: Exception) -> bool:
    status = _status(error)
    if not _FINAL_NAMES.isdisjoint(kind.__name__ for kind in type(error).__mro__):
        return True
    return isinstance(error, _FINAL) or (status is not None and 400 <= status < 500 and status not in _WORTH_A_RETRY)


def _said(error: Exception, url: str) -> str:
    """An error's words in one line, without secrets."""
    status, message = _status(error), getattr(error, "message", None)
    said = f"HTTP {status} {message or ''}".strip() if status is not None else f"{type(error).__name__}: {error}"
    return " ".join(without_secrets(said.replace(url, without_secrets(url))).split())


def _stated_checksum(info: Mapping[str, Any]) -> tuple[str, str] | None:
    """What Google Cloud Storage and Hugging Face say. S3's ETag is an MD5 only sometimes, and does not say when."""
    if md5 := info.get("md5Hash"):
        return "md5", base64.b64decode(md5).hex()
    lfs = info.get("lfs")
    if sha256 := lfs.get("sha256") if isinstance(lfs, Mapping) else getattr(lfs, "sha256", None):
        return "sha256", sha256
    return None
