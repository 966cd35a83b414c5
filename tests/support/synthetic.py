"""Indexes of any number of samples, without shards."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.shards.data_digest import DataDigest
from gpuloader.shards.index import ShardFacts, ShardIndex, write_index

KEY_BYTES = 7


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
    """An index of any number of samples, written shard by shard, with an image and a label 0 to 9 each.

    The digests of the samples are made up.
    """
    each = samples // shards
    assert each * shards == samples
    rows, components = np.arange(each), np.arange(2 * each)
    counts = {"samples": each, "components": 2 * each, "key_bytes": 9 * each}
    facts = [
        ShardFacts(1024 * each, 0, ("jpg", "cls"), (), 0, DataDigest(each, shard), counts) for shard in range(shards)
    ]

    def indexes() -> Iterator[ShardIndex]:
        for shard in range(shards):
            digits = (rows[:, None] + shard * each) // 10 ** np.arange(8, -1, -1) % 10 + ord("0")
            yield ShardIndex(
                **vars(facts[shard]),
                columns={
                    "image_offset": 1024 * rows,
                    "image_size": np.full(each, 500),
                    "height": np.full(each, 16, np.int32),
                    "width": np.full(each, 16, np.int32),
                    "orientation": np.ones(each, np.uint8),
                    "seekable": np.zeros(each, np.uint8),
                    "label": (rows + shard * each) % 10,
                    "key_end": 9 * (rows + 1),
                    "component_end": 2 * (rows + 1),
                    "component_extension": (components % 2).astype(np.int32),
                    "component_offset": 512 * components,
                    "component_size": np.where(components % 2, 1, 500),
                    "key_bytes": digits.astype(np.uint8).reshape(-1),
                },
            )

    with path.open("w+b") as file:
        write_index(file, facts, indexes(), names)
