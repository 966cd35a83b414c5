"""Weights of sources by epoch, a curriculum, and a declared change of the sampling at a resume."""

from __future__ import annotations

import json
import logging
import pickle
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting import Counted, at
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making import SIZES, jpeg, write_samples, write_shard

from gpuloader import Curriculum, GPULoader, MixedLoader, Sampling, World
from gpuloader.errors import ConfigError, StateError
from gpuloader.loading.curriculum import COLUMNS
from gpuloader.loading.loader import run_of
from gpuloader.plan import Cursor, LastBatch, Shuffle

EVALUATION = {"imagenet_eval": {"CenterCrop": {"size": 16}, "Resize": {"size": 16}}}
COUNTS = (7, 5, 3)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Shards of 7, 5 and 3 samples."""
    folder = tmp_path_factory.mktemp("three")
    return [write_samples(folder / str(count), count, shards=1, seed=count)[0] for count in COUNTS]


def loader(tar: Any, batch_size: int = 1, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    return GPULoader(tar, batch_size, None, **{"preset": EVALUATION, "output": "dict", "shuffle": "full", **kwargs})


def mixed(shards: list[Path], *weights: Any, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    return loader([{"tar": tar, "weight": weight} for tar, weight in zip(shards, weights, strict=True)], **kwargs)


def ids(batches: GPULoader) -> list[int]:
    """The samples of the rest of the epoch, or of the next one."""
    return [sample for batch in batches for sample in batch["index"].tolist()]


def order(batches: GPULoader, epochs: int) -> list[int]:
    """The samples at the positions of the first epochs; nothing is decoded."""
    plan = run_of(batches).plan
    return list(chain(*(plan.ids(epoch, np.arange(plan.samples)).tolist() for epoch in range(epochs))))


def saved(batches: GPULoader) -> dict[str, Any]:
    return json.loads(json.dumps(batches.state_dict()))


def counted(schedules: list[dict[float, float]], epochs: int, steps: int | None = None) -> list[int]:
    """The samples at the positions of the first epochs in the order of the data, one after the other.

    Args:
        steps: of the positions of an epoch, how many are one epoch in the schedules.
    """
    found, counter, length = [], Counted(len(schedules)), sum(COUNTS)
    for epoch in range(epochs):
        for place in range(length):
            now = epoch + min(Fraction(place, steps or length), Fraction(99, 100) if steps else Fraction(1))
            source, before = counter.take([int(at(schedule, now)) for schedule in schedules])
            found.append(sum(COUNTS[:source]) + before % COUNTS[source])
    return found


# --- weights by epoch


@pytest.mark.parametrize(
    "schedules",
    [
        [{0: 1}, {0: 1}, {0: 1}],
        [{0: 1, 2: 3}, {0: 1}, {0: 2}],
        [{0: 1}, {0: 0, 1: 1}, {0: 0, 2: 4, 3: 0}],
        [{0: 0, 1.2: 5}, {0: 2, 1.2: 0, 2.8: 1}, {0: 1, 0.4: 0}],
    ],
)
def test_weights_by_epoch_are_taken_from_their_places_on(three: list[Path], schedules: Any) -> None:  # noqa: ANN401
    with mixed(three, *schedules, shuffle="none") as batches:
        assert order(batches, 4) == counted(schedules, 4)
        assert ids(batches) == counted(schedules, 1)


def test_a_weight_that_stays_is_a_constant_one(three: list[Path]) -> None:
    with mixed(three, 3, 1, 2) as constant, mixed(three, {0: 3.0, 5: 3}, {0: 1}, 2) as by_epoch:
        state = saved(constant)
        by_epoch.load_state_dict(state)
        assert saved(by_epoch) == state
        assert order(by_epoch, 3) == order(constant, 3)


def test_a_state_from_before_mixtures_could_change_is_loaded(three: list[Path]) -> None:
    with mixed(three, 3, 1, 2) as batches:
        state = {**saved(batches), "delivered": 4}
        state["described"].pop("sampling")
        del state["mixture"]
        batches.load_state_dict(state)
        assert ids(batches) == order(batches, 1)[4:]


def test_weights_that_begin_at_the_same_sample_are_the_last_of_them(three: list[Path]) -> None:
    with mixed(three, {0: 5, 0.01: 3}, 1, 2) as batches, mixed(three, 3, 1, 2) as constant:
        batches.load_state_dict(saved(batches))
        assert order(batches, 2) == order(constant, 2)


def test_with_steps_per_epoch_a_fraction_counts_its_steps(three: list[Path]) -> None:
    schedules: list[dict[float, float]] = [{0: 1, 1.5: 0}, {0: 1}, {0: 0, 2: 1}]
    with mixed(three, *schedules, shuffle="none", batch_size=2, sampling={"steps_per_epoch": 4}) as batches:
        expected = counted(schedules, 3, steps=8)
        assert order(batches, 3) == expected
        got = [ids(batches) for _ in range(3)]
    assert got == [expected[:8], expected[15:23], expected[30:38]]
    assert [sample // 7 for sample in got[1]] == [1, 0, 1, 0, 1, 1, 1, 1]  # from step 6 on, 1.5 epochs


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([{1: 1}, 1, 1], r"tar: weight of .*={1: 1}: allowed is {epoch: number}, such as .* 0 among them, and numbers"),
        ([{0: 1, -1: 1}, 1, 1], "allowed is {epoch: number}"),
        ([{0: 1, "2": 1}, 1, 1], "allowed is {epoch: number}"),
        ([{0: 1, True: 1}, 1, 1], "allowed is {epoch: number}"),
        ([{0: 1, 2**32: 1}, 1, 1], "allowed is {epoch: number}"),
        ([{0: 1, 2: -1}, 1, 1], "numbers of at least 0"),
        ([{0: 1, 2: None}, 1, 1], "numbers of at least 0"),
        ([{0: 1, 2: float("nan")}, 1, 1], "numbers of at least 0"),
        ([{0: 1, 2: 10**400}, 1, 1], "numbers of at least 0"),  # more than a float can be
        ([{}, 1, 1], "allowed is {epoch: number}"),
        ([dict.fromkeys(range(1001), 1), 1, 1], "with at most 1000 epochs"),
        ([{0: 0, 3: 0}, 1, 1], r"weight={0: 0, 3: 0} of .*: some of its weights must be above 0; or leave it out"),
        ([{0: 1, 3: 0}, {0: 0, 4: 1}, {0: 1, 2: 0}], "from epoch 3 on all sources have weight 0: give one"),
        ([{0: 0, 3: 1}, {0: 0, 2.5: 1}, {0: 0, 4: 1}], "from epoch 0 on all sources have weight 0: give one"),
        ([0, 1, 1], "weight=0 of .*: allowed is a number above 0, or {epoch: number}, such as {0: 1, 10: 3}"),
    ],
)
def test_schedules_that_cannot_be_meant_are_refused(three: list[Path], weights: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        mixed(three, *weights)


def test_ranks_compare_their_schedules_and_other_ones_are_refused_at_a_resume(three: list[Path]) -> None:
    with mixed(three, {0: 1, 2: 3}, 1, 1) as one, mixed(three, {0: 1, 3: 3}, 1, 1) as other:
        assert run_of(one).identity != run_of(other).identity
        with pytest.raises(
            StateError, match=r"or change the sampling .*: load_state_dict\(state, change_sampling=True\)"
        ):
            other.load_state_dict(saved(one))


# --- changes at a resume, elastic


def runs_of(epochs: int) -> st.SearchStrategy[list[tuple[int, int, list[dict[float, float]], int]]]:
    """Parts of one run: the ranks, the batch size, the weights by epoch, and how many steps."""
    schedule = st.dictionaries(st.integers(1, 2 * epochs).map(lambda half: half / 2), st.integers(0, 3), max_size=2)
    weights = st.tuples(st.integers(1, 3), schedule).map(lambda both: {0.0: float(both[0]), **both[1]})
    always = st.integers(1, 3).map(lambda weight: {0.0: float(weight)})
    part = st.tuples(st.integers(1, 3), st.integers(1, 3), st.tuples(weights, weights, always), st.integers(0, 9))
    return st.lists(part, min_size=2, max_size=5)  # type: ignore[return-value]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=runs_of(3), last_batch=st.sampled_from(["drop", "partial"]), shuffle=st.sampled_from(["none", "full"]))
def test_from_any_place_on_any_ranks_with_other_weights_each_pass_goes_on(
    three: list[Path], runs: list[Any], last_batch: LastBatch, shuffle: Shuffle
) -> None:
    length = sum(COUNTS)
    counter, place = Counted(3), 0  # in positions, counted from the beginning of the run
    passes: dict[tuple[int, int], list[int]] = {}
    state: dict[str, Any] | None = None
    for ranks, batch_size, schedules, steps in runs:
        given = {"batch_size": batch_size, "world": World(0, ranks), "last_batch": last_batch, "shuffle": shuffle}
        with mixed(three, *schedules, **given) as batches:
            if state is not None:
                batches.load_state_dict(state, change_sampling=True)
            state, plan = saved(batches), run_of(batches).plan
        cursor = Cursor(state["epoch"], state["delivered"])
        assert cursor.epoch * length + cursor.delivered == place
        for _ in range(steps):
            cursor = plan.at_step(cursor)
            start = cursor.epoch * length + cursor.delivered
            each = [replace(plan, rank=rank).batch(cursor) for rank in range(ranks)]
            got = list(chain(*(batch.ids[batch.valid].tolist() for batch in each)))
            expected = [  # with what "drop" left out at the end of the epoch before
                counter.take([int(at(schedule, Fraction(position, length))) for schedule in schedules])
                for position in range(place, start + len(got))
            ]
            for sample, (source, before) in zip(got, expected[start - place :], strict=True):
                number = sample - sum(COUNTS[:source])
                assert 0 <= number < COUNTS[source]
                assert shuffle == "full" or number == before % COUNTS[source]
                seen = passes.setdefault((source, before // COUNTS[source]), [])
                assert number not in seen
                seen.append(number)
            cursor, place = plan.after(cursor), start + len(got)
        state |= plan.place(cursor)
        place = cursor.epoch * length + cursor.delivered


def test_a_changed_run_resumes_exactly_without_the_declaration(three: list[Path]) -> None:
    with mixed(three, 1, 1, 0.5) as batches:
        steps = iter(batches)
        before = [int(next(steps)["index"]) for _ in range(6)]
        state = saved(batches)
    now = (1, 3, {0: 1, 1: 2})
    with mixed(three, *now) as batches:
        batches.load_state_dict(state, change_sampling=True)
        steps = iter(batches)
        between = [int(next(steps)["index"]) for _ in range(4)]
        state = saved(batches)
        rest, following = [int(batch["index"]) for batch in steps], ids(batches)
    with mixed(three, *now, batch_size=2, last_batch="partial") as batches:
        batches.load_state_dict(state)
        again = pickle.loads(pickle.dumps(batches))
        for resumed in (batches, again):
            assert (ids(resumed), ids(resumed)) == (rest, following)
            assert saved(resumed)["mixture"]["segments"] == [[0, [2, 2, 1]], [6, [1, 3, 1]], [15, [1, 3, 2]]]
        batches.load_state_dict({**state, "epoch": 0, "delivered": 0})  # before the change
        assert ids(batches)[:10] == [*before, *between]
    everything = [*before, *between, *rest, *following]
    for source, count in enumerate(COUNTS):
        own = [sample for sample in everything if sum(COUNTS[:source]) <= sample < sum(COUNTS[: source + 1])]
        for start in range(0, len(own) - count + 1, count):
            assert len(set(own[start : start + count])) == count
    with mixed(three, *now) as batches:  # a state without changes, in a loader that had them
        fresh = order(batches, 2)
        batches.load_state_dict(state)
        assert order(batches, 2) != fresh
        batches.load_state_dict({**state, "mixture": {}})
        assert order(batches, 2) == fresh


def test_samples_that_are_left_out_stay_so_in_a_mixture_that_changes(tmp_path: Path) -> None:
    tars = [
        write_shard(
            tmp_path / f"{name}.tar",
            [
                {"__key__": f"{name}{n}", "jpg": jpeg(20, 20), "cls": b"0", **({} if n == 1 else {"txt": b"a"})}
                for n in range(4)
            ],
        )
        for name in "ab"
    ]
    needed = Sampling(require=["txt"])
    with mixed(tars, 1, 1, sampling=needed) as batches:
        state = saved(batches) | {"delivered": 3}
        first = order(batches, 1)[:3]
    with mixed(tars, 1, 2, sampling=needed) as batches:
        batches.load_state_dict(state, change_sampling=True)
        rest = ids(batches)
        own = [sample for sample in [*first, *rest] if sample >= 4]
        assert sorted(own[:3]) == [4, 6, 7]
    with mixed(tars, 1, 2) as batches:  # other samples are another mixture
        batches.load_state_dict(state, change_sampling=True)
        assert (saved(batches)["epoch"], saved(batches)["mixture"]["segments"]) == (1, [[0, [1, 2]]])


HALF = Sampling(subset=slice(0, 20))


@pytest.mark.parametrize(
    ("before", "now", "delivered", "epoch", "says"),
    [
        (
            {"sampling": HALF},
            {},
            8,
            4,
            "the sampling changes from 'a subset of 20 samples' to 'all 40 samples'; epoch 3 cannot go on: the run "
            "goes on with epoch 4",
        ),
        (
            {"sampling": HALF},
            {},
            0,
            3,
            "from 'a subset of 20 samples' to 'all 40 samples': the run goes on with epoch 3",
        ),
        ({}, {"shuffle": "none"}, 8, 4, "shuffle from 'full' to 'none'; epoch 3 cannot go on"),
        (
            {},
            {"sampling": {"weights": "balanced"}, "shuffle": None},
            8,
            4,
            "to '40 samples by weight', shuffle from 'full' to 'none'; epoch 3 cannot go on",
        ),
        (
            {"sampling": {"curriculum": {"by": "height", "shares": {0: 0.5}}}},
            {"sampling": {"curriculum": {"by": "width", "shares": {0: 0.5}}}},
            8,
            4,
            "from 'a curriculum of 40 samples' to 'a curriculum of 40 samples'; epoch 3",
        ),
        ({"sampling": {"buckets": [(16, 16)]}}, {}, 8, 4, "from 'buckets of 40 samples' to 'all 40 samples'"),
        (
            {"sampling": {"buckets": {"sizes": [(16, 16)], "quantum": 16}}},
            {"sampling": {"buckets": {"sizes": [(8, 16)], "quantum": 8}}},
            8,
            4,
            "from 'buckets of 40 samples' to 'buckets of 40 samples'; epoch 3",
        ),
        ({}, {"sampling": {"buckets": [(16, 16)]}}, 8, 4, "from 'all 40 samples' to 'buckets of 40 samples'"),
        (
            {},
            {"shuffle": lambda epoch: range(30)},
            8,
            4,
            "to '30 samples by a function', shuffle from 'full' to 'none'",
        ),
        ({}, {"several": True}, 8, 4, "from 'all 40 samples' to 'sources in the ratio 1:2'"),
        ({"several": True}, {}, 8, 4, "from 'sources in the ratio 1:2' to 'all 40 samples'"),
        ({"several": True}, {"several": True, "shuffle": "none"}, 8, 4, "shuffle from 'full' to 'none'; epoch 3"),
        ({}, {}, 8, 3, None),
        (
            {"sampling": {"buckets": {"sizes": [(16, 16)], "quantum": 16}}},
            {"sampling": {"buckets": [(16, 16)]}},
            8,
            3,
            None,
        ),
    ],
)
def test_another_sampling_begins_with_an_epoch(
    shards: list[Path],
    caplog: pytest.LogCaptureFixture,
    before: dict[str, Any],
    now: dict[str, Any],
    delivered: int,
    epoch: int,
    says: str | None,
) -> None:
    def make(several: bool = False, **given: Any) -> GPULoader:  # noqa: ANN401
        tar = [{"tar": shards[0]}, {"tar": shards[1], "weight": 2}] if several else shards
        return loader(tar, 8, **given)

    with make(**before) as batches:
        state = saved(batches) | {"epoch": 3, "delivered": delivered}
    with make(**now) as batches:
        if says:
            with pytest.raises(StateError, match=r"load_state_dict\(state, change_sampling=True\)|quantum=8"):
                batches.load_state_dict(state)
        expected = order(batches, 5)
        with caplog.at_level(logging.WARNING, "gpuloader"):
            batches.load_state_dict(state, change_sampling=True)
        assert [says in record.getMessage() for record in caplog.records] == ([True] if says else [])
        after = saved(batches)
        assert (after["epoch"], after["delivered"]) == (epoch, 0 if says else delivered)
        length = len(expected) // 5
        if says:
            assert sorted(ids(batches)) == sorted(expected[epoch * length : epoch * length + len(batches) * 8])
        batches.load_state_dict(after)


def test_only_the_first_rank_of_a_machine_says_what_changes(
    three: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    with mixed(three, 1, 1, 1) as batches:
        state = saved(batches) | {"delivered": 4}
    for rank in range(2):
        world = World(rank, 2, local_rank=rank)
        with mixed(three, 2, 1, {0: 1, 2: 5}, world=world, last_batch="equal") as batches:
            batches.load_state_dict(state, change_sampling=True)
    [record] = caplog.records
    assert record.getMessage() == "the weights of the sources change from 1:1:1 to 2:1:1, at sample 4 of epoch 0"
    with mixed(three, 1, 1, {0: 1, 2: 5}) as batches:
        batches.load_state_dict(state, change_sampling=True)
    assert caplog.records[-1].getMessage() == (
        "the weights of the sources stay 1:1:1, and change later, at sample 4 of epoch 0"
    )


@pytest.mark.parametrize("other", [{"seed": 1}, {"preset": "cifar10_eval"}, {"label_from": None, "seed": 2}])
def test_only_the_sampling_may_change(three: list[Path], other: dict[str, Any]) -> None:
    with mixed(three, 1, 1, 1) as batches:
        state = saved(batches)
    with mixed(three, 2, 1, 1, **other) as batches, pytest.raises(StateError, match=r"recipe|seed"):
        batches.load_state_dict(state, change_sampling=True)
    with mixed(three[::-1], 2, 1, 1) as batches, pytest.raises(StateError, match="the same shards in another order"):
        batches.load_state_dict(state, change_sampling=True)


@pytest.mark.parametrize(
    "segments",
    [
        None,
        [],
        [[0, [1, 1]]],
        [[0, [1, 1, -1]]],
        [[0, [0, 0, 0]]],
        [[0, [1, 1, 10**7]]],
        [[0, [1, 1, 1.5]]],
        [[1, [1, 1, 1]]],
        [[0, [1, 1, 1]], [0, [1, 1, 1]]],
        [[0, [1, 1, 1]], [5, [1, 1, 1]], [4, [1, 1, 1]]],
        [[0, [1, 1, 1], 2]],
        [["0", [1, 1, 1]]],
        {"0": [1, 1, 1]},
    ],
)
def test_segments_that_cannot_be_meant_are_refused(three: list[Path], segments: object) -> None:
    with mixed(three, 1, 1, 1) as batches:
        state = saved(batches)
        state["mixture"]["segments"] = segments
        for change in (False, True):
            with pytest.raises(StateError, match="the state's mixture has"):
                mixed(three, 1 + change, 1, 1).load_state_dict(state, change_sampling=change)


@pytest.mark.parametrize("state", [None, {}, [1], {"sampling": 3, "epoch": "x", "delivered": -1}])
def test_what_is_no_state_stays_an_error(three: list[Path], state: Any) -> None:  # noqa: ANN401
    with mixed(three, 1, 1, 1) as batches:
        with pytest.raises(StateError, match="this is not a state"):
            batches.load_state_dict(state, change_sampling=True)
        for wrong in ({"epoch": 2**40}, {"delivered": 10**6}, {"delivered": -1}):
            with pytest.raises(StateError, match=r"the state's epoch is|the state has delivered="):
                batches.load_state_dict({**saved(batches), **wrong, "sampling": "other"}, change_sampling=True)


def test_loaders_of_a_mixed_loader_change_their_weights_within_an_epoch_and_the_rest_between(
    three: list[Path],
) -> None:
    def make(weight: int, shuffle: str = "full") -> MixedLoader[Any]:
        return MixedLoader({"a": mixed(three, weight, 1, 1), "b": loader(three, shuffle=shuffle)})

    with make(1) as batches:
        steps = iter(batches)
        first = [next(steps) for _ in range(6)]
        inside = json.loads(json.dumps(batches.state_dict()))
        assert len([*steps]) == len(batches) - 6
        between = json.loads(json.dumps(batches.state_dict()))
    with make(3) as batches:
        with pytest.raises(StateError, match="loader 'a': the state was saved with another sampling: it was"):
            batches.load_state_dict(inside)
        batches.load_state_dict(inside, change_sampling=True)
        rest = [*batches]
        own = [int(batch["index"]) for name, batch in [*first, *rest] if name == "a" and batch["index"] < 7]
        assert len(rest) == len(batches) - 6
        assert sorted(own[:7]) == list(range(7))
    with make(1, "none") as batches:
        with pytest.raises(StateError, match=r"loader 'b': .* only the weights of sources may change"):
            batches.load_state_dict(inside, change_sampling=True)
        batches.load_state_dict(between, change_sampling=True)
        assert [int(batch["index"]) for name, batch in batches if name == "b"] == list(range(15))


def in_buckets(shards: list[Path], batch_size: int, quantum: int | None = None) -> GPULoader:
    buckets = {"sizes": [(16, 16), (16, 24)], "quantum": quantum}
    return loader(shards, batch_size, sampling={"buckets": buckets}, last_batch="drop")


def test_nothing_of_an_earlier_state_stays(shards: list[Path]) -> None:
    with in_buckets(shards, 4, 8) as before, loader(shards) as of_all, in_buckets(shards, 4) as batches:
        fresh = saved(batches)
        batches.load_state_dict(saved(before))
        assert saved(batches)["quantum"] == 8
        batches.load_state_dict(saved(of_all), change_sampling=True)
        assert saved(batches) == fresh


def test_a_mixed_loader_counts_the_steps_of_a_states_quantum_in_each_epoch(shards: list[Path]) -> None:
    def make(quantum: int | None) -> MixedLoader[Any]:
        return MixedLoader({"a": in_buckets(shards, 4, quantum), "b": loader(shards, 8)}, "sequential")

    with make(16) as before, make(None) as batches:
        steps = iter(before)
        next(steps)
        batches.load_state_dict(before.state_dict())
        rest = [[name for name, _ in each] for each in (steps, before)]
        assert len(rest[1]) == len(before)
        assert [[name for name, _ in batches] for _ in range(2)] == rest


def test_a_loader_that_was_restored_before_it_is_mixed_begins_with_all_samples(three: list[Path]) -> None:
    with loader(three[:2]) as before, loader(three) as now:
        next(iter(before))
        now.load_state_dict(saved(before))
        assert len(now) == 12
        batches = MixedLoader({"now": now}, stop="cycle")
        assert len(batches) == sum(int(batch["valid"].sum()) for _, batch in batches) == 15


# --- a curriculum


def by_area(columns: dict[str, np.ndarray]) -> np.ndarray:
    return columns["height"] * columns["width"] / 2


AREAS = [SIZES[n % 5][0] * SIZES[n % 5][1] for n in range(40)]
HEIGHTS = [SIZES[n % 5][0] for n in range(40)]
BY_HEIGHT = sorted(range(40), key=lambda n: HEIGHTS[n])


@pytest.mark.parametrize(
    ("curriculum", "others", "expected"),
    [
        (Curriculum("height", {0: 1}), {}, BY_HEIGHT),
        (Curriculum("height", {0: 1}, descending=True), {}, sorted(range(40), key=lambda n: -HEIGHTS[n])),
        (Curriculum("label", {0: 1}), {}, sorted(range(40), key=lambda n: n % 10)),
        (Curriculum("shard", {0: 1}, descending=True), {}, [*range(20, 40), *range(20)]),
        (Curriculum(by_area, {0: 1}), {}, sorted(range(40), key=lambda n: AREAS[n])),
        ({"by": "height", "shares": {0: 1}}, {"subset": [39, 4, 2, 3]}, [4, 39, 3, 2]),
        ({"by": "height", "shares": {0: 0.5}}, {"require": ["json"]}, BY_HEIGHT[:20] * 2),
        (Curriculum("height", {0: 0.001}), {}, BY_HEIGHT[:1] * 40),
        (Curriculum("height", {0: 0.3, 0.5: 0.1}), {}, (BY_HEIGHT[:12] * 2)[:20] + BY_HEIGHT[:4] * 5),
    ],
)
def test_a_curriculum_has_the_first_share_in_its_order(
    shards: list[Path], curriculum: Curriculum | dict[str, Any], others: dict[str, Any], expected: list[int]
) -> None:
    with loader(shards, 4, shuffle="none", sampling=Sampling(curriculum=curriculum, **others)) as batches:
        assert (order(batches, 1), batches.num_samples) == (expected, len(expected))


def test_an_epoch_of_a_share_repeats_it_in_other_orders_and_with_other_random_numbers(shards: list[Path]) -> None:
    training = {"imagenet_train": {"RandomResizedCrop": {"size": 16}}}
    sampling = {"curriculum": {"by": "size_bytes", "shares": {0: 0.25, 1: 1}}}
    with loader(shards, 10, preset=training, sampling=sampling) as batches:
        passes = list(batches)
        assert len({tuple(batch["index"].tolist()) for batch in passes}) == len(passes) == 4
        assert len({tuple(sorted(batch["index"].tolist())) for batch in passes}) == 1
        sample = passes[0]["index"][0]
        images = [batch["image"][batch["index"] == sample] for batch in passes]
        assert not (images[0] == images[1]).all()
        assert sorted(ids(batches)) == list(range(40))
        cursor = saved(batches)
    with loader(shards, 5, preset=training, sampling=sampling) as batches:
        whole = order(batches, 3)
        batches.load_state_dict({**cursor, "epoch": 0, "delivered": 25})
        assert ids(batches) == whole[25:40]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"by": "hight", "shares": {0: 1}}, r"by='hight'\) \(did you mean height\?\): allowed are label, height,"),
        ({"by": 3, "shares": {0: 1}}, "allowed are label, height"),
        ({"by": "height"}, "shares is missing"),
        ({"by": "height", "shares": 0.3}, "Curriculum: shares=0.3: allowed is {epoch: number}"),
        ({"by": "height", "shares": {0: 0}}, "shares above 0, at most 1"),
        ({"by": "height", "shares": {0: 0.5, 3: 1.5}}, "shares above 0, at most 1"),
        ({"by": "height", "shares": {0: 1}, "descending": "yes"}, "allowed are True and False"),
        ({"by": lambda columns: columns["hight"], "shares": {0: 1}}, "curriculum: the index has no column 'hight'"),
        ({"by": lambda columns: [1, 2], "shares": {0: 1}}, r"int64 of shape \(2,\): allowed are finite numbers"),
        ({"by": lambda columns: columns["label"] / 0, "shares": {0: 1}}, "allowed are finite numbers"),
        ({"by": lambda columns: ["a"] * 40, "shares": {0: 1}}, "allowed are finite numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_curriculum_that_cannot_be_meant_is_refused(shards: list[Path], given: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        loader(shards, sampling={"curriculum": given})


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (
            {"sampling": {"weights": "balanced"}, "shuffle": None},
            "curriculum and weights cannot be combined: give one of them",
        ),
        ({"sampling": {"buckets": [(16, 16)]}}, "buckets and curriculum cannot be combined"),
        ({"several": True}, "curriculum and several sources cannot be combined"),
        ({"shuffle": "shards"}, 'curriculum and shuffle="shards" cannot be combined'),
        ({"shuffle": "block"}, 'curriculum and shuffle="block" cannot be combined'),
        ({"shuffle": lambda epoch: [0]}, "curriculum and a function as shuffle cannot be combined"),
    ],
)
def test_a_curriculum_stands_alone(shards: list[Path], others: dict[str, Any], message: str) -> None:
    tar = [{"tar": shards}] if others.pop("several", False) else shards
    curriculum = {"curriculum": {"by": "height", "shares": {0: 1}}}
    with pytest.raises(ConfigError, match=message):
        loader(tar, **{**others, "sampling": {**others.get("sampling", {}), **curriculum}})


def test_samples_of_unknown_size_or_label_are_counted_and_one_is_named(tmp_path: Path) -> None:
    named = {"0": ("jpg", b"2"), "1": ("npy", b"1"), "2": ("jpg", None), "3": ("jpg", b"0")}
    samples = [
        {
            "__key__": key,
            extension: jpeg(20, 20 + int(key)) if extension == "jpg" else b"",
            **({"cls": label} if label else {}),
        }
        for key, (extension, label) in named.items()
    ]
    samples[1]["ppm"] = b"P6 not a picture"
    del samples[1]["npy"]
    tar = write_shard(tmp_path / "some.tar", samples)
    for by, lacking in (("height", "1"), ("width", "1"), ("label", "2")):
        sampling = {"curriculum": {"by": by, "shares": {0: 1}}}
        with pytest.raises(ConfigError, match=f"the {by} of 1 of 4 images, such as '{lacking}' in .*some.tar: leave"):
            loader(tar, label_from=None, sampling=sampling)
        others = [key for key in named if key != lacking]
        with loader(tar, label_from=None, sampling={**sampling, "subset": others}) as batches:
            assert batches.num_samples == 3


def test_the_columns_are_those_that_functions_get(shards: list[Path]) -> None:
    got: list[str] = []
    loader(shards, sampling={"curriculum": Curriculum(lambda columns: got.extend(columns) or columns["label"], {0: 1})})
    assert (*got, "shard") == COLUMNS  # which is made when it is asked for
