"""Shards appended since a state was saved: its epoch goes on without them, bit for bit, and the next one has all."""

from __future__ import annotations

import json
import logging
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import jpeg, unpack, write_shard

from gpuloader import BadImages, GPULoader, LabelFrom, MixedLoader, Sampling, World
from gpuloader.errors import StateError

EPOCH = 2
EACH, BEFORE, NOW = 6, 3, 5  # samples of a shard, shards when the state is saved, shards now
OLD = EACH * BEFORE
SMALL = {"transforms": [{"Resize": {"size": "cover"}}, {"RandomCrop": {"size": 8}}], "dtype": "uint8"}
WEIGHTS = np.arange(EACH * NOW) % 4 + 0.5
BAD = {4: jpeg(12, 16)[:-30], 13: b"no image", 20: b"no image"}


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Shards of 6 samples; two of three samples have a text, and three are bad."""
    samples = [
        {
            "__key__": f"{'cat' if number % 2 else 'dog'}/{number:03d}",
            "jpg": BAD.get(number, jpeg(*[(12, 16), (16, 12), (14, 14)][number % 3], seed=number)),
            "cls": b"%d" % (number % 4),
            **({"txt": b"text"} if number % 3 else {}),
        }
        for number in range(EACH * NOW)
    ]
    folder = tmp_path_factory.mktemp("appended")
    return [write_shard(folder / f"{n}.tar", samples[n * EACH : (n + 1) * EACH]) for n in range(NOW)]


def loader(tar: Any, batch_size: int = 4, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    given = {
        "preset": SMALL,
        "output": "dict",
        "last_batch": "partial",
        "on_error": BadImages(replace=True, max_share=0.5),
        **kwargs,
    }
    return GPULoader(tar, batch_size, None, **given)


def received(batches: Iterable[Any]) -> list[list[Any]]:
    """Each batch's samples, or their replacements: their numbers, whether they are valid, and their pixels."""
    return [
        [
            (index, valid, zlib.crc32(image.numpy().tobytes()))
            for index, valid, image in zip(batch["index"].tolist(), batch["valid"].tolist(), batch["image"])
        ]
        for batch in batches
    ]


def stopped(of: Any, steps: int = 2, epoch: int = EPOCH) -> tuple[dict[str, Any], list[Any]]:  # noqa: ANN401
    """A loader's state after some steps of an epoch, and the rest of the epoch."""
    of.set_epoch(epoch)
    batches = iter(of)
    for _ in range(steps):
        next(batches)
    state = json.loads(json.dumps(of.state_dict()))
    return state, received(batches)


def epoch_of(of: Any, epoch: int) -> list[Any]:  # noqa: ANN401
    of.set_epoch(epoch)
    return received(of)


def subset(**kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"sampling": Sampling(**kwargs)}


def same(**arguments: Any) -> Callable[[list[Path], int], dict[str, Any]]:  # noqa: ANN401
    return lambda tars, shards: {"tar": tars[:shards], **arguments}


def large(columns: dict[str, Any]) -> Any:  # noqa: ANN401
    """Depends on all samples: those of more bytes than the mean."""
    return columns["size_bytes"] > columns["size_bytes"].mean()


def known(tars: list[Path], shards: int) -> dict[str, Any]:
    """A list of bad images, of which one is in a new shard if there are new ones."""
    path = tars[0].with_name(f"{shards}.jsonl")
    with loader(tars[:shards]) as each:
        list(each)
        each.write_quarantine(path)
    return {"tar": tars[:shards], "on_error": BadImages(replace=True, max_share=0.5, known=path)}


