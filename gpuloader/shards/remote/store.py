"""One object on a store: which version of it is there, and its bytes. Through fsspec, with retries and time limits.

A version is told by size and tag: the store's ETag, or what else it has that changes with the content. What comes of an
object is written as it comes, and a broken download goes on where it was, unless a server does not know ranges. No
object on HTTP or S3 is read beyond what was asked for. The other stores are asked for blocks, since their libraries
give no answer before it is whole.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import cached_property, lru_cache
from pathlib import PurePosixPath
from queue import Empty, SimpleQueue
from random import Random
from typing import Any, TypeAlias, TypeVar

from gpuloader.errors import ConfigError, DataError, RemoteError, ShardChangedError, ShardNotFoundError
from gpuloader.internals import fsspec as internals

PROTOCOLS = ("s3", "gs", "gcs", "http", "https", "hf")

Wanted: TypeAlias = Callable[[], bool]
"""Asked again and again while something takes long; once it says no, that ends with InterruptedError."""

Answer = TypeVar("Answer")

_MOST_TRIES = 5
_PROGRESS_BYTES = 4 << 20  # tries are counted again once so much has come
_FIRST_PAUSE_SECONDS = 0.5  # twice as long before each further try
_LONGEST_PAUSE_SECONDS = 120.0  # that a store may ask for
_REQUEST_SECONDS = 60.0
_SILENT_SECONDS = 30.0  # a server that sends nothing for so long is given up
_SLOWEST_BYTES_PER_SECOND = 10_000  # one that sends less, seen over _REQUEST_SECONDS, too
_BUFFER_BYTES = 256 << 10
_FIRST_BLOCK_BYTES = 512 << 10  # twice as many in each further one, so that a slow or bad connection gets on too
_BLOCK_BYTES = 8 << 20
_TOLD_PAUSE_SECONDS = 10.0
_POLL_SECONDS = 0.05
_TAGS = ("ETag", "etag", "generation", "blob_id", "Last-Modified", "LastModified", "mtime", "updated", "created")
_FORBIDDEN = (401, 403)
_MISSING = (404, 410)
_NO_SUCH_RANGE = 416
_WORTH_A_RETRY = (408, 425, 429)
# Trying again changes nothing.
_FINAL = (PermissionError, IsADirectoryError, NotImplementedError, ValueError, TypeError)
_FINAL_OF_PACKAGES = (("aiohttp", "NonHttpUrlClientError"), ("botocore.exceptions", "NoCredentialsError"))
_random = Random()
_log = logging.getLogger("gpuloader")


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
        info = self._try(lambda store, path: _ask(store, "info", path, wanted=wanted), wanted)
        size = info.get("size")
        if info.get("type") == "directory":
            raise ShardNotFoundError(f"{self} is a folder: end its URL with a slash to take the *.tar in it")
        if not isinstance(size, int):
            raise RemoteError(str(self), "the store does not say how large it is", tries=1)
        tag = next((str(info[name]) for name in _TAGS if info.get(name)), "")
        return Version(size, tag, _stated_checksum(info), info.get("partial") is not False)

    def read(self, version: Version, start: int, end: int, wanted: Wanted) -> bytes | None:
        """The bytes from `start` to before `end`; None where the store gives no parts.

        Raises:
            ShardChangedError: they are of another version.
        """

        def part(store: Any, path: str) -> bytes | None:  # noqa: ANN401
            if not self._streams:
                return _block(store, path, start, end, wanted)
            with self._answer(store, path, _range(start, end), wanted) as answer:
                if answer.status != 206:
                    return None
                self._check_answer(answer, version, start, end)
                data = b"".join(_chunks(store, answer, end - start, wanted))
            _check_size(len(data), end - start)
            return data

        return self._try(part, wanted)

    def read_small(self, most_bytes: int, wanted: Wanted) -> bytes | None:
        """All of a small object; None where there is none, it may not be read, or it is larger than `most_bytes`."""

        def whole(store: Any, path: str) -> bytes:  # noqa: ANN401
            if not self._streams:
                return _beginning(store, path, most_bytes + 1, wanted)
            data = bytearray()
            with self._answer(store, path, {}, wanted) as answer:
                for chunk in _chunks(store, answer, None, wanted):
                    data += chunk
                    if len(data) > most_bytes:
                        break
            return bytes(data)

        try:
            data = self._try(whole, wanted)
        except (ShardNotFoundError, _ForbiddenError):
            return None
        if len(data) > most_bytes:
            _log.info("%s has more than %d bytes; it is passed over", self, most_bytes)
            return None
        return data

    def download(self, version: Version, file: io.FileIO, wanted: Wanted, came: Callable[[int], None]) -> None:
        """Writes what a file lacks of the object behind what it has; `came` is told of bytes as they come.

        Raises:
            ShardChangedError: the object has another version than is asked for.
            DiskError: the file cannot be written.
        """

        def rest(store: Any, path: str) -> None:  # noqa: ANN401
            bytes_from = self._bytes_as_they_come if self._streams else self._bytes_in_blocks
            for data in bytes_from(store, path, version, file, wanted):
                _write(file, data)
                came(len(data))
            _check_size(file.tell(), version.size_bytes)

        self.check_version(version, wanted)
        if file.seek(0, os.SEEK_END) > version.size_bytes:
            file.truncate(0)
        self._try(rest, wanted, lambda: file.seek(0, os.SEEK_END))
        self.check_version(version, wanted)

    def _bytes_as_they_come(
        self,
        store: Any,  # noqa: ANN401
        path: str,
        version: Version,
        file: io.FileIO,
        wanted: Wanted,
    ) -> Iterator[bytes]:
        """What the file lacks; all, and the file is emptied, where the server gives no parts."""
        start = file.seek(0, os.SEEK_END)
        if start == version.size_bytes:
            return
        asked = _range(start, version.size_bytes) if version.ranges else {}
        with self._answer(store, path, asked, wanted) as answer:
            start = start if answer.status == 206 else 0
            self._check_answer(answer, version, start, version.size_bytes)
            file.seek(start)
            file.truncate()
            yield from _chunks(store, answer, version.size_bytes - start, wanted)

    def _bytes_in_blocks(
        self,
        store: Any,  # noqa: ANN401
        path: str,
        version: Version,
        file: io.FileIO,
        wanted: Wanted,
    ) -> Iterator[bytes]:
        start, size = file.seek(0, os.SEEK_END), _FIRST_BLOCK_BYTES
        while start < version.size_bytes:
            check_wanted(wanted)
            end = min(start + min(size, _BLOCK_BYTES), version.size_bytes)
            yield _block(store, path, start, end, wanted)
            start, size = end, 2 * size

    @property
    def _streams(self) -> bool:
        """Whether an answer is read as it comes."""
        return _protocol(self.url) in ("http", "https", "s3")

    @contextmanager
    def _answer(
        self,
        store: Any,  # noqa: ANN401
        path: str,
        headers: Mapping[str, str],
        wanted: Wanted,
    ) -> Iterator[internals.Answer]:
        get = internals.get_from_s3 if _protocol(self.url) == "s3" else internals.get
        answer = _await(store, get(store, path, {**_PLAIN, **headers}), wanted, _REQUEST_SECONDS)
        try:
            yield answer
        finally:
            store.loop.call_soon_threadsafe(answer.close)

    def _check_answer(self, answer: internals.Answer, version: Version, start: int, end: int) -> None:
        """Raises ShardChangedError where an answer is of another version, OSError where it is of another part."""
        name = "Last-Modified" if version.tag.endswith(" GMT") else "ETag"
        tag = answer.headers.get(name.lower(), "")
        if tag and version.tag and _strong(tag) != _strong(version.tag):
            raise self._changed_error(f"has the {name} {tag} where it is read", version)
        if answer.status == 206:
            found = answer.headers.get("content-range", "")
            expected = f"bytes {start}-{end - 1}/"
            if found not in (f"{expected}{version.size_bytes}", f"{expected}*"):
                raise OSError(f"the part {found!r} came in place of '{expected}{version.size_bytes}'")
        if (length := answer.headers.get("content-length")) is not None:
            _check_size(int(length), end - start)

    def check_version(self, version: Version, wanted: Wanted) -> None:
        """Raises ShardChangedError where the store has another version now."""
        forget_listings([self])
        if (now := self.version(wanted)) != version:
            raise self._changed_error(f"has (size, tag) {(now.size_bytes, now.tag)}", version)

    def _changed_error(self, found: str, version: Version) -> ShardChangedError:
        return ShardChangedError(
            f"{self} {found}, it had (size, tag) {(version.size_bytes, version.tag)} when this loader was made. Make "
            f"the loader again when the shard is as it shall be"
        )

    def _try(
        self, request: Callable[[Any, str], Answer], wanted: Wanted, here_bytes: Callable[[], int] = lambda: 0
    ) -> Answer:
        """What a request to the store gives, tried again while that may help, and while more and more is here."""
        from fsspec.core import strip_protocol

        store = file_system(self.url)
        path = strip_protocol(self.url)
        tries, counted_bytes = 0, here_bytes()
        while True:
            tries += 1
            check_wanted(wanted)
            try:
                return request(store, path)
            except (InterruptedError, DataError, DiskError):
                raise
            except Exception as error:  # noqa: BLE001 - each store has errors of its own
                failure = _underlying(error)
            if isinstance(failure, FileNotFoundError) or _status(failure) in _MISSING:
                raise ShardNotFoundError(f"no such object: {self}")
            if isinstance(failure, PermissionError) or _status(failure) in _FORBIDDEN:
                raise _ForbiddenError(str(self), _explain(failure, self.url), tries)
            if (here := here_bytes()) - counted_bytes >= _PROGRESS_BYTES:
                tries, counted_bytes = 1, here
            if tries == _MOST_TRIES or _is_final(failure):
                raise RemoteError(str(self), _explain(failure, self.url), tries)
            seconds = max(
                _FIRST_PAUSE_SECONDS * 2 ** (tries - 1) * _random.uniform(0.5, 1), _requested_pause_seconds(failure)
            )
            if seconds > _TOLD_PAUSE_SECONDS:
                _log.info("%s: %s: it is asked again in %.0f s", self, _explain(failure, self.url), seconds)
            pause(seconds, wanted)


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


class DiskError(OSError):
    """Writing here failed; the store is not to blame."""


def remote_protocol(source: str) -> str | None:
    """The protocol of a URL of a store, None for a local path.

    Raises:
        ConfigError: a URL that is not read.
    """
    protocol = _protocol(source)
    if protocol == "file":
        return None
    if protocol not in PROTOCOLS or "::" in source:
        allowed = ", ".join(f"{each}://" for each in PROTOCOLS)
        raise ConfigError(
            f"{without_secrets(source)}: {protocol}:// is not read: allowed are local paths and {allowed}"
        )
    return protocol


def _protocol(url: str) -> str:
    """As fsspec reads it: that before the first :: or ://; "file" where there is none."""
    first, *rest = re.split("::|://", url, maxsplit=1)
    return first if rest else "file"


