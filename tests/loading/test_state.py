"""A state gives the rest of its run; one of another run is refused with what differs: transform, shard, argument."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import loader
from making import jpeg, write_samples, write_shard
from synthetic import synthetic_index

from gpuloader import Compose, GPULoader
from gpuloader import transforms as T
from gpuloader.errors import ConfigError, StateError
from gpuloader.loading.run import Run
from gpuloader.plan import Cursor, Plan, all_samples
from gpuloader.recipe import load_preset
from gpuloader.shards import ShardSet
from gpuloader.shards.index import Index

CROP, FLIP, GRAY = T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.Normalize((0.5, 0.5, 0.5), (1.0, 1.0, 1.0))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Shards with images of other sizes in each."""
    return [
        write_samples(tmp_path_factory.mktemp(name), 4, shards=1, sizes=[(40 + number, 60)])[0]
        for number, name in enumerate("abc")
    ]


def state_of(tar: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
    with GPULoader(tar, 2, None, **kwargs) as loader:
        return json.loads(json.dumps(loader.state_dict()))


def refusal(state: Any, tar: Any, **kwargs: Any) -> str:  # noqa: ANN401
    with GPULoader(tar, 2, None, **kwargs) as loader, pytest.raises(StateError) as caught:
        loader.load_state_dict(state)
    return str(caught.value)


@pytest.mark.parametrize(
    ("saved", "now", "says"),
    [
        (Compose([CROP]), Compose([T.RandomResizedCrop(48)]), "transforms[0].RandomResizedCrop.size was 32, is 48"),
        (Compose([CROP, FLIP]), Compose([CROP]), "transforms[1] was {'RandomHorizontalFlip': {'p': 0.5}}, is absent"),
        (Compose([CROP]), Compose([CROP, GRAY]), "transforms[1] was absent, is {'Normalize': {'mean': [0.5, 0.5"),
        (
            Compose([T.RandomResizedCrop({0: 16, 2: 32})]),
            Compose([T.RandomResizedCrop({0: 24, 2: 32})]),
            "transforms[0].RandomResizedCrop.size was 16, is 24",
        ),
    ],
)
def test_the_transform_that_differs_is_named(three: list[Path], saved: Compose, now: Compose, says: str) -> None:
    message = refusal(state_of(three, preset=saved), three, preset=now)
    assert message.startswith("the state was saved with another recipe: ")
    assert says in message
    assert message.endswith("Make the loader as it was when the state was saved, or start without the state")


def erasing(p: Any) -> Compose:  # noqa: ANN401
    return Compose([CROP, T.RandomErasing(p)])


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        (erasing({0: 0.5, 9: 0.1}), erasing({0: 0.5, 9: 0.3})),
        (erasing({0: 0.5, 9: 0.1}), erasing({0: 0.5, 2: 0.3, 9: 0.1})),
        (erasing(0.5), erasing({0: 0.5, 3: 0.3})),
        (erasing({0: 0.5, 9: 0.1}), erasing(0.5)),
        (Compose([T.RandomResizedCrop({0: 16, 1: 32})]), Compose([T.RandomResizedCrop({0: 16, 1: 32, 2: 48})])),
        (Compose([CROP], mix=T.Mix(9, 1.0)), Compose([CROP], mix=T.Mix(9, {0: 1.0, 2: 0}))),
    ],
    ids=str,
)
def test_values_of_later_epochs_may_change(three: list[Path], saved: Compose, now: Compose) -> None:
    state = {**state_of(three, preset=saved), "epoch": 2}
    with GPULoader(three, 2, None, preset=now) as loader:
        loader.load_state_dict(state)
        state = loader.state_dict()
    with GPULoader(three, 2, None, preset=now) as loader:
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("delivered", "now", "says"),
    [
        (0, {0: 0.5, 1: 0.2, 3: 0.2}, "p.1 was 0.1, is 0.2. Values by epoch may change from epoch 2 on. Make the"),
        (2, {0: 0.5, 1: 0.1, 2: 0.2}, "p.2 was absent, is 0.2. Values by epoch may change from epoch 3 on. Make the"),
        (0, {0: 0.5, 2: 0.1}, "p was {'0': 0.5, '1': 0.1}, is 0.5. Values by epoch may change from epoch 2 on. Make"),
    ],
)
def test_values_of_epochs_that_have_begun_may_not_change(
    three: list[Path], delivered: int, now: dict[int, float], says: str
) -> None:
    state = {**state_of(three, preset=erasing({0: 0.5, 1: 0.1})), "epoch": 2, "delivered": delivered}
    assert f"transforms[1].RandomErasing.{says}" in refusal(state, three, preset=erasing(now))


