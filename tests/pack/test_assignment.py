"""Which sample goes into which shard."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from gpuloader.errors import ConfigError
from gpuloader.pack.assignment import assign
from gpuloader.pack.options import Options


def keys(count: int) -> list[str]:
    return [f"k{i}" for i in range(count)]


def assigned(sizes: list[int | None], **arguments: object) -> dict[str, list[int]]:
    shards = assign(keys(len(sizes)), sizes, Options(**arguments))
    return {name: samples.tolist() for name, samples in shards.items()}


@pytest.mark.parametrize(
    ("sizes", "arguments", "expected"),
    [
        ([1] * 5, {"samples_per_shard": 2}, [[0, 1], [2, 3], [4]]),
        ([1] * 4, {"samples_per_shard": 2}, [[0, 1], [2, 3]]),
        ([None] * 3, {"samples_per_shard": 9}, [[0, 1, 2]]),
        ([10, 10, 10, 10], {"shard_bytes": 20}, [[0, 1], [2, 3]]),
        ([10, 10, 10, 10], {"shard_bytes": 29}, [[0, 1], [2, 3]]),
        ([10, 10, 10, 10], {"shard_bytes": 30}, [[0, 1, 2], [3]]),
        ([50, 1, 1, 50, 1], {"shard_bytes": 20}, [[0], [1, 2], [3], [4]]),  # one that is larger lies alone
        ([0, 0, 0], {"shard_bytes": 1}, [[0, 1, 2]]),
        ([1] * 1001, {}, [list(range(1000)), [1000]]),
    ],
)
def test_samples_fill_one_shard_after_the_other(
    sizes: list[int | None], arguments: dict[str, int], expected: list[list[int]]
) -> None:
    names = [f"train-{number:06d}.tar" for number in range(len(expected))]
    assert assigned(sizes, shuffle=False, **arguments) == dict(zip(names, expected, strict=True))


def test_the_order_and_the_split_of_a_seed_are_these() -> None:
    """Golden: what was packed before must come out the same again."""
    assert assigned([1] * 12, samples_per_shard=6, seed=7, val_share=0.3) == {
        "train/train-000000.tar": [1, 11, 8, 6, 9, 4],
        "train/train-000001.tar": [2, 7, 5, 0],
        "val/val-000000.tar": [3, 10],
    }


def test_every_sample_is_in_one_shard_in_an_order_of_the_seeds() -> None:
    shards = [assigned([1] * 100, samples_per_shard=7, seed=seed).values() for seed in (0, 0, 1)]
    orders = [[*chain.from_iterable(samples)] for samples in shards]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(100)) != orders[0]


def test_the_share_that_is_held_out_is_about_the_asked_one_and_stays_when_the_collection_grows() -> None:
    def held_out(count: int, seed: int = 0) -> set[int]:
        shards = assigned([1] * count, seed=seed, val_share=0.05)
        return {sample for name, samples in shards.items() if name.startswith("val/val-") for sample in samples}

    assert 400 < len(held_out(10_000)) < 600
    assert held_out(5_000) == {sample for sample in held_out(10_000) if sample < 5_000}
    assert held_out(5_000, seed=1) != held_out(5_000)


def test_shards_are_named_by_split() -> None:
    shards = assigned([1] * 40, samples_per_shard=10, prefix="part", val_share=0.5)
    assert {name.split("-")[0] for name in shards} == {"part/part", "val/val"}
    assert sorted(np.concatenate(list(shards.values())).tolist()) == list(range(40))


def test_sizes_in_bytes_need_sources_that_tell_theirs() -> None:
    with pytest.raises(ConfigError, match="this source does not tell sizes in advance; give samples_per_shard instead"):
        assigned([None], shard_bytes=5)
