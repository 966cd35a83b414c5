"""Resuming: from any step of an epoch, in another process, in another world, with the same pixels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lifecycles import NewProcess, delivered, loader, records, resumed, save, saved
from making import jpeg, write_samples, write_shard

from gpuloader import GPULoader, World
from gpuloader.errors import StateError

pytestmark = pytest.mark.slow(kept=20, of="resume")

EPOCH = 2
LARGEST = {"seed": 2**64 - 1, "epoch": 2**32 - 1}


@pytest.fixture(scope="module")
def process() -> Iterator[NewProcess]:
    """A process that has restored nothing but states of this module's."""
    with NewProcess() as new:
        yield new


@pytest.fixture(scope="module")
def tar(shards: list[Path]) -> list[str]:
    return list(map(str, shards))


@pytest.fixture(scope="module")
def whole(tar: list[str]) -> list[list[str]]:
    """The records of each batch of an undisturbed epoch."""
    with loader(tar) as batches:
        batches.set_epoch(EPOCH)
        return [records(batch) for batch in batches]


@pytest.fixture(scope="module")
def states(tar: list[str]) -> list[dict[str, Any]]:
    """The states before that epoch's first batch and after each of its batches."""
    with loader(tar) as batches:
        batches.set_epoch(EPOCH)
        return [batches.state_dict(), *(batches.state_dict() for _ in batches)]


# --- the same run


@pytest.mark.parametrize("form", [".json", ".pt"])
@pytest.mark.parametrize("step", range(6))
def test_a_state_after_any_step_gives_the_rest_in_a_new_process(
    process: NewProcess,
    tar: list[str],
    states: list[dict[str, Any]],
    whole: list[list[str]],
    tmp_path: Path,
    step: int,
    form: str,
) -> None:
    assert len(states) == 6
    state = save(states[step], tmp_path / f"state{form}")
    assert process.ask(resumed, tar=tar, state=str(state)) == whole[step:]


def test_the_epoch_after_a_restored_one_is_the_next(tar: list[str], states: list[dict[str, Any]]) -> None:
    with loader(tar) as batches:
        batches.set_epoch(EPOCH + 1)
        following = delivered(batches)
    for state in states:
        with loader(tar) as batches:
            batches.load_state_dict(state)
            delivered(batches)
            assert delivered(batches) == following


@pytest.mark.parametrize("form", [".json", ".pt"])
def test_the_largest_seed_and_epoch_survive_saving(tar: list[str], tmp_path: Path, form: str) -> None:
    with loader(tar, seed=LARGEST["seed"]) as batches:
        batches.set_epoch(LARGEST["epoch"])
        received = iter(batches)
        next(received)
        state = batches.state_dict()
        rest = delivered(received)
    restored = saved(save(state, tmp_path / f"state{form}"))
    assert restored == state
    assert {name: restored[name] for name in LARGEST} == LARGEST
    with loader(tar, seed=LARGEST["seed"]) as batches:
        batches.load_state_dict(restored)
        assert delivered(batches) == rest


# --- another world


def test_a_run_that_changes_its_world_at_every_step_delivers_the_epoch_once(
    tar: list[str], states: list[dict[str, Any]], whole: list[list[str]]
) -> None:
    state, received = states[0], []
    for world_size, batch_size in [(2, 3), (1, 5), (7, 1), (3, 4), (1, 1), (2, 4)]:  # 6 + 5 + 7 + 12 + 1 + 4 = 35
        after = []
        for rank in range(world_size):
            with loader(tar, batch_size, world=World(rank, world_size)) as batches:
                batches.load_state_dict(state)
                received += records(next(iter(batches)))
                after.append(batches.state_dict())
        state = after[0]
        assert after == [state] * world_size
    assert state["delivered"] == 35  # two ranks share the last 9 samples in two steps, so that none gets an empty batch
    with loader(tar) as batches:
        batches.load_state_dict(state)
        received += delivered(batches)
    assert received == [record for batch in whole for record in batch]