def list_shards(pattern: str) -> list[RemoteShard]:
    """The objects that match a glob, by name.

    Raises:
        RemoteError: the store cannot be asked.
    """
    protocol = _protocol(pattern)
    shard = RemoteShard(pattern)
    found = shard._try(lambda store, path: store.glob(path, detail=True), lambda: True)
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
    return _file_system(_protocol(url), os.getpid())


def forget_listings(shards: Iterable[RemoteShard]) -> None:
    """Has the stores asked again what is there; that of Hugging Face keeps what it listed, whatever it is told."""
    for protocol in {_protocol(shard.url) for shard in shards}:
        file_system(f"{protocol}://").invalidate_cache()


@lru_cache
def _file_system(protocol: str, process: int) -> Any:  # noqa: ANN401
    import fsspec  # here, so that who reads local shards need not wait for it

    # Its own would be one for each thread, and would keep what it listed: see `forget_listings`.
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        fsspec.get_filesystem_class(protocol)
        if protocol in ("http", "https"):
            import aiohttp

            limits = aiohttp.ClientTimeout(total=None, sock_connect=_SILENT_SECONDS, sock_read=_SILENT_SECONDS)
            given = fsspec.config.conf.get(protocol, {}).get("client_kwargs", {})
            own = {"timeout": limits, "trust_env": True, "auto_decompress": False, "read_bufsize": _BUFFER_BYTES}
            options["client_kwargs"] = {**own, **given}
    except ImportError as error:
        raise ConfigError(f"{protocol}:// needs packages that are not here: pip install 'gpuloader[remote]'") from error
    return fsspec.filesystem(protocol, **options)


