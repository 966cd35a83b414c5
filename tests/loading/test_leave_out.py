"""`Sampling(leave_out=...)`: which samples it names, from which place on, and what a state keeps of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import CUT, SAMPLES, evaluation, indices, loader, spoilt
from making import damaged_jpeg, jpeg, write_samples, write_shard

from gpuloader import BadImages, MixedLoader, Sampling
from gpuloader.errors import ConfigError, DataError, StateError, TooManyBadImagesError
from gpuloader.plan import Draws, Stream
from gpuloader.shards import ShardSet, write_quarantine
from gpuloader.tools.info import describe_shards
from gpuloader.tools.loader_file import read_loader


def entries(tar: Any, leave_out: Any, state: Any = None, **options: Any) -> Any:  # noqa: ANN401
    """What the state of a loader keeps, at its beginning or after a state is loaded."""
    with loader(tar, sampling={"leave_out": leave_out}, **options) as batches:
        if state is not None:
            batches.load_state_dict(json.loads(json.dumps(state)))
        return batches.state_dict().get("left_out")


def state_at(tar: Any, epoch: int = 0, delivered: int = 0, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    with loader(tar) as batches:
        return {**batches.state_dict(), "epoch": epoch, "begin": SAMPLES * epoch, "delivered": delivered, **more}


# --- which samples


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([39, 3], [3, 39]),
        ([3, 3], [3]),
        (np.array([7], np.uint8), [7]),
        (slice(38, None), [38, 39]),
        pytest.param(lambda columns: columns["label"] == 4, [4, 14, 24, 34], id="a function"),
        (["000003", "000001", "000003"], [1, 3]),
        ("00003[89]", [38, 39]),
        ("keys.txt", [2, 5]),
        (Path("keys"), [2, 5]),
        ("bad.jsonl", [6, 21]),
        (Path("bad.jsonl"), [6, 21]),
    ],
    ids=str,
)
def test_samples_are_named_as_those_of_a_subset_or_by_a_quarantine(
    shards: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: Any,  # noqa: ANN401
    expected: list[int],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("keys", "keys.txt"):
        Path(name).write_text("000005\n000002\n000005\n")
    write_quarantine(Path("bad.jsonl"), ShardSet.open(shards), {21: "cut", 6: "empty"})
    assert entries(shards, given) == [[0, 0, expected]]


def test_a_key_names_every_sample_that_has_it_in_any_source(tmp_path: Path) -> None:
    tars = [
        write_shard(tmp_path / f"{name}.tar", [{"__key__": key, "jpg": jpeg(40, 40)} for key in ("same", name)])
        for name in "ab"
    ]
    sources = [{"tar": tar, "weight": weight} for tar, weight in zip(tars, (1, 2), strict=True)]
    assert entries(sources, ["same", "b"], label_from=None, batch_size=1) == [[0, 0, [0, 2, 3]]]


def test_a_loaders_file_names_them(shards: list[Path], tmp_path: Path) -> None:
    sampling = {"subset": "00000*", "leave_out": ["000003", "000012"]}
    file = tmp_path / "train.yaml"
    file.write_text(json.dumps({"tar": [*map(str, shards)], "sampling": sampling}))
    arguments = read_loader([str(file)])
    with loader(**arguments) as batches:
        assert batches.state_dict()["left_out"] == [[0, 0, [3, 12]]]  # 12 is not in the subset
    assert describe_shards(**arguments) == describe_shards(shards)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "selects none"),
        ([40], "ids from 40 to 40: allowed is 0 to 39"),
        ([True] * 40, "np.flatnonzero"),
        (3, "allowed are sample ids"),
        ("cat/*", "no key matches"),
        (["000001", "a"], "lacks 1 of 2 keys: 'a'"),
        ("nowhere.txt", "cannot be read"),
        pytest.param(lambda columns: columns["lable"] == 3, "no column 'lable'", id="a function"),
    ],
)
def test_an_error_names_the_argument(shards: list[Path], given: Any, says: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=f"^leave_out: .*{says}"):
        entries(shards, given)


def test_a_quarantine_must_be_of_these_shards(shards: list[Path], tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"shard": "other.tar", "key": "a", "offset": 0, "cause": "cut"}\n')
    for name, says in (("nowhere.jsonl", "cannot be read"), ("bad.jsonl", "the file belongs to other shards")):
        with pytest.raises(DataError, match=says):
            entries(shards, tmp_path / name)


# --- what does not depend on them


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": {"weights": [1 + number % 2 for number in range(SAMPLES)]}},
        {"sampling": {"buckets": [(32, 32), (32, 48)], "repeats": 2}},
        {"sampling": {"subset": range(20), "steps_per_epoch": 2}, "last_batch": "pad"},
    ],
)
def test_nothing_before_the_first_step_depends_on_them(shards: list[Path], options: dict[str, Any]) -> None:
    facts = []
    for leave_out in (None, range(5)):
        given = {**options, "sampling": {**options["sampling"], "leave_out": leave_out}}
        with loader(shards, **given) as batches:
            state = batches.state_dict()
            assert state.pop("left_out", None) == (leave_out and [[0, 0, [0, 1, 2, 3, 4]]])
            facts.append((state, len(batches), batches.num_samples, batches.shapes, repr(batches)))
    assert facts[0] == facts[1]


def test_checks_of_the_data_see_them(tmp_path: Path) -> None:
    samples = [{"__key__": f"{i}", "jpg": jpeg(40, 40), "txt": b"text"} for i in range(4)]
    tar = write_shard(tmp_path / "a.tar", [*samples, {"__key__": "bad", "jpg": b"no image"}])
    leave_out = {"leave_out": ["bad"]}
    with pytest.raises(ConfigError, match="does not know the size of 1 of 5 images"):
        loader(tar, 1, label_from=None, sampling={**leave_out, "buckets": [(32, 32)]})
    with pytest.raises(DataError, match=r"1 of 5 samples lack \.txt"):
        loader(tar, 1, label_from=None, sampling=leave_out, fields=["txt"])


# --- the rows


def test_the_place_decides_not_what_was_read_before(shards: list[Path], tmp_path: Path) -> None:
    left_out = {3, 17, 30}
    options = {"on_error": BadImages(replace=True, max_share=0), "output": "dict"}
    with loader(shards, sampling={"leave_out": sorted(left_out), "repeats": 2}, **options) as batches:
        batches.load_state_dict({**batches.state_dict(), "epoch": 2, "begin": 2 * SAMPLES, "left_out": []})
        for epoch in range(4):
            batches.set_epoch(epoch)
            rows = [row for batch in batches for row in zip(batch["index"].tolist(), batch["valid"].tolist())]
            delivered = {number for number, _ in rows}
            if epoch < 2:
                assert all(valid for _, valid in rows)
            else:
                assert not delivered & left_out
        assert batches.stats().bad == {}
        assert batches.state_dict()["quarantine"] == []
        batches.write_quarantine(tmp_path / "bad.jsonl")
    assert (tmp_path / "bad.jsonl").read_text() == ""


def test_a_bad_image_that_is_left_out_is_no_error(tmp_path: Path) -> None:
    tar = spoilt(tmp_path, {3: CUT, 5: damaged_jpeg(), 9: b""})
    for on_error, bad in ("raise", set()), (BadImages(replace=True, max_share=0), {9}):
        left_out = {3, 5, 9} - bad
        with loader(tar, output="dict", on_error=on_error, sampling={"leave_out": sorted(left_out)}) as batches:
            for _ in range(2):
                assert not {number for batch in indices(batches) for number in batch} & {3, 5, 9}
            assert set(batches.stats().bad) == bad


def test_a_replacement_that_is_left_out_is_replaced_by_the_next_one(shards: list[Path]) -> None:
    draws = Draws(0, 0, np.array([7])).uniform(Stream.REPLACEMENT, 100)[0]
    first, second, *_ = (number for number in np.floor(draws * SAMPLES).astype(int).tolist() if number != 7)
    for left_out, expected in ([7], first), ([7, first], second):
        with evaluation(shards, output="dict", sampling={"leave_out": left_out}) as batches:
            batch = next(iter(batches))
        assert (batch["index"].tolist()[7], batch["valid"].tolist()[7]) == (expected, False)


def test_where_all_are_left_out_none_replaces_them(shards: list[Path]) -> None:
    with loader(shards, sampling={"leave_out": "*"}) as batches, pytest.raises(TooManyBadImagesError):
        next(iter(batches))


# --- states


def test_a_state_keeps_what_is_left_out_and_new_samples_are_added_at_its_place(shards: list[Path]) -> None:
    assert "left_out" not in state_at(shards)
    assert entries(shards, None, state_at(shards, 1, 8)) is None
    assert entries(shards, [5, 3], state_at(shards, 1, 8)) == [[1, 8, [3, 5]]]
    kept = [[1, 8, [3, 5]]]
    for leave_out in (None, [3], [5, 3]):
        assert entries(shards, leave_out, state_at(shards, 1, 16, left_out=kept)) == kept
    assert entries(shards, [9, 3], state_at(shards, 1, 16, left_out=kept)) == [*kept, [1, 16, [9]]]
    assert entries(shards, [3], state_at(shards, 0, 8, left_out=kept)) == [*kept, [0, 8, [3]]]


def test_a_state_between_two_epochs_keeps_it_when_shards_are_appended(tmp_path: Path) -> None:
    tars = write_samples(tmp_path, 16, shards=2)
    with loader(tars[:1], sampling={"leave_out": [3]}, last_batch="partial") as batches:
        list(batches)
        state = batches.state_dict()
    assert entries(tars, [12], state, last_batch="partial") == [[0, 0, [3]], [1, 0, [12]]]


@pytest.mark.parametrize(
    "value",
    [
        *(None, 3, "3", {}, np.array([[0, 0, 3]])),
        *([3], [[]], [[0, 0]], [[0, 0, [3], 0]]),
        *([[0, 0, 3]], [[0, 0, [40]]], [[0, 0, [-1]]], [[0, 0, [True]]], [[0, 0, ["3"]]], [[0, 0, np.array([3])]]),
        *([[-1, 0, [3]]], [[2**32 + 1, 0, [3]]], [[0.0, 0, [3]]], [[0, -1, [3]]], [[0, None, [3]]]),
    ],
    ids=repr,
)
def test_a_state_with_anything_else_is_refused(shards: list[Path], value: object) -> None:
    with loader(shards, sampling={"leave_out": [3]}) as batches:
        before = batches.state_dict()
        with pytest.raises(StateError, match="left_out"):
            batches.load_state_dict({**before, "left_out": value})
        assert batches.state_dict() == before


def test_an_evaluation_that_would_count_replacements_takes_no_such_state(shards: list[Path]) -> None:
    with evaluation(shards, sampling={"leave_out": [3]}, on_error="skip") as batches:
        state = batches.state_dict()
    with evaluation(shards) as counting, pytest.raises(StateError, match="for evaluation"):
        counting.load_state_dict(state)
    for options in ({"output": "dict"}, {"on_error": "skip"}):
        with evaluation(shards, **options) as batches:
            batches.load_state_dict(state)


def test_a_mixed_loader_resumes_with_it_and_without(shards: list[Path]) -> None:
    def mixed(leave_out: Any) -> MixedLoader[Any]:  # noqa: ANN401
        sampling = Sampling(leave_out=leave_out)
        return MixedLoader({name: loader(shards, size, output="dict", sampling=sampling) for name, size in SIZES})

    with mixed(None) as before:
        turns = iter(before)
        next(turns)
        state = json.loads(json.dumps(before.state_dict()))
        rest = [batch for _, batch in turns]
    left_out = [int(rest[0]["index"][0]), int(rest[1]["index"][1])]
    with mixed(left_out) as now:
        now.load_state_dict(state)
        found = [batch for _, batch in now]
        kept = {name: each["left_out"] for name, each in now.state_dict()["loaders"].items()}
    assert kept == {"a": [[0, 4, sorted(left_out)]], "b": [[0, 0, sorted(left_out)]]}
    for one, other in zip(rest, found, strict=True):
        assert other["valid"].tolist() == [number not in left_out for number in one["index"].tolist()]
    with mixed(None) as later:
        later.load_state_dict(now.state_dict())
        assert not {number for batch in indices(batch for _, batch in later) for number in batch} & {*left_out}


SIZES = [("a", 4), ("b", 8)]
