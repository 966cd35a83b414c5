"""Existing shards as a source: their members are copied as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuloader.errors import ShardChangedError
from gpuloader.helpers.regular_file import open_regular
from gpuloader.pack.records import OpenedSource, SourceSample
from gpuloader.shards.index import Index
from gpuloader.shards.pictures import IMAGE_EXTENSIONS
from gpuloader.shards.shard_set import ShardSet


@dataclass(frozen=True, slots=True)
class TarRecord:
    """A sample of a tar.

    Attributes:
        shard: the tar's path.
        components: extension, byte offset and size of each member, the image first.
    """

    shard: str
    key: str
    components: tuple[tuple[str, int, int], ...]

    @property
    def name(self) -> str:
        return f"{self.key} in {self.shard}"

    @property
    def size_bytes(self) -> int:
        return sum(size for _, _, size in self.components)

    def read(self) -> SourceSample:
        try:
            fd = open_regular(Path(self.shard))
        except OSError as error:
            raise ShardChangedError(f"{self.shard} can no longer be opened ({error.strerror})") from None
        try:
            members = {extension: os.pread(fd, size, offset) for extension, offset, size in self.components}
        finally:
            os.close(fd)
        if sum(map(len, members.values())) != self.size_bytes:
            raise ShardChangedError(f"{self.shard} ends within {self.key!r}: it changed since it was indexed")
        extension = self.components[0][0]
        return SourceSample(members.pop(extension), extension, members)


def tars(shards: Sequence[Path], progress: bool) -> OpenedSource:
    """Opens the samples of shards, in their order; `progress` shows a bar on stderr while they are scanned.

    Raises:
        TarError: one is not a plain tar.
        NoSamplesError: they contain no image.
    """
    paths = [shard.absolute() for shard in shards]
    shard_set = ShardSet.open(paths, progress)
    index = shard_set.index
    records = [
        record for number, path in enumerate(paths) for record in _records(path, shard_set.samples_of(number), index)
    ]
    return OpenedSource(records, index.digest().hex()[:32], left_out_count=int(index.left_out_count.sum()))


def _records(shard: Path, samples: range, index: Index) -> Iterator[TarRecord]:
    ranks = {extension: rank for rank, extension in enumerate(IMAGE_EXTENSIONS)}
    for sample in samples:
        components = sorted(index.components(sample), key=lambda component: ranks.get(component[0], len(ranks)))
        yield TarRecord(str(shard), index.key(sample), tuple(components))
