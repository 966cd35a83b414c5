"""Objects on stores: their versions and bytes; failed requests are retried.

A version is identified by its size and tag: the store's ETag, or another value that changes with the content. Data is
written as it arrives. A broken download resumes where it was, unless the server does not support ranges.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from random import Random
from typing import IO, Any, TypeVar

from gpuloader.base.fsspec import HttpResponse
from gpuloader.base.text import shorten
from gpuloader.errors import DataError, RemoteError, ShardChangedError, ShardNotFoundError, describe
from gpuloader.shards.remote import failures
from gpuloader.shards.remote.cancellation import WantedCallback, check_wanted, pause
from gpuloader.shards.remote.requests import Requests, check_size, forget_listings
from gpuloader.shards.remote.urls import protocol_of, without_secrets

Result = TypeVar("Result")

FIRST_PAUSE_SECONDS = 0.5  # doubled before each further try
PROGRESS_BYTES = 4 << 20  # after this many new bytes, tries are counted from 1 again
FIRST_BLOCK_BYTES = 512 << 10  # doubled for each further block, so that a slow or bad connection also makes progress
BLOCK_BYTES = 8 << 20
_MOST_TRIES = 5
_TAG_SHOWN = 100  # characters
_TOLD_PAUSE_SECONDS = 10.0
_TAGS = ("ETag", "etag", "generation", "blob_id", "Last-Modified", "LastModified", "mtime", "updated", "created")
_random = Random()
_log = logging.getLogger("gpuloader")


@dataclass(frozen=True)
class Version:
    """A version of an object, as the store described it.

    Attributes:
        size_bytes: the size of the object.
        tag: changes with the content; "" if the store has none.
        checksum: ("md5" or "sha256", hex digits) of the content, if the store gives one.
        ranges: whether parts can be requested, as far as is known.
        merged: the merged index with this version, if it is not from the store; otherwise "".
    """

    size_bytes: int
    tag: str
    checksum: tuple[str, str] | None = field(default=None, compare=False)
    ranges: bool = field(default=True, compare=False)
    merged: str = field(default="", compare=False)


@dataclass(frozen=True, repr=False)
class RemoteShard:
    """A shard on a store.

    It is shown without the parts of its URL that may be secret: user, password and query.
    """

    url: str

    def __repr__(self) -> str:
        return f"RemoteShard({str(self)!r})"

    def __str__(self) -> str:
        return without_secrets(self.url)

    @property
    def name(self) -> str:
        """The file's name, like that of a path."""
        return PurePosixPath(str(self)).name

    @property
    def folder(self) -> str:
        """The URL of its folder, with a slash at the end and without a query."""
        return f"{self.url.partition('?')[0].rpartition('/')[0]}/"

    def in_folder(self, name: str) -> RemoteShard:
        """Returns the object of this name in its folder."""
        _, question_mark, query = self.url.partition("?")
        return RemoteShard(self.folder + name + question_mark + query)

    def beside(self, suffix: str) -> RemoteShard:
        """Returns the object with a suffix added to its name."""
        return self.in_folder(self.url.partition("?")[0].removeprefix(self.folder) + suffix)

    def version(self, wanted: WantedCallback) -> Version:
        """Asks the store for the current version.

        Raises:
            ShardNotFoundError: there is no such object.
            RemoteError: the store does not answer, or does not say how large it is.
        """

        def version(requests: Requests) -> Version:  # in the request: what cannot be read of an answer is its fault
            info = requests.info()
            if info.get("type") == "directory":
                raise ShardNotFoundError(f"{self} is a folder: end its URL with a slash to read the *.tar in it")
            if not isinstance(size := info.get("size"), int) or size < 0:
                raise RemoteError(str(self), "the store does not say how large it is", tries=1)
            tag = next((str(info[name]) for name in _TAGS if info.get(name)), "")
            return Version(size, tag, _stated_checksum(info), info.get("partial") is not False)

        return _try(self.url, version, wanted)

    def read(self, version: Version, start: int, end: int, wanted: WantedCallback) -> bytes | None:
        """Reads the bytes from `start` to before `end`; None if the store does not support ranges.

        Raises:
            ShardChangedError: the bytes are of another version.
        """

        def part(requests: Requests) -> bytes | None:
            if not requests.streams:
                return requests.read_block(start, end)
            with requests.open_answer(start, end) as answer:
                if answer.status != 206:
                    return None
                self._check_answer(answer, version, start, end)
                data = b"".join(requests.read_chunks(answer, end - start))
            check_size(len(data), end - start)
            return data

        return _try(self.url, part, wanted)

    def read_small(self, most_bytes: int, wanted: WantedCallback) -> bytes | None:
        """Reads a small object; None if it does not exist, access is refused, or it is larger than `most_bytes`."""

        def read_all(requests: Requests) -> bytes:
            if not requests.streams:
                return requests.read_beginning(most_bytes + 1)
            data = bytearray()
            with requests.open_answer() as answer:
                for chunk in requests.read_chunks(answer):
                    data += chunk
                    if len(data) > most_bytes:
                        break
            return bytes(data)

        try:
            data = _try(self.url, read_all, wanted)
        except (ShardNotFoundError, _ForbiddenError):
            return None
        if len(data) > most_bytes:
            _log.info("%s has more than %d bytes; the object is ignored", self, most_bytes)
            return None
        return data

    def download(
        self, version: Version, file: IO[bytes], wanted: WantedCallback, came: Callable[[int], None]
    ) -> Version:
        """Appends the missing bytes of the object to a file; calls `came` with the number of new bytes.

        Returns the version as the store describes it now.

        Raises:
            ShardChangedError: the object has a version other than `version`.
            DiskError: the file cannot be written.
        """

        def rest(requests: Requests) -> None:
            bytes_from = self._bytes_as_they_come if requests.streams else self._bytes_in_blocks
            for data in bytes_from(requests, now, file):
                _write(file, data)
                came(len(data))
            check_size(file.tell(), version.size_bytes)

        now = self.check_version(version, wanted)
        if file.seek(0, os.SEEK_END) > version.size_bytes:
            file.truncate(0)
        _try(self.url, rest, wanted, lambda: file.seek(0, os.SEEK_END))
        self.check_version(version, wanted)
        return now

    def upload(self, file: Path) -> None:
        """Uploads a file as the object, in place of an older one; the object appears once it is complete.

        Raises:
            RemoteError: the store refuses it, or does not answer.
        """
        try:
            _try(self.url, lambda requests: requests.upload(file), lambda: True)
        except ShardNotFoundError:
            raise RemoteError(str(self), "the store has no such bucket or repository", tries=1) from None

    def _bytes_as_they_come(self, requests: Requests, version: Version, file: IO[bytes]) -> Iterator[bytes]:
        """Yields the bytes that the file lacks. If the server does not support ranges, empties it and yields all."""
        start = file.seek(0, os.SEEK_END)
        if start == version.size_bytes:
            return
        part = (start, version.size_bytes) if version.ranges else ()
        with requests.open_answer(*part) as answer:
            start = start if answer.status == 206 else 0
            self._check_answer(answer, version, start, version.size_bytes)
            file.seek(start)
            file.truncate()
            yield from requests.read_chunks(answer, version.size_bytes - start)

    def _bytes_in_blocks(self, requests: Requests, version: Version, file: IO[bytes]) -> Iterator[bytes]:
        start, size = file.seek(0, os.SEEK_END), FIRST_BLOCK_BYTES
        while start < version.size_bytes:
            end = min(start + min(size, BLOCK_BYTES), version.size_bytes)
            yield requests.read_block(start, end)
            start, size = end, 2 * size

    def _check_answer(self, answer: HttpResponse, version: Version, start: int, end: int) -> None:
        """Raises ShardChangedError if an answer is of another version, OSError if it is of another part."""
        name = "Last-Modified" if version.tag.endswith(" GMT") else "ETag"
        tag = answer.headers.get(name.lower(), "")
        if tag and version.tag and _strong(tag) != _strong(version.tag):
            raise self._changed_error(f"now has the {name} {shorten(tag, _TAG_SHOWN)}", version)
        if answer.status == 206:
            part = answer.headers.get("content-range", "")
            expected = f"bytes {start}-{end - 1}/"
            if part not in (f"{expected}{version.size_bytes}", f"{expected}*"):
                raise OSError(f"the part {describe(part)} came in place of '{expected}{version.size_bytes}'")
        if (length := answer.headers.get("content-length")) is not None:
            check_size(int(length), end - start)

    def check_version(self, version: Version, wanted: WantedCallback) -> Version:
        """Returns the version as the store describes it now; raises ShardChangedError if it is another one."""
        forget_listings([self.url])
        if (now := self.version(wanted)) != version:
            raise self._changed_error(f"has (size, tag) {_describe(now)}", version)
        return replace(now, merged=version.merged)

    def _changed_error(self, problem: str, version: Version) -> ShardChangedError:
        when, advice = "this loader was created", "Make the loader again once the shard is final"
        if version.merged:
            when, advice = f"{version.merged} was made", "Run `gpuloader index --merge` again"
        return ShardChangedError(f"{self} {problem}, but it had (size, tag) {_describe(version)} when {when}. {advice}")