# The arguments of the loader over so many of the shards.
KINDS: dict[str, Callable[[list[Path], int], dict[str, Any]]] = {
    "all": same(),
    "by shard": same(shuffle="shards", last_batch="pad"),
    "in order": same(shuffle="none", last_batch="drop"),
    "fewer steps": same(**subset(steps_per_epoch=3)),
    "a pattern": same(**subset(subset="cat/*")),
    "a function": same(**subset(subset=large)),
    "the end": same(**subset(subset=slice(-12, None))),
    "keys": lambda tars, shards: {
        "tar": tars[:shards],
        **subset(subset=[f"dog/{number:03d}" for number in range(0, shards * EACH, 2)]),
    },
    "ids": lambda tars, shards: {"tar": tars[:shards], **subset(subset=range(1, shards * EACH, 2))},
    "require": same(**subset(require=["txt"]), fields=["txt"]),
    "balanced": same(**subset(weights="balanced", subset="*/*[0-6]")),
    "by label": same(**subset(weights={0: 1, 1: 2, 2: 0, 3: 0.5})),
    "by sample": lambda tars, shards: {
        "tar": tars[:shards],
        **subset(weights=WEIGHTS[: shards * EACH], replacement=False),
    },
    "folders": same(label_from="folder"),
    "sources": lambda tars, shards: {"tar": [{"tar": tars[0], "weight": 2}, {"tar": tars[1:shards]}]},
    "buckets": same(**subset(buckets={"sizes": [(8, 8), (8, 16)], "unknown": "skip"}), last_batch="pad"),
    "known": known,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_epoch_goes_on_as_it_would_have_and_the_next_one_has_all(tars: list[Path], kind: str) -> None:
    before, now = (KINDS[kind](tars, shards) for shards in (BEFORE, NOW))
    with loader(**before) as old, loader(**now) as new, loader(**now) as fresh:
        state, rest = stopped(old)
        new.load_state_dict(state)
        assert (len(new), new.num_samples, new.state_dict()) == (len(old), old.num_samples, state)
        assert received(new) == rest
        assert epoch_of(fresh, EPOCH + 1) == received(new)
        assert (len(new), new.num_samples) == (len(fresh), fresh.num_samples)
        assert {**new.state_dict(), "quarantine": []} == {**fresh.state_dict(), "quarantine": []}


@pytest.fixture(scope="module")
def epochs(tars: list[Path]) -> dict[str, Any]:
    """The samples of an epoch over the shards of before, a state within it, and the next epoch over all shards."""
    with loader(tars[:BEFORE]) as old, loader(tars) as fresh:
        state, _ = stopped(old)
        return {
            "state": state,
            "running": list(chain(*epoch_of(old, EPOCH))),
            "following": list(chain(*epoch_of(fresh, EPOCH + 1))),
        }


@settings(max_examples=8, deadline=None)
@given(st.integers(1, OLD), st.integers(1, 3), st.integers(1, 7))
def test_from_any_cursor_on_any_number_of_ranks(
    tars: list[Path], epochs: dict[str, Any], delivered: int, ranks: int, batch_size: int
) -> None:
    of_ranks = []
    for rank in range(ranks):
        with loader(tars, batch_size, world=World(rank, ranks)) as each:
            each.load_state_dict({**epochs["state"], "delivered": delivered})
            of_ranks.append((received(each), received(each)))
    running, following = (together(part) for part in zip(*of_ranks))
    assert running == epochs["running"][delivered:]
    assert following == epochs["following"]


def together(of_ranks: Iterable[list[Any]]) -> list[Any]:
    """What the ranks got, step after step; they have the same number of steps."""
    return [sample for step in zip(*of_ranks, strict=True) for batch in step for sample in batch]


def test_a_state_of_the_running_epoch_is_the_same_with_any_shards_behind(tars: list[Path]) -> None:
    with loader(tars[:BEFORE]) as old, loader(tars[:4]) as more, loader(tars) as all_of_them:
        state, rest = stopped(old, 1)
        more.load_state_dict(state)
        batches = iter(more)
        next(batches)
        state = more.state_dict()
        assert (state["samples"], state["delivered"]) == (OLD, 8)
        all_of_them.load_state_dict(state)
        assert received(all_of_them) == received(batches) == rest[1:]
        old.load_state_dict(state)
        assert received(old) == rest[1:]


def test_a_state_between_two_epochs_goes_on_with_all(tars: list[Path]) -> None:
    with loader(tars[:BEFORE]) as old, loader(tars) as new, loader(tars) as fresh:
        last, _ = stopped(old, len(old))
        between = old.state_dict()
        following = epoch_of(fresh, EPOCH + 1)
        assert (last["epoch"], between["epoch"], between["delivered"]) == (EPOCH, EPOCH + 1, 0)
        new.load_state_dict(between)
        assert new.state_dict()["samples"] == EACH * NOW
        assert received(new) == following
        new.load_state_dict(last)  # all but the end of the loop is done
        assert (received(new), received(new)) == ([], following)


def test_another_epoch_and_one_begun_after_a_break_have_all(tars: list[Path]) -> None:
    with loader(tars[:BEFORE]) as old, loader(tars) as new, loader(tars) as fresh:
        state, rest = stopped(old)
        new.load_state_dict(state)
        new.set_epoch(7)
        assert (len(new), received(new)) == (len(fresh), epoch_of(fresh, 7))
        new.load_state_dict(state)
        assert received([next(iter(new))]) == rest[:1]
        assert received(new) == epoch_of(fresh, EPOCH + 1)


def test_one_line_says_so_on_the_first_rank_of_a_machine(tars: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    with loader(tars[:BEFORE]) as old:
        state, _ = stopped(old)
        beginning = {**state, "delivered": 0}
    caplog.clear()
    for rank in range(2):
        with loader(tars, world=World(rank, 2, rank)) as new, caplog.at_level(logging.WARNING, "gpuloader"):
            new.load_state_dict(state)
            new.load_state_dict(beginning)
    what = "the data has 2 new shards with 12 samples since the state was saved: epoch 2"
    assert caplog.messages == [f"{what} goes on with the first 18 samples, epoch 3 has all", f"{what} has all"]


def test_it_can_be_pickled_and_knows_the_bad_images(tars: list[Path]) -> None:
    with loader(tars[:BEFORE]) as old, loader(tars) as new:
        state, rest = stopped(old, 4)
        assert state["quarantine"]
        new.load_state_dict(state)
        with pickle.loads(pickle.dumps(new)) as copy:
            assert copy.stats().bad == new.stats().bad == dict(state["quarantine"])
            assert received(copy) == rest


def test_only_the_shards_of_before_count_for_the_share_of_bad_images(tars: list[Path]) -> None:
    allowed = BadImages(replace=True, max_share=1.9 / OLD)  # one of 18, and three of 30
    with loader(tars[:BEFORE], on_error=allowed, shuffle="none") as old:
        state = {**old.state_dict(), "delivered": 4}
    with loader(tars, on_error=allowed, shuffle="none") as new:
        new.load_state_dict(state)
        with pytest.raises(Exception, match="2 of 18 images are bad"):
            list(new)


# --- what is refused


def moved(tars: list[Path], folder: Path) -> list[Path]:
    """A shard whose folder sorts before the others."""
    return [*tars[:BEFORE], write_shard(folder / "ant.tar", [{"__key__": "ant/1", "jpg": jpeg(12, 12)}])]


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (same(), lambda tars, _: {"tar": [*tars[:2], tars[3], tars[2]]}, "new or changed here are .*3.tar"),
        (same(), lambda tars, _: {"tar": [*tars[1:BEFORE], tars[3]]}, "missing or changed here are the saved shards 0"),
        (
            lambda tars, shards: {"tar": [{"tar": tars[:1]}, {"tar": tars[1:shards]}]},
            lambda tars, _: {"tar": [{"tar": [tars[0], tars[3]]}, {"tar": tars[1:BEFORE]}]},
            "it had 3 shards, this loader has 4; new or changed here are .*3.tar",
        ),
        (same(seed=1), same(), "seed=1"),
        (same(), same(shuffle="none"), "shuffle='full'"),
        (same(**subset(subset="cat/*")), same(**subset(subset="dog/*")), "sampling="),
        (
            same(**subset(subset=[0])),
            same(**subset(subset=[29])),
            r"first 18 samples .* do not fit these: subset: it se",
        ),
        (same(label_from="folder"), same(label_from=LabelFrom("folder", classes=["dog", "cat"])), "labels"),
    ],
)
def test_a_state_of_other_data_or_arguments_is_refused(
    tars: list[Path],
    before: Callable[[list[Path], int], dict[str, Any]],
    now: Callable[[list[Path], int], dict[str, Any]],
    says: str,
) -> None:
    with loader(**before(tars, BEFORE)) as old, loader(**now(tars, NOW)) as new:
        with pytest.raises(StateError, match=says):
            new.load_state_dict(old.state_dict())
        assert new.state_dict()["samples"] == new.dataset.num_samples


