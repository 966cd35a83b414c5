"""Indexes of any number of samples, without shards."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.shards.data_digest import DataDigest
from gpuloader.shards.index import ShardFacts, ShardIndex, write_index

KEY_BYTES = 7
_PART = 200_000


def with_columns(index: ShardIndex, **columns: NDArray[Any]) -> ShardIndex:
    """An index with other values in some columns."""
    return replace(index, columns={**index.columns, **columns})


def synthetic_index(keys: Sequence[bytes], shards: int, names: Sequence[str] = ()) -> bytes:
    """An index file of samples with these keys, of 7 bytes each, in shards of the same number of samples.

    Sample i is an image of 4 x 5 pixels and one byte at byte i of its shard, with the label i.
    """
    each = len(keys) // shards
    assert each * shards == len(keys)
    counts = {"samples": each, "components": each, "key_bytes": KEY_BYTES * each}
    facts = [
        ShardFacts(len(keys), 0, ("jpg",), (), 0, DataDigest.of((key, 4, 5) for key in keys[at : at + each]), counts)
        for at in range(0, len(keys), each)
    ]
    rows = np.arange(len(keys))
    ones = np.ones(len(keys), np.int32)
    all_of_them = ShardIndex(
        **vars(facts[0]),
        columns={
            "image_offset": rows,
            "image_size": ones.astype(np.int64),
            "height": 4 * ones,
            "width": 5 * ones,
            "orientation": ones.astype(np.uint8),
            "seekable": 0 * ones.astype(np.uint8),
            "label": rows,
            "key_end": KEY_BYTES * (rows + 1),
            "component_end": rows + 1,
            "component_extension": 0 * ones,
            "component_offset": rows,
            "component_size": ones.astype(np.int64),
            "key_bytes": np.frombuffer(b"".join(keys), np.uint8),
        },
    )
    file = io.BytesIO()
    write_index(file, facts, [all_of_them], names)
    return file.getvalue()


def write_large_set(path: Path, samples: int, shards: int, names: Sequence[str] = ()) -> None:
    """An index of any number of samples, written in parts, with an image and a label 0 to 9 each.

    The digests of the samples are made up.
    """
    each = samples // shards
    assert each * shards == samples
    counts = {"samples": each, "components": 2 * each, "key_bytes": 9 * each}
    facts = [
        ShardFacts(1024 * each, 0, ("jpg", "cls"), (), 0, DataDigest(each, shard), counts) for shard in range(shards)
    ]

    def part(first: int, end: int) -> ShardIndex:
        rows, components = np.arange(end - first), np.arange(2 * (end - first))
        digits = (rows[:, None] + first) // 10 ** np.arange(8, -1, -1) % 10 + ord("0")
        columns = {
            "image_offset": 1024 * (rows % each),
            "image_size": np.full(len(rows), 500),
            "height": np.full(len(rows), 16, np.int32),
            "width": np.full(len(rows), 16, np.int32),
            "orientation": np.ones(len(rows), np.uint8),
            "seekable": np.zeros(len(rows), np.uint8),
            "label": (rows + first) % 10,
            "key_end": 9 * (rows + 1),
            "component_end": 2 * (rows + 1),
            "component_extension": (components % 2).astype(np.int32),
            "component_offset": 512 * (components % (2 * each)),
            "component_size": np.where(components % 2, 1, 500),
            "key_bytes": digits.astype(np.uint8).reshape(-1),
        }
        lengths = {"samples": len(rows), "components": 2 * len(rows), "key_bytes": 9 * len(rows)}
        return ShardIndex(**{**vars(facts[0]), "counts": lengths}, columns=columns)

    parts = (part(first, min(first + _PART, samples)) for first in range(0, samples, _PART))
    with path.open("w+b") as file:
        write_index(file, facts, parts, names)
