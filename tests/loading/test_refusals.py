"""What a loader refuses: arguments, and shards that are missing, broken or changed under it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from false_values import taken
from loaders import evaluation, loader, spoilt
from making import jpeg, write_shard

from gpuloader import BadImages, Cache, GPULoader, World
from gpuloader.errors import ConfigError, LabelError, PresetError, ShardChangedError


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"batch_size": 41}, ConfigError, "40 samples are fewer than one step of .* batch_size 41"),
        ({"preset": "imagenet_trian"}, PresetError, r"no preset is called 'imagenet_trian' \(did you mean"),
        ({"output": "list"}, ConfigError, 'output=\'list\': allowed are "tuple", "dict", a function'),
        ({"output": ("image", "lable")}, ConfigError, "some of image, label, index, valid, key: in a tuple"),
        ({"output": ("image", "image")}, ConfigError, "in a tuple, each once"),
        ({"output": ()}, ConfigError, r"output=\(\): allowed are"),
        ({"output": [["image"]]}, ConfigError, r"output=\[\['image'\]\]: allowed are"),
        ({"output": {"lable": "x"}}, ConfigError, "or in a mapping to names"),
        ({"output": lambda batch: batch.get("no entry")}, ConfigError, "the function returned None: return the batch"),
        ({"output": {"image": "x", "label": "x"}}, ConfigError, "gives two entries the same name"),
        ({"tar": ["a.tar", 3]}, ConfigError, "allowed is a path, a URL, a folder, a pattern, or a list of these"),
        ({"fields": 3, "output": "dict"}, ConfigError, "fields=3: give a list of extensions"),
        ({"fields": ["json"], "output": "tuple"}, ConfigError, 'are not in output="tuple": leave output out'),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused(
    shards: list[Path], kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        next(iter(GPULoader(**{"tar": shards, "batch_size": 8, "device_id": None, **kwargs})))


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        *((name, "") for name in ("tar", "batch_size", "preset", "last_batch", "output", "world")),
        ("shuffle", "False"),
        ("seed", "0"),
        ("fields", "() [] {}"),
        *((name, "{}") for name in ("label_from", "sampling", "on_error", "decoder", "cache")),
    ],
)
def test_values_that_count_as_false_are_no_defaults(shards: list[Path], name: str, allowed: str) -> None:
    arguments: dict[str, Any] = {"tar": shards, "batch_size": 8, "device_id": None, "preset": "cifar10_eval"}
    assert taken(lambda value: GPULoader(**{**arguments, name: value}).close()) == allowed


def test_an_empty_path_is_not_the_current_folder() -> None:
    assert taken(Cache) == taken(lambda value: BadImages(known=value)) == ""  # type: ignore[arg-type]


def test_last_batch_of_torchs_drop_last_names_the_counterparts(shards: list[Path]) -> None:
    for drop_last in (False, True):
        with pytest.raises(ConfigError, match="drop_last=False is 'partial'"):
            loader(shards, 8, last_batch=drop_last)


def test_numpys_integers_are_integers(shards: list[Path]) -> None:
    with loader(shards, np.int64(8), seed=np.uint64(2**63), world=World(np.int32(0), np.int32(2))) as batches:
        next(iter(batches))
        assert json.loads(json.dumps(batches.state_dict()))["seed"] == 2**63


@pytest.mark.parametrize(
    "change",
    [
        lambda tar: os.utime(tar, ns=(1, 1)),
        lambda tar: os.truncate(tar, 20_000),
        lambda tar: os.truncate(tar, 0),
        lambda tar: tar.write_bytes(bytes(tar.stat().st_size)),
    ],
    ids=["touched", "truncated", "emptied", "overwritten"],
)
def test_a_shard_that_changes_meanwhile_is_named(tmp_path: Path, change: Callable[[Path], None]) -> None:
    tar = spoilt(tmp_path, {})
    with loader(tar, 2) as batches:
        next(iter(batches))
        change(tar)
        with pytest.raises(ShardChangedError, match=r"spoilt\.tar"):
            list(batches)


def test_a_label_that_json_lacks_is_an_error_at_its_batch(tmp_path: Path) -> None:
    samples = [{"__key__": f"{i}", "jpg": jpeg(40, 40), "json": b'{"label": 1}' if i < 3 else b"{}"} for i in range(4)]
    tar = write_shard(tmp_path / "a.tar", samples)
    with evaluation(tar, 1, label_from="json:label") as batches:
        epoch = iter(batches)
        assert [next(epoch)[1].item() for _ in range(3)] == [1, 1, 1]
        with pytest.raises(LabelError, match=r"component of '3' in .*a.tar has no 64-bit integer under 'label'"):
            next(epoch)
