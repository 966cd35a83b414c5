"""A run is one row: whatever ranks, batches and epochs it has, and wherever it resumes, the places come in order.

The model counts in plain Python: place after place, and where each epoch begins.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from counting import Counted
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuloader.errors import ConfigError
from gpuloader.plan import (
    BucketSampler,
    Cursor,
    CustomSampler,
    GroupedSampler,
    LastBatch,
    Mix,
    Plan,
    Ratio,
    Sampler,
    SampleSubset,
    Shuffle,
    ShuffledSampler,
    WeightedSampler,
    all_samples,
)

Row = tuple[int, bool]  # a sample, and whether it is valid
SEED = 5


class Part(NamedTuple):
    """A part of a run, from one resume to the next."""

    ranks: int
    batch_size: int
    steps_per_epoch: int | None
    steps: int


parts = st.builds(Part, st.integers(1, 4), st.integers(1, 5), st.none() | st.integers(1, 9), st.integers(0, 9))
KINDS: dict[str, Sampler] = {
    "all": all_samples(23),
    "by shard": GroupedSampler(SampleSubset(23), np.array([5, 9, 9]), 5),
    "some": ShuffledSampler(SampleSubset(11, np.array([40, 3, 8, 11, 12, 13, 20, 21, 30, 1, 0])), "block"),
    "all but some": ShuffledSampler(SampleSubset(19, left_out=np.array([0, 7, 18, 22])), "none"),
    "by weight": WeightedSampler(SampleSubset(13), np.arange(13.0), True),
    "by weight, each once": WeightedSampler(SampleSubset(13), np.arange(13.0), False),
    "a function": CustomSampler(lambda number: np.arange(9) * 2 + number % 2, 20),
}


def take(plan: Plan, cursor: Cursor, steps: int) -> tuple[list[Row], list[tuple[int, int]], Cursor]:
    """What all ranks get in some steps, with the addresses of their random numbers; they take equal steps."""
    rows: list[Row] = []
    addresses: list[tuple[int, int]] = []
    ranks = [replace(plan, rank=rank) for rank in range(plan.world_size)]
    for _ in range(steps):
        cursor = plan.at_step(cursor)
        assert len({each.steps_left(cursor) for each in ranks}) == 1
        for each in ranks:
            batch = each.batch(cursor)
            assert batch.draws.passes is not None
            rows += zip(batch.ids.tolist(), batch.valid.tolist())
            here = zip(batch.draws.passes.tolist(), batch.draws.ids.tolist())
            addresses += [address for address, valid in zip(here, batch.valid) if valid]
        cursor = plan.after(cursor)
    return rows, addresses, cursor


def valid_of(rows: list[Row]) -> list[int]:
    return [sample for sample, valid in rows if valid]


class Epochs:
    """Where the epochs of a run begin, counted by hand."""

    def __init__(self) -> None:
        self.epoch = self.begin = self.done = 0

    def end(self, part: Part, size: int, last_batch: LastBatch) -> int:
        """The length of the epoch under this part's arguments."""
        if part.steps_per_epoch is None:
            return max(size, self.done)
        global_batch = part.ranks * part.batch_size
        left = max(0, part.steps_per_epoch * global_batch - self.done)
        return self.done + (left // global_batch * global_batch if last_batch == "drop" else left)

    def step(self, part: Part, size: int, last_batch: LastBatch, end: int, taken: int) -> int:
        if self.done == end:
            self.epoch, self.begin, self.done = self.epoch + 1, self.begin + end, 0
            end = self.end(part, size, last_batch)
        self.done += taken
        return end


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(st.data(), st.lists(parts, min_size=1, max_size=5), st.integers(1, 3))
def test_a_run_goes_through_the_row_whatever_changes_at_its_resumes(
    kind: str, data: st.DataObject, run: list[Part], repeats: int
) -> None:
    source, state, epochs = KINDS[kind], None, Epochs()
    rows: list[int] = []
    of_steps: list[int] = []
    addresses: list[tuple[int, int]] = []
    for part in run:
        lossless = ["pad", "partial", "equal", *["drop"] * bool(part.steps_per_epoch)]
        last: LastBatch = data.draw(st.sampled_from(lossless))  # type: ignore[arg-type]
        plan = Plan(source, part.batch_size, 0, part.ranks, last, SEED, part.steps_per_epoch, repeats)
        plan, cursor = (plan, Cursor()) if state is None else plan.resume(state)
        end = epochs.end(part, source.size, last)
        for _ in range(part.steps):
            taken, of_step, cursor = take(plan, cursor, 1)
            rows += valid_of(taken)
            of_steps.append(len(valid_of(taken)))
            addresses += of_step
            end = epochs.step(part, source.size, last, end, len(valid_of(taken)))
        state = json.loads(json.dumps(plan.state(cursor)))
        groups = {"groups": source.groups} if isinstance(source, GroupedSampler) else {}
        assert state == {"epoch": epochs.epoch, "begin": epochs.begin, "delivered": epochs.done, **groups}
    passes = [
        source.order(SEED, number)(np.arange(source.size)).tolist()
        for number in range(len(rows) // source.size // repeats + 1)
    ]
    expected = [sample for sample in chain(*passes) for _ in range(repeats)]
    if isinstance(source, GroupedSampler):  # it sorts each step by group
        ends = list(accumulate(of_steps))
        expected = list(chain(*(sorted(expected[begin:end]) for begin, end in pairwise([0, *ends]))))
        by_step = list(chain(*(sorted(rows[begin:end]) for begin, end in pairwise([0, *ends]))))
        assert by_step == expected
    else:
        assert rows == expected[: len(rows)]
    assert len(set(addresses)) == len(addresses)  # no two copies have the same random numbers
    if not source.repeats:
        assert all(sorted(each) == sorted(set(each)) for each in passes)
        assert [sample for _, sample in addresses] == rows


schedules = st.lists(
    st.tuples(st.integers(0, 16).map(lambda quarter: quarter / 4), st.tuples(*[st.integers(0, 3)] * 3).filter(any)),
    max_size=4,
)


class Mixed:
    """A mix, counted by hand: each ratio begins at its place, or at the first place after a resume."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes, self.counted, self.ratios, self.begun = sizes, Counted(len(sizes)), [(0.0, (1, 1, 1))], 0
        self.starts = [0, *accumulate(sizes)]

    def take(self, epochs: Epochs, length: int) -> int:
        """The sample at the next place, in the order of each source."""
        for number, (epoch, _) in enumerate(self.ratios):
            at = round(epoch % 1 * length)
            if int(epoch) < epochs.epoch or (int(epoch) == epochs.epoch and epochs.done >= at):
                self.begun = max(self.begun, number)
        source, before = self.counted.take(self.ratios[self.begun][1])
        return self.starts[source] + before % self.sizes[source]


def merged(schedule: list[tuple[float, tuple[int, ...]]]) -> list[tuple[float, tuple[int, ...]]]:
    """Ratios by epoch, sorted, without those that change nothing."""
    kept: list[tuple[float, tuple[int, ...]]] = []
    for epoch, weights in sorted(dict(schedule).items()):
        ratio = tuple(weight // np.gcd.reduce(weights) for weight in weights)
        kept += [(epoch, tuple(map(int, ratio)))] if not kept or kept[-1][1] != ratio else []
    return kept


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(parts, schedules), min_size=1, max_size=4), st.sampled_from(["none", "full"]))
def test_a_mix_goes_on_through_its_sources_also_where_later_weights_change_at_a_resume(
    run: list[tuple[Part, Any]],
    shuffle: Any,  # noqa: ANN401
) -> None:
    sizes = (7, 5, 2)
    size, state, epochs, model = sum(sizes), None, Epochs(), Mixed(sizes)
    rows, expected = [], []
    first: list[tuple[float, tuple[int, ...]]] = [(0.0, (1, 1, 1))]
    for part, later in run:
        begun = model.ratios[: model.begun + 1] if state is not None and epochs.begin + epochs.done else first
        now = epochs.epoch + (epochs.done > 0)
        model.ratios = merged([*begun, *((now + epoch, weights) for epoch, weights in later)])
        assume(model.ratios[: len(begun)] == begun)
        plan = Plan(
            Mix(SampleSubset(size), sizes, tuple(Ratio(*each) for each in model.ratios), shuffle),
            part.batch_size,
            0,
            part.ranks,
            "partial",
            SEED,
            part.steps_per_epoch,
        )
        plan, cursor = (plan, Cursor()) if state is None else plan.resume(state)
        end = epochs.end(part, size, "partial")
        length = size if part.steps_per_epoch is None else part.steps_per_epoch * part.ranks * part.batch_size
        for _ in range(part.steps):
            taken, _, cursor = take(plan, cursor, 1)
            rows += valid_of(taken)
            for _ in valid_of(taken):
                end = epochs.step(part, size, "partial", end, 0)
                expected.append(model.take(epochs, length))
                epochs.done += 1
        state = json.loads(json.dumps(plan.state(cursor)))
    starts = [0, *accumulate(sizes)]
    for source, of_one in enumerate(sizes):
        got = [sample - starts[source] for sample in rows if starts[source] <= sample < starts[source + 1]]
        whole = len(got) // of_one * of_one
        assert all(sorted(got[n : n + of_one]) == list(range(of_one)) for n in range(0, whole, of_one))
        assert len(set(got[whole:])) == len(got[whole:])
    of_places = [np.searchsorted(starts, ids, side="right").tolist() for ids in (rows, expected)]
    assert of_places[0] == of_places[1]
    assert shuffle == "full" or rows == expected


@pytest.mark.parametrize("shuffle", ["full", "shards"])
@pytest.mark.parametrize("repeats", [1, 2, 3])
@pytest.mark.parametrize("start", [0.25, 0.5, 1, 2.5])
def test_a_state_has_the_ratios_that_began_before_its_place_and_later_ones_may_change(
    start: float, repeats: int, shuffle: Shuffle
) -> None:
    def plan_of(*later: tuple[float, tuple[int, int]]) -> Plan:
        ratios = tuple(Ratio(*each) for each in [(0, (1, 0)), *later])
        mix = Mix(SampleSubset(10), (6, 4), ratios, shuffle)
        if shuffle == "shards":
            mix = replace(mix, shard_sizes=(np.array([3, 3]), np.array([4])), groups=2)
        return Plan(mix, 2, seed=SEED, repeats=repeats)

    run = plan_of((start, (1, 1)))
    cursors = [run.at(epoch, step) for epoch in range(4) for step in range(run.steps)]
    ids = [run.batch(cursor).ids.tolist() for cursor in cursors]
    first = -(-round(start * 10) // repeats) * repeats  # place of both sources: all copies of a sample are of one ratio
    for number, cursor in enumerate(cursors):
        state, has_begun = json.loads(json.dumps(run.state(cursor))), first < 2 * number
        resumed, place = plan_of((start, (1, 1))).resume(state)
        assert place == cursor
        assert [resumed.batch(each).ids.tolist() for each in cursors[number:]] == ids[number:]
        for other in ([], [(start, (0, 1))], [(start + 4, (1, 1))]):
            with pytest.raises(ConfigError, match="weights may change") if has_begun else nullcontext():
                plan_of(*other).resume(state)
        with pytest.raises(ConfigError, match="weights may change") if 2 * number > repeats else nullcontext():
            plan_of((0.1, (2, 1)), (start, (1, 1))).resume(state)  # from the second sample on


def test_a_ratio_near_the_end_of_an_epoch_begins_with_the_next_if_a_resume_shortens_the_epoch() -> None:
    source = Mix(SampleSubset(80), (40, 40), (Ratio(0, (1, 0)), Ratio(0.95, (1, 1)), Ratio(1, (0, 1))), "none")
    before = Plan(source, 8, steps_per_epoch=5)
    plan, cursor = Plan(source, 5, steps_per_epoch=5).resume(before.state(before.at(0, 1)))
    rows, _, cursor = take(plan, cursor, 5)  # after 8 samples three steps of 5, less than 25
    assert valid_of(rows) == [*range(8, 23), *range(40, 50)]
    resumed, place = Plan(source, 5, steps_per_epoch=5).resume(plan.state(cursor))
    assert take(resumed, place, 1) == take(plan, cursor, 1)


bucket_parts = st.tuples(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 3]), st.none() | st.integers(1, 5), st.integers(0, 9)
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any),
    st.lists(bucket_parts, min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_steps_stay_within_a_bucket_whatever_changes_at_resumes(
    counts: list[int], run: list[tuple[int, int, int | None, int]], repeats: int
) -> None:
    source = BucketSampler(
        [(bucket + 1, 8) for bucket in range(len(counts))],
        [np.arange(count) + 1000 * bucket for bucket, count in enumerate(counts)],
        12,
    )
    state, rows = None, []
    for ranks, batch_size, steps_per_epoch, steps in run:
        plan = Plan(source, batch_size, 0, ranks, "pad", SEED, steps_per_epoch, repeats)
        if state is not None and (state["begin"] + state["delivered"]) % 12 % (ranks * batch_size):
            with pytest.raises(ConfigError, match="would end beyond it"):
                plan.resume(state)
            return
        plan, cursor = (plan, Cursor()) if state is None else plan.resume(state)
        for _ in range(steps):
            cursor = plan.at_step(cursor)
            [shape] = plan.shapes(cursor, 1) or []
            taken, _, cursor = take(plan, cursor, 1)
            assert {sample // 1000 + 1 for sample, _ in taken} == {shape[0]}
            rows += taken
        state = json.loads(json.dumps(plan.state(cursor)))
    passes = range(len(rows) // source.size + 1)
    raw = chain(*(source.order(SEED, number)(np.arange(source.size)).tolist() for number in passes))
    expected = [(max(sample, ~sample), sample >= 0) for sample in raw for _ in range(repeats)]
    assert rows == expected[: len(rows)]


def test_epochs_before_a_states_are_those_of_the_runs_beginning() -> None:
    plan, _ = Plan(all_samples(23), 3, steps_per_epoch=4).resume({"epoch": 2, "begin": 50, "delivered": 6})
    assert [plan.first(epoch) for epoch in range(5)] == [0, 12, 50, 62, 74]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"epoch": 2**32 + 1}, r"epoch=4294967297: allowed is an integer of 0 to 4294967296"),
        ({"epoch": "1"}, "epoch='1': allowed"),
        ({"begin": -1}, "begin=-1: allowed is an integer of at least 0"),
        ({"delivered": 1.5}, r"delivered=1.5: allowed"),
        ({"ratios": None}, "ratios=None: allowed are"),
        ({"ratios": [[0, [1]]]}, "with a part for each source"),
        ({"ratios": [[0, [1, -1]]]}, "with a part for each source"),
        ({"ratios": [[0, [1, 1]], [9, [0, 0]]]}, "up to there the weights of the sources were 1:1, then 0:0"),
        ({"ratios": [[1, [1, 1]]]}, "the ratios begin at"),
        ({"ratios": [[0, [1, 1]], [9, [1, 2]], [5, [1, 1]]]}, "the ratios begin at"),
        ({"ratios": [[0, [1, 1]], [14, [1, 2]]]}, "the ratios begin at"),  # the state's own place
        ({"ratios": [[0, [1, 1]], [13, [1, 2]]]}, "were 1:1, then 1:2, and this loader's are 1:1: weights may change"),
        ({"ratios": [[0, [2, 1]]]}, "were 2:1, and this loader's are 1:1: weights may change from a later place on"),
        ({"epoch": 4, "ratios": [[0, [1, 1]]]}, "were 1:1, and this loader's are 1:1, then 1:2: weights may"),
    ],
    ids=str,
)
def test_a_place_that_is_none_is_refused(state: dict[str, Any], says: str) -> None:
    source = Mix(SampleSubset(10), (6, 4), (Ratio(0, (1, 1)), Ratio(3, (1, 2))), "full")
    place = {"epoch": 1, "begin": 10, "delivered": 4, "ratios": [[0, [1, 1]]]}
    Plan(source, 2).resume(place)
    with pytest.raises(ConfigError, match=says):
        Plan(source, 2).resume({**place, **state})
