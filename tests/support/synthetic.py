"""Indexes of any number of samples, without shards."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.shards import LocalShard, index_file
from gpuloader.shards.index import Index, write_index
from gpuloader.shards.index_files import size_and_time


def saved_index(shard: LocalShard) -> Index:
    """The index that is kept for a shard; an error if it is not that of the shard as it is now."""
    return Index.read(index_file(shard), *size_and_time(shard))


def with_columns(index: Index, **columns: NDArray[Any]) -> Index:
    """The index of one shard with other values in some columns."""
    keys = [key.encode("utf-8", "surrogateescape") for key in index.each_key()]
    values = {name: index.column(name) for name in Index.COLUMNS if not name.startswith(("key", "folder"))}
    shard = index.shard_bytes.item(0), index.shard_mtime_ns.item(0), index.extensions
    return Index.made(keys, {**values, **columns}, *shard, index.left_out, index.left_out_count.item(0))


def synthetic_index(keys: Sequence[bytes], shards: int, names: Sequence[str] = ()) -> bytes:
    """An index file of samples with these keys, of 7 bytes each, in shards of the same number of samples.

    Sample i is an image of 4 x 5 pixels and one byte at byte i of its shard, with the label i.
    """
    each = len(keys) // shards
    assert each * shards == len(keys)

    def shard(first: int) -> Index:
        rows = np.arange(first, first + each)
        ones = np.ones(each, np.int64)
        columns = {
            **dict.fromkeys(("image_offset", "component_offset", "label"), rows),
            **dict.fromkeys(("image_size", "component_size", "orientation"), ones),
            **dict.fromkeys(("traits", "component_extension"), 0 * ones),
            **{"height": 4 * ones, "width": 5 * ones, "component_end": rows - first + 1},
        }
        return Index.made(keys[first : first + each], columns, len(keys), 0, ["jpg"])

    indexes = [shard(first) for first in range(0, len(keys), each)]
    file = io.BytesIO()
    write_index(file, indexes, indexes, names)
    return file.getvalue()


def write_large_set(path: Path, samples: int, shards: int, names: Sequence[str] = ()) -> None:
    """An index of any number of samples in equal shards, with an image and a label 0 to 9 each."""
    each = samples // shards
    assert each * shards == samples
    rows, components = np.arange(each), np.arange(2 * each)
    columns = {
        **{"image_offset": 1024 * rows, "image_size": np.full(each, 500), "label": rows % 10},
        **dict.fromkeys(("height", "width"), np.full(each, 16)),
        **{"orientation": np.ones(each), "traits": np.zeros(each, np.uint8), "component_end": 2 * (rows + 1)},
        "component_extension": components % 2,
        "component_offset": 512 * components,
        "component_size": np.where(components % 2, 1, 500),
    }

    def shard(number: int) -> Index:
        keys = [b"%09d" % row for row in range(number * each, (number + 1) * each)]
        return Index.made(keys, columns, 1024 * each, 0, ["jpg", "cls"])

    head = shard(0).without_columns()
    with path.open("w+b") as file:
        write_index(file, [head] * shards, map(shard, range(shards)), names)
