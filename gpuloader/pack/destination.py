"""Where shards go: a folder, or a folder on a store (S3, Google Cloud Storage, Hugging Face).

For a store, the work is done in a temporary folder, into which the store's small files are fetched: class names,
manifests, and lists of pictures left out. Each worker moves its shard to the store, so the disk holds at most one shard
for each worker. What belongs to a shard is uploaded before it, so a shard that is on the store is finished.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuloader.errors import ConfigError, GPULoaderError, RemoteError
from gpuloader.helpers.atomic_files import write_once
from gpuloader.shards.class_names import CLASSES_FILE, MOST_CLASSES_BYTES
from gpuloader.shards.index import ShardIndex
from gpuloader.shards.index_files import INDEX_SUFFIX
from gpuloader.shards.paths import user_path
from gpuloader.shards.remote.indexes import MOST_GIVEN_BYTES, NO_TIME
from gpuloader.shards.remote.opening import each
from gpuloader.shards.remote.store import RemoteShard, list_folder
from gpuloader.shards.remote.urls import remote_protocol, without_secrets
from gpuloader.shards.remote.waiting import Wanted
from gpuloader.shards.scan import scan

MANIFEST = "pack-{prefix}.json"
LEFT_OUT = "left_out"
_REQUESTS = 16


@dataclass(frozen=True)
class Destination:
    """Where shards go.

    Attributes:
        folder: the folder; for a store, a temporary one.
        url: of the store's folder, with a slash at the end; None for a local folder.
    """

    folder: Path
    url: str | None

    def finished(self) -> dict[str, int]:
        """Returns the names and sizes in bytes of the finished shards; fetches a store's small files."""
        if self.url is None:
            return {path.name: path.stat().st_size for path in sorted(self.folder.glob("*.tar")) if path.is_file()}
        objects = list_folder(self.url)
        small = [name for name in objects if name == CLASSES_FILE or fnmatch(name, MANIFEST.format(prefix="*"))]
        lists = [f"{LEFT_OUT}/{name}" for name in list_folder(f"{self.url}{LEFT_OUT}/") if name.endswith(".jsonl")]
        each([*small, *lists], self._fetch, _REQUESTS, False, "fetching lists")
        return {name: objects[name] for name in sorted(objects) if name.endswith(".tar")}

    def write_once(self, name: str, content: bytes) -> bytes:
        """Writes a small file unless it exists, and returns its content: the first of several writers wins.

        On a store, which cannot do this at once, the last of several that write together may win. They write the same
        content if they are parts of one pack. Others find out here, unless they read it before the last wrote it.
        """
        path = self.folder / name
        if self.url is not None and not path.exists():
            path.write_bytes(content)
            RemoteShard(self.url + name).upload(path)
            self._fetch(name, lambda: True)
        return write_once(path, content)

    def read_index(self, name: str) -> ShardIndex:
        """Returns the index of a finished shard: from a scan, or from beside it on the store."""
        if self.url is None:
            return scan(self.folder / name)
        beside = RemoteShard(self.url + name).beside(INDEX_SUFFIX)
        return ShardIndex.parse(_read(beside, MOST_GIVEN_BYTES, lambda: True), str(beside))

    def _fetch(self, name: str, wanted: Wanted) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(_read(RemoteShard(f"{self.url}{name}"), MOST_CLASSES_BYTES, wanted))


@contextmanager
def open_destination(destination: str | os.PathLike[str]) -> Iterator[Destination]:
    """Opens the destination of a pack; removes the temporary folder at the end.

    Raises:
        ConfigError: it is a URL to which shards cannot be written.
    """
    given = os.fspath(destination)
    protocol = remote_protocol(given)
    if protocol is None:
        yield Destination(user_path(destination).absolute(), None)
        return
    shown = without_secrets(given)
    if protocol in ("http", "https"):
        raise ConfigError(f"{shown}: {protocol}:// cannot be written to: give a local folder, or s3://, gs:// or hf://")
    if set(given) & set("*?[{"):
        raise ConfigError(f"{shown}: allowed is the URL of one folder, without any of * ? [ {{")
    with TemporaryDirectory(prefix="gpuloader-pack-") as folder:
        try:
            yield Destination(Path(folder), f"{given.rstrip('/')}/")
        except GPULoaderError as error:  # those who see it know the URL
            error.args = tuple(str(each).replace(folder, shown.rstrip("/")) for each in error.args)
            raise


def upload(shard: Path, left_out: Path, url: str) -> None:
    """Moves a shard to the folder of a URL, after its index and its list of pictures left out, if there is one.

    Raises:
        RemoteError: the store refuses it.
    """
    index = shard.with_name(shard.name + INDEX_SUFFIX)
    replace(scan(shard), shard_mtime_ns=NO_TIME).save(index)
    if left_out.exists():
        RemoteShard(f"{url}{LEFT_OUT}/{left_out.name}").upload(left_out)
    for file in (index, shard):
        RemoteShard(url + file.name).upload(file)
        file.unlink()


def _read(shard: RemoteShard, most_bytes: int, wanted: Wanted) -> bytes:
    data = shard.read_small(most_bytes, wanted)
    if data is None:
        raise RemoteError(str(shard), f"it is missing, may not be read, or has more than {most_bytes} bytes", tries=1)
    return data