def test_a_new_class_must_not_change_the_numbers_of_others(tars: list[Path], tmp_path: Path) -> None:
    with loader(tars[:BEFORE], label_from="folder") as old:
        state, rest = stopped(old)
    now = moved(tars, tmp_path)
    with (
        loader(now, label_from="folder") as new,
        pytest.raises(
            StateError, match=r"other labels .* If new folders of classes changed the numbers of others, name them last"
        ),
    ):
        new.load_state_dict(state)
    with loader(now, label_from=LabelFrom("folder", classes=["cat", "dog", "ant"])) as new:
        new.load_state_dict(state)
        assert new.classes == ("cat", "dog", "ant")
        assert received(new) == rest


def test_a_new_class_behind_the_others_may_have_a_weight(tars: list[Path], tmp_path: Path) -> None:
    new_class = write_shard(tmp_path / "fox.tar", [{"__key__": "fox/1", "jpg": jpeg(12, 12)}])
    weights = {"cat": 1, "dog": 2}
    with (
        loader(tars[:BEFORE], label_from="folder", **subset(weights=weights)) as old,
        loader([*tars[:BEFORE], new_class], label_from="folder", **subset(weights={**weights, "fox": 9})) as new,
    ):
        state, rest = stopped(old)
        new.load_state_dict(state)
        assert received(new) == rest
        assert any(index == OLD for batch in received(new) for index, *_ in batch)