# --- the state itself


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 8), (3, 3), (7, 1)])
@pytest.mark.parametrize("last_batch", ["drop", "pad", "partial"])
def test_the_state_is_small_and_the_same_on_every_rank_at_every_step(
    tar: list[str], world_size: int, batch_size: int, last_batch: str
) -> None:
    def of_rank(rank: int) -> Iterator[dict[str, Any]]:
        with loader(tar, batch_size, world=World(rank, world_size), last_batch=last_batch) as batches:
            for _ in range(2):
                yield batches.state_dict()
                for _ in batches:
                    yield batches.state_dict()

    steps = list(zip(*map(of_rank, range(world_size)), strict=True))
    assert len(steps) > 2
    for ranks in steps:
        assert all(state == ranks[0] for state in ranks)
        assert len(json.dumps(ranks[0]).encode()) < 4096
    places = [(ranks[0]["epoch"], ranks[0]["delivered"]) for ranks in steps]
    assert places == sorted(set(places))


def changed(folder: Path, **change: Any) -> Path:  # noqa: ANN401
    """A shard of four samples, one component of one of which may be another one."""
    samples = [{"__key__": f"{i}", "jpg": jpeg(40, 50, seed=i), "cls": b"%d" % i, "txt": b"ab"} for i in range(4)]
    samples[2].update(change)
    folder.mkdir()
    return write_shard(folder / "train-0000.tar", samples)


@pytest.mark.parametrize(
    "change", [{"jpg": jpeg(50, 40)}, {"jpg": b"no image"}, {"__key__": "x"}], ids=["size", "no size", "key"]
)
def test_a_state_of_data_that_changed_is_refused_naming_the_shard(tmp_path: Path, change: dict[str, Any]) -> None:
    before, after = changed(tmp_path / "before"), changed(tmp_path / "after", **change)
    with loader(before, 2) as batches:
        state = batches.state_dict()
    with loader(after, 2) as other, pytest.raises(StateError, match="or start without the state") as caught:
        other.load_state_dict(state)
    assert str(caught.value).startswith("the state was saved with other data: ")
    assert f"here that is {after}" in str(caught.value)


@pytest.mark.parametrize(
    "change", [{"jpg": jpeg(40, 50, seed=9)}, {"txt": b"abc"}, {"json": b"{}"}], ids=["pixels", "txt", "json"]
)
def test_a_state_does_not_notice_other_bytes_behind_the_same_keys_and_sizes(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    with loader(changed(tmp_path / "before"), 2) as batches:
        state = batches.state_dict()
    with loader(changed(tmp_path / "after", **change), 2) as other:
        other.load_state_dict(state)


def test_shards_that_were_copied_elsewhere_are_the_same_data(
    shards: list[Path], states: list[dict[str, Any]], whole: list[list[str]], tmp_path: Path
) -> None:
    copies = [Path(shutil.copyfile(shard, tmp_path / f"other{shard.name}")) for shard in shards]
    with loader(copies) as batches:
        batches.load_state_dict(states[3])
        assert delivered(batches) == [record for batch in whole[3:] for record in batch]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"on_error": "replace"},
        {"output": "tuple"},
        {"fields": ["json"]},
        {"label_from": "json:label"},
        {"on_error": {"max_share": 0.5}},
    ],
    ids=lambda kwargs: next(iter(kwargs)),
)
def test_what_changes_no_pixel_may_change(tar: list[str], states: list[dict[str, Any]], kwargs: dict[str, Any]) -> None:
    with loader(tar, **kwargs) as other:
        other.load_state_dict(states[2])
        assert len(list(other)) == 3


def test_data_of_one_name_and_size_but_another_seed_gives_other_pixels(tmp_path: Path) -> None:
    """The records can tell: what is compared above is not the same for all data."""
    one, other = (write_samples(tmp_path / f"{seed}", 8, shards=1, seed=seed) for seed in range(2))
    with GPULoader(one, 8, None, output="dict") as first, GPULoader(other, 8, None, output="dict") as second:
        assert not set(delivered(first)) & set(delivered(second))
