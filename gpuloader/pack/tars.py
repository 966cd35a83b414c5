"""Existing shards as a source: their members are copied as they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from gpuloader.base.progress import count_long
from gpuloader.base.regular_file import open_regular
from gpuloader.errors import NoSamplesError, ShardChangedError
from gpuloader.pack.records import OpenedSource, Record, SourceSample, fingerprint, number_labels
from gpuloader.shards.class_names import check_filled
from gpuloader.shards.index import Index
from gpuloader.shards.index_files import open_indexes, open_set
from gpuloader.shards.paths import tars_in
from gpuloader.shards.pictures import SOURCE_EXTENSIONS
from gpuloader.shards.scan import scan_bytes, scan_to_damage
from gpuloader.shards.shard_set import ShardSet
from gpuloader.shards.tar import members


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


def class_tars(source: Path, classes: Sequence[str] | None) -> OpenedSource | None:
    """Opens a folder of CLASS.tar, or a tar of them, such as ImageNet's; None for a tar that begins with no tar.

    Classes are numbered by `classes`, or from 0 by sorted name. A key is CLASS/KEY.
    """
    source, nested = source.absolute(), source.is_file()
    found = _tars_in_tar(source) if nested else [(path, 0, path.stat().st_size) for path in tars_in(source, True)]
    if nested and not found:
        return None
    numbers, names = number_labels([path.stem for path, *_ in found], classes, lambda i: str(found[i][0]))
    records: list[Record] = []
    empty, left_out = [], 0
    for i, (path, start, size) in enumerate(count_long(found, len(found), f"indexing the tars of {source}", False)):
        shard, fields = source if nested else path, {"cls": b"%d" % numbers[i]}
        with os.fdopen(open_regular(shard), "rb") as file:
            read = partial(_read_within, file.fileno(), start, size)
            index = scan_bytes(read, size, 0, str(path), SOURCE_EXTENSIONS)
        for sample, image in enumerate(index.image_extensions().tolist()):
            record = _record(str(shard), sample, index, index.extensions[image], start)
            records.append(replace(record, key=f"{path.stem}/{record.key.removeprefix('./')}", fields=fields))
        empty += [] if len(index) else [path.stem]
        left_out += int(index.left_out_count.sum())
    if not records:
        raise NoSamplesError(f"no pictures in {source}: allowed is a folder of CLASS.tar, or a tar of them")
    check_filled(source, empty, classes, "the list in --classes FILE")
    return OpenedSource(records, fingerprint(records, names), names, left_out)


def _tars_in_tar(shard: Path) -> list[tuple[Path, int, int]]:
    """Returns (path, offset, bytes) of the tars in a tar; none if its first file is no tar."""
    with os.fdopen(open_regular(shard), "rb") as file:
        read, size = partial(os.pread, file.fileno()), shard.stat().st_size
        files = (each for each in members(read, size, str(shard)) if each.kind == "file")
        first = next(files, None)
        found = chain([first], files) if first is not None and first.name.endswith(".tar") else ()
        return [(shard / each.name, each.offset, each.size) for each in found if each.name.endswith(".tar")]


def _read_within(fd: int, start: int, size: int, count: int, offset: int) -> bytes:
    return os.pread(fd, max(0, min(count, size - offset)), start + offset)


def _record(shard: str, sample: int, index: Index, image: str, start: int = 0) -> Record:
    """Returns a sample's record, which has the extension, the byte offset and the size of each member."""
    key, parts = index.key(sample), tuple((name, start + at, size) for name, at, size in index.components(sample))
    size_bytes = sum(size for _, _, size in parts)
    return Record(f"{key} in {shard}", key, size_bytes, {}, partial(_read_members, shard, parts, image))


def _read_members(shard: str, parts: Sequence[tuple[str, int, int]], image: str, record: Record) -> SourceSample:
    try:
        file = os.fdopen(open_regular(Path(shard)), "rb")
    except OSError as error:
        raise ShardChangedError(f"{shard} can no longer be opened ({error.strerror})") from None
    with file:
        fields = {extension: os.pread(file.fileno(), size, offset) for extension, offset, size in parts}
    if sum(map(len, fields.values())) != record.size_bytes:
        raise ShardChangedError(f"{shard} ends within {record.key!r}: it changed since it was indexed")
    return SourceSample(fields.pop(image), image, {**fields, **record.fields})
