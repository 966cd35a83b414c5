"""Existing shards as a source: their members are copied as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuloader.errors import ShardChangedError
from gpuloader.helpers.regular_file import open_regular
from gpuloader.pack.records import OpenedSource, Sample
from gpuloader.shards.index import IMAGE_EXTENSIONS, ShardIndex
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

    def read(self) -> Sample:
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
        return Sample(members.pop(extension), extension, members)


def tars(shards: Sequence[Path], progress: bool) -> OpenedSource:
    """Opens the samples of shards, in their order; `progress` shows a bar on stderr while they are scanned.

    Raises:
        TarError: one is not a plain tar.
        NoSamplesError: they contain no image.
    """
    paths = [shard.absolute() for shard in shards]
    shard_set = ShardSet.open(paths, progress)
    records = [record for path, (_, index) in zip(paths, shard_set.indexes) for record in _records(path, index)]
    left_out_count = sum(index.left_out_count for _, index in shard_set.indexes)
    return OpenedSource(records, shard_set.fingerprint, left_out_count=left_out_count)


def _records(shard: Path, index: ShardIndex) -> Iterator[TarRecord]:
    ranks = {extension: rank for rank, extension in enumerate(IMAGE_EXTENSIONS)}
    start = 0
    for row, end in enumerate(index.component_end.tolist()):
        components = sorted(
            (
                (
                    index.extensions[index.component_extension[i]],
                    int(index.component_offset[i]),
                    int(index.component_size[i]),
                )
                for i in range(start, end)
            ),
            key=lambda component: ranks.get(component[0], len(ranks)),
        )
        yield TarRecord(str(shard), index.key(row), tuple(components))
        start = end
