"""Shards appended since a state was saved: the next epoch has them, and a running one needs the earlier shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from making import jpeg, unpack, write_shard

from gpuloader import GPULoader, LabelFrom, MixedLoader
from gpuloader.errors import StateError

EACH, BEFORE, NOW = 6, 3, 5  # samples of a shard, shards when the state is saved, shards now
SMALL = {"transforms": [{"Resize": {"size": "cover"}}, {"RandomCrop": {"size": 8}}], "dtype": "uint8"}
MOVED = "other labels .* If new folders of classes changed the numbers of others, name them last"
MIDDLE = r"shards were appended .*: it has 18 samples, the loader has 30. Finish the epoch with .* up to .*2.tar;"


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    samples = [
        {"__key__": f"{'cat' if number % 2 else 'dog'}/{number:03d}", "jpg": jpeg(12, 16, seed=number), "cls": b"1"}
        for number in range(EACH * NOW)
    ]
    folder = tmp_path_factory.mktemp("appended")
    return [write_shard(folder / f"{n}.tar", samples[n * EACH : (n + 1) * EACH]) for n in range(NOW)]


def loader(tar: Any, batch_size: int = 4, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    return GPULoader(tar, batch_size, None, **{"preset": SMALL, "output": "dict", "last_batch": "partial", **kwargs})


def ids(batches: Any) -> list[int]:  # noqa: ANN401
    return [sample for batch in batches for sample in batch["index"].tolist()]


def epoch_of(of: GPULoader, epoch: int) -> list[int]:
    of.set_epoch(epoch)
    return ids(of)


def both(**kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:  # noqa: ANN401
    return kwargs, kwargs


@pytest.mark.parametrize(
    "kind",
    [
        both(),
        both(shuffle="shards", sampling={"groups": 2}),
        both(sampling={"subset": "cat/*"}),
        ({"sampling": {"weights": [1] * 18}}, {"sampling": {"weights": [1] * 30}}),
        both(label_from="folder"),
        both(sampling={"buckets": [(8, 8), (8, 16)]}, last_batch="pad"),
    ],
)
def test_a_state_between_two_epochs_goes_on_with_all(tars: list[Path], kind: tuple[dict[str, Any], Any]) -> None:
    with loader(tars[:BEFORE], **kind[0]) as old, loader(tars, **kind[1]) as new, loader(tars, **kind[1]) as fresh:
        list(old)
        new.load_state_dict(old.state_dict())
        assert ids(new) == epoch_of(fresh, 1)
        assert new.state_dict()["samples"] == EACH * NOW


def test_appended_shards_leave_the_groups_of_the_run_as_they_are(tars: list[Path]) -> None:
    with loader(tars[:BEFORE], shuffle="shards") as old, loader(tars, shuffle="shards") as new:
        list(old)
        new.load_state_dict(old.state_dict())
        assert sorted(ids(new)) == list(range(EACH * NOW))
        assert new.state_dict()["groups"] == old.state_dict()["groups"]


def test_within_an_epoch_the_shards_must_be_those_of_the_state(tars: list[Path]) -> None:
    with loader(tars[:BEFORE]) as old, loader(tars) as new, loader(tars[:BEFORE]) as again:
        epoch = iter(old)
        next(epoch)
        state, rest = old.state_dict(), ids(epoch)
        with pytest.raises(StateError, match=MIDDLE):
            new.load_state_dict(state)
        again.load_state_dict(state)
        assert ids(again) == rest


def test_an_epoch_of_a_mixed_loader_begins_with_all(tars: list[Path]) -> None:
    def mixed(shards: int) -> MixedLoader[Any]:
        return MixedLoader({"a": loader(tars[:shards]), "b": loader(tars[1:shards], 2)})

    with mixed(BEFORE) as old, mixed(NOW) as new, mixed(NOW) as fresh:
        epoch = iter(old)
        next(epoch)
        with pytest.raises(StateError, match=f"loader 'a': {MIDDLE}"):
            new.load_state_dict(old.state_dict())
        list(epoch)
        new.load_state_dict(old.state_dict())
        fresh.set_epoch(1)
        assert [(name, ids([batch])) for name, batch in new] == [(name, ids([batch])) for name, batch in fresh]


def test_a_new_class_must_not_change_the_numbers_of_others(tars: list[Path], tmp_path: Path) -> None:
    ant = write_shard(tmp_path / "ant.tar", [{"__key__": "ant/1", "jpg": jpeg(12, 12)}])
    now = [*tars[:BEFORE], ant]
    with loader(tars[:BEFORE], label_from="folder") as old:
        state = old.state_dict()
    with loader(now, label_from="folder") as new, pytest.raises(StateError, match=MOVED):
        new.load_state_dict(state)
    with loader(now, label_from=LabelFrom("folder", classes=["cat", "dog", "ant"])) as new:
        new.load_state_dict(state)
        assert EACH * BEFORE in ids(new)


def test_files_added_to_a_folder_of_pictures_are_no_appended_shards(tars: list[Path], tmp_path: Path) -> None:
    good = [{"__key__": f"{name}/1", "jpg": jpeg(12, 12)} for name in "abc"]
    folder = unpack([write_shard(tmp_path / "good.tar", good[:2])], tmp_path / "photos")
    with loader(folder, 1) as old:
        state = old.state_dict()
    unpack([write_shard(tmp_path / "more.tar", good[2:])], folder)
    with loader(folder, 1) as new, pytest.raises(StateError, match="saved with other data"):
        new.load_state_dict(state)
