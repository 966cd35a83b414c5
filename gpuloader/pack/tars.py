"""Existing shards as a source: their members are copied as they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gpuloader.errors import ShardChangedError
from gpuloader.helpers.regular_file import open_regular
from gpuloader.pack.records import OpenedSource, Record, SourceSample
from gpuloader.shards.index import Index
from gpuloader.shards.index_files import open_indexes, open_set
from gpuloader.shards.pictures import SOURCE_EXTENSIONS
from gpuloader.shards.scan import scan_to_damage
from gpuloader.shards.shard_set import ShardSet


def tars(shards: Sequence[Path], progress: bool) -> OpenedSource:
    """Opens the samples of shards, in their order; `progress` shows a bar on stderr while they are scanned."""
    paths = [shard.absolute() for shard in shards]
    indexes = open_indexes(paths, progress)
    for number, path in enumerate(paths):
        if any(indexes[number].left_out_count):  # perhaps images that only `pack` reads
            indexes[number] = scan_to_damage(path, SOURCE_EXTENSIONS)[0]
    shard_set = ShardSet(paths, index := open_set(indexes))
    shard_set.warn_of_hidden()
    images = [index.extensions[number] for number in index.image_extensions().tolist()]
    records = [
        _record(str(path), sample, index, images[sample])
        for number, path in enumerate(paths)
        for sample in shard_set.samples_of(number)
    ]
    return OpenedSource(records, index.digest().hex()[:32], left_out_count=int(index.left_out_count.sum()))


def _record(shard: str, sample: int, index: Index, image: str) -> Record:
    """Returns a sample's record, which has the extension, the byte offset and the size of each member."""
    members, key = tuple(index.components(sample)), index.key(sample)
    size_bytes = sum(size for _, _, size in members)
    return Record(f"{key} in {shard}", key, size_bytes, {}, partial(_read_members, shard, members, image))


def _read_members(shard: str, members: Sequence[tuple[str, int, int]], image: str, record: Record) -> SourceSample:
    try:
        fd = open_regular(Path(shard))
    except OSError as error:
        raise ShardChangedError(f"{shard} can no longer be opened ({error.strerror})") from None
    try:
        fields = {extension: os.pread(fd, size, offset) for extension, offset, size in members}
    finally:
        os.close(fd)
    if sum(map(len, fields.values())) != record.size_bytes:
        raise ShardChangedError(f"{shard} ends within {record.key!r}: it changed since it was indexed")
    return SourceSample(fields.pop(image), image, fields)
