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
from gpuloader.recipe.part import as_value


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (Sampling, {"replacement": "no"}, "`Sampling.replacement`: found 'no': allowed is True or False"),
        (Sampling, {"require": "txt"}, "`Sampling.require`: found 'txt': allowed is a list"),  # not letters
        (LabelFrom, {"classes": "cat"}, "`LabelFrom.classes`: found 'cat': "),
        (BadImages, {"max_share": 1.01}, "`BadImages.max_share`: found 1.01: allowed is a number of at most 1"),
        (BadImages, {"max_share": float("nan")}, "`BadImages.max_share`: found nan: "),
        (BadImages, {"skip": True, "replace": True}, "`BadImages`: replace=True and skip=True: a bad image is"),
        (Decoder, {"num_threads": True}, "`Decoder.num_threads`: found True: allowed is an integer"),
        (Decoder, {"prefetch": 0}, "`Decoder.prefetch`: found 0: allowed is a number of at least 1"),
        (Decoder, {"hw_load": 1.5}, "`Decoder.hw_load`: found 1.5: "),
        (Cache, {"max_bytes": 5e11}, "`Cache.max_bytes`: found 500000000000.0: allowed is an integer"),
        (World, {"rank": 2, "world_size": 2}, "rank=2, world_size=2, local_rank=2, local_world_size=1: allowed are"),
    ],
)
def test_a_value_refuses_what_is_invalid(kind: type[Any], given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [  # what only the data can tell
        ({"sampling": {"repeats": 0}}, "repeats=0: allowed is an integer of at least 1"),
        ({"label_from": {"place": "txt"}}, "label_from='txt': allowed are"),
        ({"on_error": {"known": "nowhere.jsonl"}}, r"the quarantine file nowhere\.jsonl cannot be read"),
    ],
)
def test_a_loader_refuses_what_does_not_fit_its_data(shards: list[Path], given: dict[str, Any], says: str) -> None:
    with pytest.raises(GPULoaderError, match=says):
        GPULoader(shards, 8, None, **given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"decoder": {"threads": 2}}, "`decoder.threads` is an unknown key (did you mean num_threads?); allowed"),
        ({"decoder": 0}, "decoder=0: allowed is a Decoder(num_threads=, prefetch=, hw_load=,"),  # not "none given"
        ({"on_error": "leave"}, 'on_error=\'leave\': allowed are "raise", "replace", "skip" and a BadImages(...)'),
        ({"on_error": {"skip": 1}}, "`on_error.skip`: found 1: allowed is True or False"),
        ({"world": {"rank": 1}}, "missing 1 required positional argument: 'world_size'"),
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
        ("classes", "label_from=LabelFrom(classes=...)"),
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
        ("on_error: {replace: true, known: bad.jsonl}", BadImages(replace=True, known="bad.jsonl")),
        ("label_from: {classes: [cat, dog]}", LabelFrom("default", ["cat", "dog"])),
        ("label_from: {place: null}", LabelFrom(None)),
        ("cache: {folder: /scratch, max_bytes: 500000}", Cache("/scratch", 500_000)),
    ],
)
def test_yaml_has_a_value_as_a_mapping(text: str, expected: object) -> None:
    [(name, given)] = yaml.safe_load(text).items()
    assert as_value(type(expected), name, given) == expected
    assert as_value(type(expected), name, expected) is expected


def test_numpys_integers_become_pythons() -> None:
    values = (Decoder(np.int64(2), np.uint8(3)), Sampling(steps_per_epoch=np.int32(4)), Cache(max_bytes=np.uint64(5)))
    numbers = (values[0].num_threads, values[0].prefetch, values[1].steps_per_epoch, values[2].max_bytes)
    assert numbers == (2, 3, 4, 5)
    assert {type(number) for number in numbers} == {int}


@pytest.mark.parametrize("kind", [Sampling, LabelFrom, BadImages, Decoder, Cache, World])
def test_a_value_cannot_be_changed_and_can_be_pickled(kind: type[Any]) -> None:
    value = kind(0, 1) if kind is World else kind()
    assert asdict(pickle.loads(pickle.dumps(value))) == asdict(value)
    with pytest.raises(FrozenInstanceError):
        value.replace = True
