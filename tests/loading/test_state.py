"""A state gives the rest of its run; one of another run is refused with what differs: transform, shard, argument."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import SAMPLES, loader
from making import jpeg, write_samples, write_shard
from synthetic import synthetic_index

from gpuloader import Compose, Decoder, GPULoader, World
from gpuloader.errors import ConfigError, StateError
from gpuloader.loading.run import Run
from gpuloader.plan import Cursor, Plan, all_samples
from gpuloader.recipe import load_preset
from gpuloader.shards import ShardSet
from gpuloader.shards.index import Index
from gpuloader.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop

CROP, FLIP, GRAY = RandomResizedCrop(32), RandomHorizontalFlip(), Normalize((0.5, 0.5, 0.5), (1.0, 1.0, 1.0))


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
        (Compose([CROP]), Compose([RandomResizedCrop(48)]), "transforms[0].RandomResizedCrop.size was 32, is 48"),
        (
            Compose([CROP, FLIP]),
            Compose([CROP]),
            "transforms[1] was {'RandomHorizontalFlip': {'p': 0.5}}, is absent",
        ),
        (Compose([CROP]), Compose([CROP, GRAY]), "transforms[1] was absent, is {'Normalize': {'mean': [0.5, 0.5"),
        (Compose([CROP, FLIP]), Compose([CROP, RandomHorizontalFlip(0.25)]), "RandomHorizontalFlip.p was 0.5, is 0.25"),
        (Compose([CROP]), Compose([CROP], dtype="float16"), "dtype was 'float32', is 'float16'"),
        (  # sizes by epoch have numbers for keys, which JSON writes as text
            Compose([RandomResizedCrop({0: 16, 2: 32})]),
            Compose([RandomResizedCrop({0: 16, 2: 48})]),
            "transforms[0].RandomResizedCrop.size.2 was 32, is 48",
        ),
    ],
)
def test_the_transform_that_differs_is_named(three: list[Path], saved: Compose, now: Compose, says: str) -> None:
    message = refusal(state_of(three, preset=saved), three, preset=now)
    assert message.startswith("the state was saved with another recipe: ")
    assert says in message
    assert message.endswith("Make the loader as it was when the state was saved, or start without the state")


@pytest.mark.parametrize(
    ("saved", "now", "says"),
    [
        ([0, 1, 2], [0, 2], "it had 3 shards, this loader has 2; the first that differs is shard 1, counted from 0"),
        ([1, 2], [0, 1, 2], "differs is shard 0, counted from 0; here that is {0}"),
        ([0, 1, 2], [0, 2, 1], "differs is shard 1, counted from 0; here that is {2}"),
        ([0, 1, 2], [0, 1], "differs is shard 2, counted from 0."),
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


def test_a_shard_that_was_packed_again_is_named(tmp_path: Path) -> None:
    first, second = write_samples(tmp_path, 8)
    state = state_of([first, second])
    write_samples(tmp_path / "new", 4, shards=1, sizes=[(70, 50)])[0].replace(second)
    assert f"differs is shard 1, counted from 0; here that is {second}" in refusal(state, [first, second])


def test_a_state_goes_on_where_the_shards_were_moved(three: list[Path], tmp_path: Path) -> None:
    moved = tmp_path / "moved.tar"
    moved.write_bytes(three[0].read_bytes())
    with GPULoader(moved, 2, None) as loader:
        loader.load_state_dict(state_of(three[0]))


@pytest.mark.parametrize("state", [None, 3, "state.pt", [("epoch", 0)]])
def test_what_is_no_state_is_refused(three: list[Path], state: object) -> None:
    assert refusal(state, three) == (
        f"this is not a state of a GPULoader but {state!r}: pass what its state_dict() returned"
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.pop("described"),
        lambda state: state.update(described=3),
        lambda state: state["described"].update(recipe=None, shards=None),
    ],
    ids=["absent", "a number", "empty"],
)
def test_a_state_that_does_not_describe_its_run_is_told_apart_all_the_same(
    three: list[Path], spoil: Callable[[dict[str, Any]], Any]
) -> None:
    state = state_of(three)
    spoil(state)
    assert "the state has recipe='" in refusal(state, three, preset="imagenet_eval")
    assert "the state has dataset='" in refusal(state, three[:1])


def rest(state: dict[str, Any], tar: Any, batch_size: int = 8, **kwargs: Any) -> list[Any]:  # noqa: ANN401
    with loader(tar, batch_size, output="dict", **kwargs) as batches:
        batches.load_state_dict(json.loads(json.dumps(state)))
        return list(batches)


def test_a_state_at_every_step_gives_the_rest_pixel_for_pixel(shards: list[Path]) -> None:
    with loader(shards, output="dict", preset="imagenet_train_jitter") as batches:
        batches.set_epoch(2)
        states, whole = [batches.state_dict()], []
        for batch in batches:
            states.append(batches.state_dict())
            whole.append(batch)
        after = batches.state_dict()
    for step, state in enumerate(states):
        remaining = rest(state, shards, preset="imagenet_train_jitter")
        assert len(remaining) == len(whole) - step
        for one, other in zip(remaining, whole[step:], strict=True):
            assert torch.equal(one["image"], other["image"])
            assert torch.equal(one["label"], other["label"])
            assert one["key"] == other["key"]
    assert (after["epoch"], after["delivered"]) == (3, 0)


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 5), (2, 8), (3, 3)])
def test_another_world_goes_on_with_what_is_left_and_the_same_pixels(
    shards: list[Path], world_size: int, batch_size: int
) -> None:
    with loader(shards, output="dict", last_batch="partial") as batches:
        whole = {int(i): image for batch in batches for i, image in zip(batch["index"], batch["image"], strict=True)}
        batches.set_epoch(0)
        epoch = iter(batches)
        done = [i for _ in range(3) for i in next(epoch)["index"].tolist()]
        state = batches.state_dict()
    left = {}
    for rank in range(world_size):
        for batch in rest(
            state,
            shards,
            batch_size,
            last_batch="partial",
            world=World(rank, world_size),
            decoder=Decoder(num_threads=1),
        ):
            left |= {int(i): image for i, image in zip(batch["index"], batch["image"], strict=True)}
    assert sorted([*done, *left]) == list(range(SAMPLES))
    assert all(torch.equal(image, whole[i]) for i, image in left.items())


def test_the_state_is_small_plain_and_the_same_on_every_rank(shards: list[Path], tmp_path: Path) -> None:
    states = []
    for rank in range(2):
        with loader(shards, world=World(rank, 2)) as batches:
            next(iter(batches))
            states.append(batches.state_dict())
    assert states[0] == states[1]
    assert states[0]["delivered"] == 16  # of both ranks, and none that was only prefetched
    assert len(json.dumps(states[0])) < 4096
    torch.save(states[0], tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == states[0]


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
    with loader(shards, **kwargs) as other, pytest.raises(StateError, match=message):
        other.load_state_dict(state)


def test_a_state_of_other_data_is_refused(shards: list[Path]) -> None:
    with loader(shards) as batches:
        state = batches.state_dict()
    with loader(shards[:1]) as other, pytest.raises(StateError, match="it had 2 shards, this loader has 1"):
        other.load_state_dict(state)
    with loader(shards) as same, pytest.raises(StateError, match="it lacks begin, dataset, delivered, epoch"):
        same.load_state_dict({"version": 1, "seed": 0})


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"delivered": True}, "the state cannot be resumed here: delivered=True: allowed is an integer of at least 0"),
        ({"begin": 2.5}, "begin=2.5: allowed is an integer of at least 0"),
        ({"epoch": "0"}, "epoch='0': allowed is an integer of 0 to 4294967296"),
        ({"epoch": 2**32 + 1}, "epoch=4294967297: allowed"),
    ],
)
def test_a_state_of_a_place_that_no_run_has_is_refused(shards: list[Path], place: dict[str, Any], message: str) -> None:
    with loader(shards) as batches:
        before = batches.state_dict()
        with pytest.raises(StateError, match=re.escape(message)):
            batches.load_state_dict({**before, **place})
        assert batches.state_dict() == before


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


@pytest.mark.parametrize("value", [np.array([1, 2]), torch.zeros(3), [torch.zeros(3)], np.int64(0)], ids=repr)
def test_an_array_is_no_value_of_a_state(shards: list[Path], value: object) -> None:
    with loader(shards) as same:
        state = same.state_dict()
        for name in set(state) - {"described"}:  # which is compared only to say what differs
            with pytest.raises(
                StateError, match=rf"the state.*\b{name}|the state was saved with (another recipe|other data)"
            ):
                same.load_state_dict({**state, name: value})
            assert same.state_dict() == state
    with loader(shards[:1], preset="imagenet_eval") as other, pytest.raises(StateError, match="the state was saved wi"):
        other.load_state_dict(
            {
                **state,
                "described": {"recipe": {"transforms": [value]}, "shards": {"count": 1, "run": 1, "digests": "0123"}},
            }
        )


@pytest.mark.parametrize("quarantine", [[[SAMPLES, "cut"]], [[-1, "cut"]], [["0", "cut"]], [[0]], [3], 3, None, "cut"])
def test_a_state_whose_quarantine_cannot_be_is_refused(shards: list[Path], quarantine: object) -> None:
    with (
        loader(shards) as same,
        pytest.raises(StateError, match=r"not a list of \[sample, cause\] with samples among the 40"),
    ):
        same.load_state_dict({**same.state_dict(), "quarantine": quarantine})


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


@pytest.mark.slow(kept=2)
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


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (301, 300, "it had 301 shards, this loader has 300; the first that differs is shard 300, counted from 0. Make"),
        (900, 300, "differs is among the shards 300 to 303, counted from 0."),
    ],
)
def test_shards_at_the_end_are_named(before: int, now: int, says: str) -> None:
    with pytest.raises(StateError, match="the state was saved with other data") as caught:
        run_over(now).resume(saved(run_over(before)))
    assert says in str(caught.value)


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