_PLAIN: Mapping[str, str] = {"Accept-Encoding": "identity"}


def _range(start: int, end: int) -> Mapping[str, str]:
    return {"Range": f"bytes={start}-{end - 1}"}


def _chunks(
    store: Any,  # noqa: ANN401
    answer: internals.Answer,
    most_bytes: int | None,
    wanted: Wanted,
) -> Iterator[bytes]:
    """What comes, as it comes; OSError where it is more than was asked for, or comes too slowly."""
    since, total_bytes, counted_bytes = time.monotonic(), 0, 0
    while chunk := _await(store, answer.read(_BUFFER_BYTES), wanted, _SILENT_SECONDS):
        check_wanted(wanted)
        total_bytes += len(chunk)
        if most_bytes is not None and total_bytes > most_bytes:
            raise OSError(f"more bytes come than the {most_bytes} that were asked for")
        yield chunk
        if (seconds := time.monotonic() - since) > _REQUEST_SECONDS:
            if total_bytes - counted_bytes < _SLOWEST_BYTES_PER_SECOND * seconds:
                raise OSError(f"{total_bytes - counted_bytes} bytes came in {seconds:.0f} s: that is too slow")
            since, counted_bytes = time.monotonic(), total_bytes


def _block(store: Any, path: str, start: int, end: int, wanted: Wanted) -> bytes:  # noqa: ANN401
    data: bytes = _ask(store, "cat_file", path, start=start, end=end, wanted=wanted) or b""
    _check_size(len(data), end - start)
    return data