@pytest.mark.parametrize(
    ("saved", "now", "says"),
    [
        ([0, 1, 2], [0, 2], "it had 3 shards, this loader has 2; the first that differs is shard 1, counted from 0"),
        ([0, 1, 2], [0, 2, 1], "differs is shard 1, counted from 0; here that is {2}"),
    ],
)
def test_the_shard_that_differs_is_named(three: list[Path], saved: list[int], now: list[int], says: str) -> None:
    message = refusal(state_of([three[n] for n in saved]), [three[n] for n in now])
    assert message.startswith("the state was saved with other data: ")
    assert says.format(*three) in message


def test_other_shards_of_the_same_samples_are_named_if_the_order_is_by_shard(tmp_path: Path) -> None:
    three, two = (write_samples(tmp_path / str(count), 12, shards=count) for count in (3, 2))
    with GPULoader(two, 2, None) as any_other_order:
        any_other_order.load_state_dict(state_of(three))
    assert refusal(state_of(three, shuffle="shards"), two, shuffle="shards").startswith(
        f"the state was saved with other shards of the same samples, and shuffle='shards' depends on them: it had 3 "
        f"shards, this loader has 2; the first that differs is shard 0, counted from 0; here that is {two[0]}"
    )


@pytest.mark.parametrize("state", [None, 3, "state.pt", [("epoch", 0)]])
def test_what_is_no_state_is_refused(three: list[Path], state: object) -> None:
    assert refusal(state, three) == (
        f"this is not a state of a GPULoader but {state!r}: pass what its state_dict() returned"
    )


def test_a_state_that_does_not_describe_its_run_is_told_apart_all_the_same(three: list[Path]) -> None:
    state = {**state_of(three), "described": {"recipe": None, "shards": None}}
    assert "the state has recipe='" in refusal(state, three, preset="imagenet_eval")
    assert "the state has dataset='" in refusal(state, three[:1])


def test_set_epoch_of_a_restored_epoch_does_not_begin_it_again(shards: list[Path]) -> None:
    with loader(shards, output="dict") as batches:
        next(iter(batches))
        state = batches.state_dict()
    with loader(shards) as resumed:
        resumed.load_state_dict(state)
        resumed.set_epoch(0)  # what every training loop does first
        assert len(list(resumed)) == len(resumed) - 1
        resumed.set_epoch(0)
        assert len(list(resumed)) == len(resumed)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"seed": 1}, "the state has seed=0, this loader has seed=1"),
        ({"shuffle": "block"}, "the state has shuffle='full', this loader has shuffle='block'"),
        (
            {"preset": {"imagenet_train": {"RandomResizedCrop": {"size": 48}}}},
            r"another recipe: transforms\[0\].RandomResizedCrop.size was 32, is 48. Make the loader as it was",
        ),
    ],
)
def test_a_state_of_another_run_is_refused(shards: list[Path], kwargs: dict[str, Any], message: str) -> None:
    with loader(shards) as batches:
        state = batches.state_dict()
    with loader(shards, **kwargs) as other:
        before = other.state_dict()
        with pytest.raises(StateError, match=message):
            other.load_state_dict(state)
        assert other.state_dict() == before  # nothing of it was taken over


