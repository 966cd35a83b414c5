"""Indexes of any number of samples, without shards."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.shards.data_digest import DataDigest
from gpuloader.shards.index import ShardFacts, ShardIndex, write_index

KEY_BYTES = 7


def with_columns(index: ShardIndex, **columns: NDArray[Any]) -> ShardIndex:
    """An index with other values in some columns."""
    return replace(index, columns={**index.columns, **columns})


def synthetic_index(keys: Sequence[bytes], shards: int) -> bytes:
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
    write_index(file, facts, [all_of_them])
    return file.getvalue()