def _beginning(store: Any, path: str, size: int, wanted: Wanted) -> bytes:  # noqa: ANN401
    try:
        return _ask(store, "cat_file", path, start=0, end=size, wanted=wanted) or b""
    except OSError as error:
        if _status(error) == _NO_SUCH_RANGE:  # it is empty
            return b""
        raise


def _check_size(found: int, expected: int) -> None:
    if found != expected:
        raise OSError(f"{found} bytes come in place of the {expected} that were asked for")


def _strong(tag: str) -> str:
    """An entity tag without the mark that says that it is a weak one: servers mark some answers only."""
    return tag.removeprefix("W/")


def _ask(store: Any, what: str, path: str, wanted: Wanted, **options: Any) -> Any:  # noqa: ANN401
    """Calls a method of a file system."""
    from fsspec.asyn import AsyncFileSystem

    if isinstance(store, AsyncFileSystem):
        return _await(store, internals.begin(store, what, path, **options), wanted, _REQUEST_SECONDS)
    return getattr(store, what)(path, **options)


def _await(store: Any, request: Coroutine[Any, Any, Answer], wanted: Wanted, seconds: float | None) -> Answer:  # noqa: ANN401
    """What a request gives that runs in fsspec's thread; it is cancelled when it is not wanted any more."""
    answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    task = asyncio.run_coroutine_threadsafe(_await_answer(request, seconds, answers), store.loop)
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


async def _await_answer(
    request: Coroutine[Any, Any, Any], seconds: float | None, answers: SimpleQueue[tuple[Any, BaseException | None]]
) -> None:
    try:
        answers.put((await asyncio.wait_for(request, seconds), None))
    except (asyncio.TimeoutError, TimeoutError):
        answers.put((None, TimeoutError("it takes too long to answer")))
    except Exception as error:  # noqa: BLE001 - raised where it is waited for
        answers.put((None, error))


def _write(file: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[file.write(view) :]
    except OSError as error:
        raise DiskError(error.errno, error.strerror) from None


def _underlying(error: Exception) -> Exception:
    """What happened, less the frames in which it did."""
    return internals.what_happened(error).with_traceback(None)


def _status(error: Exception) -> int | None:
    """The HTTP status, wherever the store's library keeps it."""
    for holder in _holders(error):
        for name in ("status", "status_code", "code"):
            if isinstance(found := getattr(holder, name, None), int) and found:
                return found
        if found := _boto(holder).get("HTTPStatusCode"):
            return int(found)
    return None


def _holders(error: Exception) -> list[Any]:
    """What may know about an answer that is an error: s3fs raises errors of its own from those of boto."""
    return [error, *(getattr(each, "response", None) for each in (error, error.__cause__))]


def _boto(holder: Any) -> Mapping[str, Any]:  # noqa: ANN401
    return holder.get("ResponseMetadata", {}) if isinstance(holder, dict) else {}


def _requested_pause_seconds(error: Exception) -> float:
    """The seconds for which a store asks by Retry-After, as far as they are obeyed."""
    found = (getattr(holder, "headers", None) or _boto(holder).get("HTTPHeaders") for holder in _holders(error))
    headers = {str(name).lower(): value for each in found for name, value in (each or {}).items()}
    text = str(headers.get("retry-after", "0")).strip()
    if text.isascii() and text.isdigit():
        seconds = float(text[:9])
    else:
        try:
            until = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return 0.0
        seconds = (until.replace(tzinfo=until.tzinfo or timezone.utc) - datetime.now(timezone.utc)).total_seconds()
    return max(0.0, min(seconds, _LONGEST_PAUSE_SECONDS))


def _is_final(error: Exception) -> bool:
    status = _status(error)
    # What is not imported raised nothing.
    of_packages = tuple(getattr(sys.modules[name], kind) for name, kind in _FINAL_OF_PACKAGES if name in sys.modules)
    if isinstance(error, (*_FINAL, *of_packages)):
        return True
    return status is not None and 400 <= status < 500 and status not in _WORTH_A_RETRY


def _explain(error: Exception, url: str) -> str:
    """An error's words in one line, without secrets."""
    status, message = _status(error), getattr(error, "message", None)
    said = f"HTTP {status} {message or error}" if status is not None else f"{type(error).__name__}: {error}"
    return " ".join(without_secrets(said.replace(url, without_secrets(url))).split())


def _stated_checksum(info: Mapping[str, Any]) -> tuple[str, str] | None:
    """What Google Cloud Storage and Hugging Face say. S3's ETag is an MD5 only sometimes, and does not say when."""
    if md5 := info.get("md5Hash"):
        return "md5", base64.b64decode(md5).hex()
    lfs = info.get("lfs")
    if sha256 := lfs.get("sha256") if isinstance(lfs, Mapping) else getattr(lfs, "sha256", None):
        return "sha256", sha256
    return None