@dataclass(frozen=True)
class Entry:
    """One version of a shard on a store.

    Attributes:
        digest: returns the digest of a loader's index, which the content must match; None before there is one.
    """

    shard: RemoteShard
    version: Version
    digest: Callable[[], bytes] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def key(self) -> str:
        """The name of its files in the cache, without the suffixes."""
        names = "\0".join((self.shard.url, str(self.version.size_bytes), self.version.tag))
        # A tag may have any bytes: the store's libraries read what is not UTF-8 as surrogates.
        return hashlib.blake2b(names.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class _ForbiddenError(RemoteError):
    """Raised if the store refuses access: the credentials are missing or not sufficient."""


class DiskError(OSError):
    """Raised if writing to the local disk fails; the store is not the cause."""


def list_shards(pattern: str) -> list[RemoteShard]:
    """Lists the objects that match a glob, by name.

    Raises:
        RemoteError: the store does not answer.
    """
    objects = _try(pattern, Requests.match, lambda: True)
    files = sorted(path for path, info in objects.items() if info.get("type") != "directory")
    return [RemoteShard(f"{protocol_of(pattern)}://{path.removeprefix('/')}") for path in files]


def _try(
    url: str, request: Callable[[Requests], Result], wanted: WantedCallback, here_bytes: Callable[[], int] = lambda: 0
) -> Result:
    """Returns the result of a request; retries while this may help, or while more bytes arrive."""
    requests, shown = Requests(url, wanted), without_secrets(url)
    tries, counted_bytes = 0, here_bytes()
    while True:
        tries += 1
        check_wanted(wanted)
        try:
            return request(requests)
        except (InterruptedError, DataError, DiskError):
            raise
        except Exception as error:  # noqa: BLE001 - each store has its own errors
            failure = failures.without_frames(error)
        if failures.is_missing(failure):
            raise ShardNotFoundError(f"no such object: {shown}")
        reason = failures.explain(failure, url)
        if failures.is_forbidden(failure):
            raise _ForbiddenError(shown, reason, tries)
        if (here := here_bytes()) - counted_bytes >= PROGRESS_BYTES:
            tries, counted_bytes = 1, here
        if tries == _MOST_TRIES or failures.is_final(failure):
            raise RemoteError(shown, reason, tries)
        own_seconds = FIRST_PAUSE_SECONDS * 2 ** (tries - 1) * _random.uniform(0.5, 1)
        seconds = max(own_seconds, failures.requested_pause_seconds(failure))
        if seconds > _TOLD_PAUSE_SECONDS:
            _log.info("%s: %s: trying again in %.0f s", shown, reason, seconds)
        pause(seconds, wanted)


def _describe(version: Version) -> str:
    return f"({version.size_bytes}, {describe(version.tag, _TAG_SHOWN)})"


def _strong(tag: str) -> str:
    """Returns an entity tag without the weak mark, because servers mark only some responses."""
    return tag.removeprefix("W/")


def _write(file: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[file.write(view) :]
    except OSError as error:
        raise DiskError(error.errno, error.strerror) from None


def _stated_checksum(info: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the checksum of Google Cloud Storage or Hugging Face; S3's ETag is only sometimes an MD5, unmarked."""
    if md5 := info.get("md5Hash"):
        return "md5", base64.b64decode(md5).hex()
    lfs = info.get("lfs")
    if sha256 := lfs.get("sha256") if isinstance(lfs, Mapping) else getattr(lfs, "sha256", None):
        return "sha256", sha256
    return None