def test_files_added_to_a_folder_of_pictures_are_no_appended_shards(tars: list[Path], tmp_path: Path) -> None:
    good = [{"__key__": f"{name}/1", "jpg": jpeg(12, 12)} for name in "abc"]
    folder = unpack([write_shard(tmp_path / "good.tar", good[:2])], tmp_path / "photos")
    with loader(folder, 1) as old:
        state, _ = stopped(old, 1)
    unpack([write_shard(tmp_path / "more.tar", good[2:])], folder)
    with loader(folder, 1) as new, pytest.raises(StateError, match="saved with other data"):
        new.load_state_dict(state)


# --- in a MixedLoader


@pytest.mark.parametrize(
    "mode",
    [
        {"strategy": "round_robin", "stop": "cycle"},
        {"strategy": "weighted", "weights": {"a": 1, "b": 2}, "stop": "longest"},
        {"strategy": "sequential"},
        {"strategy": "alternate"},
    ],
)
def test_the_epoch_of_a_mixed_loader_goes_on_so_too(tars: list[Path], mode: dict[str, Any]) -> None:
    def mixed(shards: int) -> MixedLoader[Any]:
        return MixedLoader({"a": loader(tars[:shards]), "b": loader(tars[1:shards], 3)}, **mode)

    def named(batches: Iterable[Any]) -> list[Any]:
        return [(name, received([batch])) for name, batch in batches]

    with mixed(BEFORE) as old, mixed(NOW) as new, mixed(NOW) as fresh:
        old.set_epoch(EPOCH)
        batches: Iterator[Any] = iter(old)
        steps = len(old)
        for _ in range(4):
            next(batches)
        state = json.loads(json.dumps(old.state_dict()))
        rest = named(batches)
        new.load_state_dict(state)
        assert (len(new), {**new.state_dict(), "loaders": {}}) == (steps, {**state, "loaders": {}})
        with pickle.loads(pickle.dumps(new)) as copy:
            batches = iter(copy)
            first = named([next(batches)])
            again = copy.state_dict()
        assert first == rest[:1]
        new.load_state_dict(again)
        assert named(new) == rest[1:]
        between = new.state_dict()
        fresh.set_epoch(EPOCH + 1)
        following = named(fresh)
        assert (len(new), named(new)) == (len(following), following)
        new.load_state_dict(between)
        assert named(new) == following


# --- with a change of the sampling


def mixed(tars: list[Path], shards: int, weight: float) -> list[dict[str, Any]]:
    return [{"tar": tars[0], "weight": weight}, {"tar": tars[1:shards], "weight": 1}]


def test_weights_may_change_when_shards_were_appended(tars: list[Path]) -> None:
    with loader(mixed(tars, BEFORE, 1)) as before, loader(mixed(tars, BEFORE, 2)) as changed:
        state, _ = stopped(before)
        changed.load_state_dict(state, change_sampling=True)
        rest = received(changed)
    with loader(mixed(tars, NOW, 2)) as now, loader(mixed(tars, NOW, 2)) as fresh:
        with pytest.raises(StateError, match="change_sampling=True"):
            now.load_state_dict(state)
        now.load_state_dict(state, change_sampling=True)
        assert received(now) == rest
        assert received(now) == epoch_of(fresh, EPOCH + 1)


def test_another_subset_begins_with_the_next_epoch_and_all_shards(tars: list[Path]) -> None:
    with loader(tars[:BEFORE]) as before:
        state, _ = stopped(before)
    arguments = subset(subset="cat/*")
    with loader(tars, **arguments) as now, loader(tars, **arguments) as fresh:
        now.load_state_dict(state, change_sampling=True)
        assert received(now) == epoch_of(fresh, EPOCH + 1)
