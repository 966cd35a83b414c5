"""States, quarantines and names of classes with hostile values: errors of ours, or what was saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import mutated_bytes, mutated_json, mutated_trees

from gpuloader import GPULoader, MixedLoader
from gpuloader.errors import DataError, StateError
from gpuloader.shards import ShardSet, open_index, read_class_names, read_quarantine, write_quarantine
from gpuloader.shards.scan import scan


@pytest.fixture
def loader(shards: list[Path]) -> Iterator[GPULoader]:
    with GPULoader(shards, 8, None, preset="imagenet_eval") as loader:
        yield loader


def saved(loader: GPULoader) -> dict[str, Any]:
    """A state in the middle of an epoch that has met a bad image."""
    state = json.loads(json.dumps(loader.state_dict()))
    return {**state, "epoch": 3, "delivered": 16, "quarantine": [[7, "cut"]]}


def facts(state: dict[str, Any]) -> dict[str, Any]:
    """What a state says of its run and place."""
    own = {name: state[name] for name in ("version", "seed", "epoch", "delivered", "step") if name in state}
    inner = state.get("loaders", {}) if state.get("step") else {}  # before the first step each loader begins anew
    return {**own, "loaders": {name: facts(state) for name, state in inner.items()}}


def restore(loader: GPULoader | MixedLoader, states: Iterable[Any]) -> tuple[int, int]:
    """(how many, how many of them are refused); any error but StateError goes on."""
    count, said = 0, []
    for state in states:
        count += 1
        try:
            loader.load_state_dict(state)
        except StateError as error:
            said.append(str(error))
        else:
            assert facts(loader.state_dict()) == facts(state)
    assert max(map(len, said), default=0) < 3000
    return count, len(said)


def parsed(texts: Iterable[str]) -> Iterator[Any]:
    """Those that `json.loads` reads, as any program would before it loads a state."""
    for text in texts:
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            continue


def test_states_with_hostile_values(loader: GPULoader) -> None:
    state = saved(loader)
    assert restore(loader, [state, {}]) == (2, 1)
    count, refused = restore(loader, mutated_trees(state))
    assert count > 1000
    assert refused > 200
    count, refused = restore(loader, parsed(mutated_bytes_of(state, 2000)))
    assert count > 100
    assert refused > 50


def mutated_bytes_of(state: dict[str, Any], count: int) -> Iterator[str]:
    return (data.decode("utf-8", "replace") for data in mutated_bytes(json.dumps(state).encode(), count))


@pytest.mark.parametrize("strategy", ["round_robin", "weighted", "alternate"])
def test_states_of_several_loaders_with_hostile_values(shards: list[Path], strategy: Any) -> None:  # noqa: ANN401
    weights = {"a": 1, "b": 2} if strategy == "weighted" else None
    loaders = {name: GPULoader(shards, 8, None, preset="imagenet_eval") for name in "ab"}
    with MixedLoader(loaders, strategy, weights=weights) as mixed:
        state = json.loads(json.dumps(mixed.state_dict()))
        for loader_state in state["loaders"].values():
            loader_state["described"] = {}
        assert restore(mixed, [state, {}]) == (2, 1)
        count, refused = restore(mixed, mutated_trees(state))
        assert count > 1000
        assert refused > 0.5 * count


def test_quarantines_with_hostile_values(shards: list[Path], tmp_path: Path) -> None:
    shard_set, file = ShardSet.open(shards), tmp_path / "bad.jsonl"
    write_quarantine(file, shard_set, {3: "cut", 25: "no JPEG"})
    first, second = file.read_text().splitlines()
    assert read_quarantine(file, shard_set) == {3: "cut", 25: "no JPEG"}
    contents = [f"{text}\n{second}\n".encode() for text in mutated_json(json.loads(first))]
    assert read_all(contents + list(mutated_bytes(file.read_bytes(), 500)), file, shard_set) > 400


def read_all(contents: Iterable[bytes], file: Path, shard_set: ShardSet) -> int:
    """How many of them are refused as a quarantine."""
    said = []
    for content in contents:
        file.write_bytes(content)
        try:
            bad = read_quarantine(file, shard_set)
        except DataError as error:
            said.append(str(error))
        else:
            assert all(0 <= sample < 40 and isinstance(cause, str) for sample, cause in bad.items())
    assert max(map(len, said)) < 3000
    return len(said)


@pytest.mark.parametrize("classes", [["cat", "dog"], {"cat": 0, "dog": 7}])
def test_names_of_classes_with_hostile_values(tmp_path: Path, classes: object) -> None:
    texts = [text.encode() for text in mutated_json(classes)]
    for content in texts + list(mutated_bytes(json.dumps(classes).encode(), 500)):
        (tmp_path / "classes.json").write_bytes(content)
        try:
            names = read_class_names(tmp_path)
        except DataError:
            continue
        assert all(-(2**63) <= label < 2**63 and isinstance(name, str) for label, name in names.items())


def test_files_that_are_larger_than_any_are_not_read(shards: list[Path], tmp_path: Path) -> None:
    for name in ("bad.jsonl", "classes.json", "train-0000.tar.gpuidx"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)  # sparse: it takes no room on the disk
    with pytest.raises(DataError, match=r"classes\.json cannot be read"):
        read_class_names(tmp_path)
    with pytest.raises(DataError, match=r"bad\.jsonl cannot be read"):
        read_quarantine(tmp_path / "bad.jsonl", ShardSet.open(shards))
    shard = Path(shutil.copy(shards[0], tmp_path))
    assert open_index(shard).digest() == scan(shard).digest()
