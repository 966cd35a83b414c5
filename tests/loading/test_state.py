"""A state of another run is refused with what differs: the transform, the shard, the argument."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from making import write_samples

from gpuloader import Compose, GPULoader, StateError
from gpuloader.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop

CROP, FLIP, GRAY = RandomResizedCrop(32), RandomHorizontalFlip(), Normalize((0.5, 0.5, 0.5), (1.0, 1.0, 1.0))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Shards with other images in each."""
    return [write_samples(tmp_path_factory.mktemp(name), 4, shards=1, seed=seed)[0] for seed, name in enumerate("abc")]


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
        ([0, 1, 2], [0, 2], "it had 3 shards, this loader has 2; missing or changed here are its numbers 1, counted"),
        ([0, 1], [0, 1, 2], "it had 2 shards, this loader has 3; new or changed here are {2}"),
        ([0, 1], [0, 2], "numbers 1, counted from 0; new or changed here are {2}"),
        ([0, 1, 2], [0, 2, 1], "the same shards in another order; at other places are {2}, {1}"),
    ],
)
def test_the_shard_that_differs_is_named(three: list[Path], saved: list[int], now: list[int], says: str) -> None:
    message = refusal(state_of([three[n] for n in saved]), [three[n] for n in now])
    assert message.startswith("the state was saved with other data: ")
    assert says.format(*three) in message


def test_a_shard_that_was_packed_again_is_named(tmp_path: Path) -> None:
    first, second = write_samples(tmp_path, 8)
    state = state_of([first, second])
    write_samples(tmp_path / "new", 4, shards=1, seed=9)[0].replace(second)
    assert f"numbers 1, counted from 0; new or changed here are {second}" in refusal(state, [first, second])


def test_a_state_goes_on_where_the_shards_were_moved(three: list[Path], tmp_path: Path) -> None:
    moved = tmp_path / "moved.tar"
    moved.write_bytes(three[0].read_bytes())
    with GPULoader(moved, 2, None) as loader:
        loader.load_state_dict(state_of(three[0]))


@pytest.mark.parametrize("state", [None, 3, "state.pt", [("epoch", 0)]])
def test_what_is_no_state_is_refused(three: list[Path], state: object) -> None:
    assert refusal(state, three) == (
        f"this is no state of a GPULoader but {state!r}: pass what its state_dict() returned"
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