def test_the_end_of_the_last_epoch_is_a_place_where_no_batch_comes(shards: list[Path]) -> None:
    with loader(shards) as batches:
        batches.set_epoch(2**32 - 1)
        assert len(list(batches)) == len(batches)
        state = batches.state_dict()
    with loader(shards) as batches:
        batches.load_state_dict(state)
        assert batches.state_dict() == state
        with pytest.raises(ConfigError, match=r"epoch=4294967296: allowed is an integer in \[0, 2\*\*32\)"):
            next(iter(batches))
        batches.set_epoch(0)
        assert len(list(batches)) == len(batches)


@pytest.mark.parametrize("value", [np.array([1, 2]), [torch.zeros(3)]], ids=repr)
def test_an_array_is_no_value_of_a_state(shards: list[Path], value: object) -> None:
    with loader(shards) as same:
        state = same.state_dict()
        for name in set(state) - {"described"}:  # which is compared only to say what differs
            with pytest.raises(StateError):
                same.load_state_dict({**state, name: value})
            assert same.state_dict() == state


# Many shards.


def run_over(count: int, changed: Sequence[int] = ()) -> Run:
    """A run over so many shards of one sample each; those that are `changed` have another key."""
    among = set(changed)
    index = synthetic_index([b"changed" if number in among else b"%07d" % number for number in range(count)], count)
    shards = ShardSet([Path(f"{number}.tar") for number in range(count)], Index.parse(index, "synthetic"))
    return Run(Plan(all_samples(count), 8), shards, load_preset("dino"))


def saved(run: Run) -> dict[str, Any]:
    """The state at the beginning of a run, as a loader saves it."""
    state = {**run.identity, **run.plan.state(Cursor()), "quarantine": [], "described": run.described}
    return json.loads(json.dumps(state))


@pytest.mark.slow(kept=1)
@pytest.mark.parametrize(
    ("count", "changed", "says"),
    [
        (256, [3, 200], "it had 256 shards, this loader has 256; the first that differs is shard 3, counted from 0"),
        (257, [3], "differs is among the shards 2 to 3, counted from 0; here that is 2.tar"),
        (5_000, [4_999, 600], "differs is among the shards 576 to 607, counted from 0; here that is 576.tar"),
    ],
)
def test_a_state_is_small_and_names_what_differs_among_any_number_of_shards(
    count: int, changed: Sequence[int], says: str
) -> None:
    run, state = run_over(count), saved(run_over(count, changed))
    assert len(json.dumps(state)) < 4096  # with the recipe that has the longest description
    run.resume(saved(run))
    with pytest.raises(StateError, match="the state was saved with other data") as caught:
        run.resume(state)
    assert says in str(caught.value)


def test_shards_at_the_end_are_named() -> None:
    says = "it had 301 shards, this loader has 300; the first that differs is shard 300, counted"
    with pytest.raises(StateError, match=says):
        run_over(300).resume(saved(run_over(301)))


# Labels.


def test_a_state_of_other_labels_is_refused(tmp_path: Path) -> None:
    def shard_of(name: str, labels: Sequence[int], folder: str = "") -> Path:
        samples = [
            {"__key__": f"{folder}{i}", "jpg": jpeg(20, 30), "cls": b"%d" % label} for i, label in enumerate(labels)
        ]
        return write_shard(tmp_path / f"{name}.tar", samples)

    state = state_of(shard_of("a", [0, 1, 2]))
    assert state_of(shard_of("b", [0, 1, 2]))["labels"] == state["labels"] is not None
    message = refusal(state, shard_of("c", [0, 1, 3]))
    assert message.startswith(f"the state was saved with other labels ({state['labels']!r}, here '")
    with GPULoader(shard_of("c", [0, 1, 3]), 2, None, label_from=None) as unlabelled:
        unlabelled.load_state_dict(state)  # which delivers none
    in_folder = shard_of("d", [4, 4, 4], folder="cat/")
    by_number, by_name = (state_of(in_folder, label_from=each)["labels"] for each in ("cls", "folder"))
    assert by_number != by_name == state_of(shard_of("e", [0, 0, 0], folder="cat/"))["labels"]  # the numbers count
