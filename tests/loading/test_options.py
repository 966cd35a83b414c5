"""The values that a loader takes: each checks itself, and is also taken as a mapping of its fields, as YAML has it."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gpuloader import BadImages, Cache, Decoder, GPULoader, GPULoaderError, LabelFrom, Sampling, World
from gpuloader.errors import ConfigError
from gpuloader.loading.options import as_value

KINDS: dict[str, type[Any]] = {
    "sampling": Sampling,
    "label_from": LabelFrom,
    "on_error": BadImages,
    "decoder": Decoder,
    "cache": Cache,
    "world": World,
}

THREADS = r"Decoder\(num_threads={}\): allowed is an integer from 1 to 1024"
PREFETCH = r"Decoder\(prefetch={}\): allowed is an integer from 1 to 64"
HW_LOAD = r"Decoder\(hw_load={}\): allowed is a share in \[0, 1\], or None"
THRESHOLD = r"Decoder\(hybrid_huffman_threshold={}\): allowed is an integer from 0 to 2\*\*31 - 1, or None"
REQUIRE = r"Sampling\(require={}\): allowed is a list of extensions, such as \['txt'\]"
REGION = r"Decoder\(region={}\): allowed are True, False and None"
SHARE = r"BadImages\(max_share={}\): allowed is a share of the data in \[0, 1\]"
KNOWN = r"BadImages\(known={}\): allowed is the path of a file, or None"
MAX_BYTES = r"Cache\(max_bytes={}\): allowed is an integer of at least 1, or None"


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (Sampling, {"replacement": "no"}, r"Sampling\(replacement='no'\): allowed are True and False"),
        (BadImages, {"max_share": 1.01}, SHARE.format("1.01")),
        (BadImages, {"max_share": float("nan")}, SHARE.format("nan")),
        (BadImages, {"max_share": "1%"}, SHARE.format("'1%'")),
        (BadImages, {"known": 3}, KNOWN.format("3")),
        (Decoder, {"num_threads": 0}, THREADS.format("0")),
        (Decoder, {"num_threads": True}, THREADS.format("True")),
        (Decoder, {"prefetch": 0}, PREFETCH.format("0")),
        (Decoder, {"hw_load": 1.5}, HW_LOAD.format("1.5")),
        (Decoder, {"hybrid_huffman_threshold": 2**31}, THRESHOLD.format("2147483648")),
        (Decoder, {"region": 1}, REGION.format("1")),
        (Sampling, {"require": "txt"}, REQUIRE.format("'txt'")),  # not each of its letters
        (Sampling, {"require": [1]}, REQUIRE.format(r"\[1\]")),
        (Cache, {"folder": 3}, r"Cache\(folder=3\): allowed is the path of a folder, or None"),
        (Cache, {"max_bytes": 0}, MAX_BYTES.format("0")),
        (Cache, {"max_bytes": 5e11}, MAX_BYTES.format("500000000000.0")),
        (World, {"rank": 2, "world_size": 2}, "rank=2, world_size=2, .*: allowed are integers, 0 <= rank < world_size"),
        (World, {"rank": 0, "world_size": 1, "local_rank": -1}, "local_rank=-1, .*: allowed .* local_rank >= 0"),
    ],
)
def test_a_value_refuses_what_is_invalid(kind: type[Any], given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        kind(**given)


@pytest.mark.parametrize(
    ("given", "says"),
    [  # what only the data can tell
        ({"sampling": {"steps_per_epoch": 6}}, "steps_per_epoch=6: allowed is 1 to 5"),
        ({"sampling": {"subset": [40]}}, "subset: ids from 40 to 40: allowed is 0 to 39"),
        ({"label_from": {"place": "txt"}}, "label_from='txt': allowed are"),
        ({"label_from": {"classes": "cat"}}, "classes='cat': allowed is a list of class names"),
        ({"on_error": {"known": "nowhere.jsonl"}}, r"the quarantine file nowhere\.jsonl cannot be read"),
    ],
)
def test_a_loader_refuses_what_does_not_fit_its_data(shards: list[Path], given: dict[str, Any], says: str) -> None:
    with pytest.raises(GPULoaderError, match=says):
        GPULoader(shards, 8, None, **given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"decoder": {"threads": 2}}, "decoder: Decoder has no 'threads' (did you mean num_threads?); allowed"),
        ({"decoder": 4}, "decoder=4: allowed is a Decoder(num_threads=, prefetch=, hw_load=,"),
        ({"decoder": 0}, "decoder=0: allowed is a Decoder("),  # not "none given"
        ({"decoder": Cache()}, "decoder=Cache(folder=None, max_bytes=None): allowed is a Decoder("),
        ({"sampling": {"weight": "balanced"}}, "sampling: Sampling has no 'weight' (did you mean weights?); allowed"),
        ({"on_error": "leave"}, 'on_error=\'leave\': allowed are "raise", "replace", "skip" and a BadImages(...)'),
        ({"on_error": {"skip": 1}}, "BadImages(skip=1): allowed are True and False"),
        ({"on_error": {"skip": True, "replace": True}}, "BadImages(replace=True, skip=True): a bad image is"),
        ({"cache": "/scratch"}, "cache='/scratch': allowed is a Cache(folder=, max_bytes=), or a mapping of these"),
        ({"world": (0, 1)}, "world=(0, 1): allowed is a World(rank=, world_size=, local_rank=, local_world_size=)"),
        ({"world": {"rank": 1}}, "world={'rank': 1}: world_size is missing; give all of rank, world_size"),
    ],
)
def test_a_mapping_has_the_fields_of_its_value(shards: list[Path], given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GPULoader(shards, 8, None, **given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "hint"),
    [  # an argument that is a field of a value, and those that are spelt almost so
        ("num_threads", "decoder=Decoder(num_threads=...)"),
        ("subset", "sampling=Sampling(subset=...)"),
        ("classes", "label_from=LabelFrom(classes=...)"),
        ("max_share", "on_error=BadImages(max_share=...)"),
        ("max_bytes", "cache=Cache(max_bytes=...)"),
        ("sample_weights", "sampling=Sampling(weights=...)"),
        ("max_bad", "on_error=BadImages(max_share=...)"),
        ("batchsize", "batch_size"),
    ],
)
def test_an_argument_that_stands_in_a_value_is_hinted_at(shards: list[Path], argument: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GPULoader(shards, 8, None, **{argument: 2})
    assert str(caught.value) == f"{argument}: GPULoader has no such argument; did you mean {hint}?"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("decoder: {num_threads: 3, hw_load: 0.5}", Decoder(3, hw_load=0.5)),
        ("decoder: {}", Decoder()),
        ("on_error: {replace: true, known: bad.jsonl}", BadImages(replace=True, known="bad.jsonl")),
        ("label_from: {classes: [cat, dog]}", LabelFrom("default", ["cat", "dog"])),
        ("label_from: {place: null}", LabelFrom(None)),
        ("cache: {folder: /scratch, max_bytes: 500000}", Cache("/scratch", 500_000)),
        ("world: {rank: 1, world_size: 2, local_rank: 0}", World(1, 2, 0)),
    ],
)
def test_yaml_has_a_value_as_a_mapping(text: str, expected: object) -> None:
    [(name, given)] = yaml.safe_load(text).items()
    assert as_value(KINDS[name], name, given) == expected
    assert as_value(KINDS[name], name, expected) is expected


def test_what_is_not_said_is_at_its_default() -> None:
    assert asdict(Sampling()) == {
        "subset": None,
        "weights": None,
        "replacement": True,
        "steps_per_epoch": None,
        "buckets": None,
        "require": (),
    }
    assert asdict(LabelFrom()) == {"place": "default", "classes": None, "order": "name"}
    assert asdict(BadImages()) == {"replace": False, "max_share": 0.01, "known": None, "skip": False}
    assert asdict(Decoder()) == {
        "num_threads": None,
        "prefetch": 2,
        "hw_load": None,
        "hybrid_huffman_threshold": None,
        "region": None,
    }
    assert asdict(Cache()) == {"folder": None, "max_bytes": None}


def test_numpys_integers_become_pythons() -> None:
    values = (Decoder(np.int64(2), np.uint8(3)), Sampling(steps_per_epoch=np.int32(4)), Cache(max_bytes=np.uint64(5)))
    numbers = (values[0].num_threads, values[0].prefetch, values[1].steps_per_epoch, values[2].max_bytes)
    assert numbers == (2, 3, 4, 5)
    assert {type(number) for number in numbers} == {int}


@pytest.mark.parametrize("kind", [*KINDS.values()])
def test_a_value_cannot_be_changed_and_can_be_pickled(kind: type[Any]) -> None:
    value = kind(0, 1) if kind is World else kind()
    assert asdict(pickle.loads(pickle.dumps(value))) == asdict(value)
    with pytest.raises(FrozenInstanceError):
        value.replace = True
