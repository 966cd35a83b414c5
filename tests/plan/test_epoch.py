"""Plan: who gets which sample at which step."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from torch.utils.data import DistributedSampler

from gpuloader.errors import ConfigError
from gpuloader.plan import Cursor, LastBatch, Plan, Shuffle, Stream, all_samples

WORLDS = (1, 2, 3, 7, 8)
BATCH = 4
START = Cursor()
SIZES = sorted(
    {size for world in WORLDS for size in (1, BATCH - 1, BATCH, BATCH + 1, *(world * BATCH + d for d in (-1, 0, 1)))}
)


def epoch(plan: Plan, start: Cursor = START) -> list[tuple[list[int], list[bool]]]:
    """The (ids, valid) of each step of the rest of an epoch."""
    steps, cursor = [], start
    for _ in range(plan.steps_left(start)):
        batch = plan.batch(cursor)
        steps.append((batch.ids.tolist(), batch.valid.tolist()))
        cursor = plan.after(cursor)
    assert plan.steps_left(cursor) == 0
    assert plan.at_step(cursor) == Cursor(start.epoch + 1)
    return steps


def world(
    samples: int, world_size: int, last_batch: LastBatch, shuffle: Shuffle = "full", **kwargs: object
) -> list[Plan]:
    return [
        Plan(all_samples(samples, shuffle), BATCH, rank, world_size, last_batch=last_batch, **kwargs)  # type: ignore[arg-type]
        for rank in range(world_size)
    ]


# 10 samples in their order, 2 ranks, batch 4: the second global batch is 2 samples long.
@pytest.mark.parametrize(
    ("last_batch", "rank", "expected"),
    [
        ("drop", 0, [([0, 1, 2, 3], "vvvv")]),
        ("drop", 1, [([4, 5, 6, 7], "vvvv")]),
        ("pad", 0, [([0, 1, 2, 3], "vvvv"), ([8, 9, 0, 1], "vv..")]),
        ("pad", 1, [([4, 5, 6, 7], "vvvv"), ([2, 3, 4, 5], "....")]),
        ("partial", 0, [([0, 1, 2, 3], "vvvv"), ([8], "v")]),
        ("partial", 1, [([4, 5, 6, 7], "vvvv"), ([9], "v")]),
        ("equal", 0, [([0, 1, 2, 3], "vvvv"), ([8], "v")]),
        ("equal", 1, [([4, 5, 6, 7], "vvvv"), ([9], "v")]),
    ],
)
def test_ten_samples_for_two_ranks(last_batch: LastBatch, rank: int, expected: list[tuple[list[int], str]]) -> None:
    plan = Plan(all_samples(10, "none"), 4, rank, 2, last_batch=last_batch)
    assert epoch(plan) == [(ids, [mark == "v" for mark in valid]) for ids, valid in expected]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("last_batch", ["pad", "partial", "equal"])
def test_every_sample_exactly_once_and_as_many_steps_on_every_rank(world_size: int, last_batch: LastBatch) -> None:
    for samples, shuffle in itertools.product(SIZES, ("none", "full", "block")):
        ranks = [epoch(plan) for plan in world(samples, world_size, last_batch, shuffle=shuffle)]
        assert len({len(steps) for steps in ranks}) == 1
        delivered = [
            sample for steps in ranks for ids, valid in steps for sample, good in zip(ids, valid, strict=True) if good
        ]
        assert sorted(delivered) == list(range(samples))


@pytest.mark.parametrize("last_batch", ["drop", "pad", "partial", "equal"])
@pytest.mark.parametrize("repeats", [1, 3])
def test_places_are_counted_over_all_ranks_from_the_beginning_of_the_epoch(last_batch: LastBatch, repeats: int) -> None:
    before = Plan(all_samples(50, "none"), 8, 0, 2, last_batch, repeats=repeats)
    state = before.state(before.at(1, 2))
    for plan in world(50, 3, last_batch, "none", repeats=repeats):
        resumed, cursor = plan.resume(state)
        for start in (Cursor(0), Cursor(5), cursor):
            for step in range(resumed.steps_left(start)):
                batch = resumed.batch(resumed.after(start, step) if step else start)
                first, places = resumed.first(batch.cursor.epoch), batch.places[batch.valid]
                assert ((first + places) // repeats % 50).tolist() == batch.ids[batch.valid].tolist()
                assert set(batch.places[~batch.valid].tolist()) <= {-1}
                assert (places >= start.delivered).all()
                assert (places < 50 * repeats).all()


@pytest.mark.parametrize("world_size", WORLDS)
def test_drop_leaves_out_less_than_a_global_batch(world_size: int) -> None:
    for samples in SIZES:
        if samples < world_size * BATCH:
            continue
        ranks = [epoch(plan) for plan in world(samples, world_size, "drop")]
        delivered = [sample for steps in ranks for ids, _ in steps for sample in ids]
        assert len(set(delivered)) == len(delivered) == samples // (world_size * BATCH) * world_size * BATCH
        assert {len(ids) for steps in ranks for ids, _ in steps} == {BATCH}


def small_worlds() -> Iterator[tuple[int, int, int]]:
    """(samples, ranks, batch size) of epochs of up to four steps."""
    for ranks, batch_size in itertools.product(range(1, 10), range(1, 7)):
        yield from ((samples, ranks, batch_size) for samples in range(1, 4 * ranks * batch_size + 1))


def sizes_of_partial(samples: int, ranks: int, batch_size: int) -> list[list[int]]:
    """How many samples each rank has in each step."""
    full, left = divmod(samples, ranks * batch_size)
    steps = [[batch_size] * ranks for _ in range(full)]
    last = [left * (rank + 1) // ranks - left * rank // ranks for rank in range(ranks)]
    if full and 0 < left < ranks:  # some ranks would have no sample in the last step: each keeps half of a batch for it
        kept = batch_size // 2
        steps[-1] = [batch_size - kept] * ranks
        last = [some + kept for some in last]
    return [*steps, last] if left else steps


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.slow(kept=2)
def test_partial_leaves_no_rank_without_samples_where_that_can_be(ranks: int) -> None:
    for samples, _, batch_size in (each for each in small_worlds() if each[1] == ranks):
        plan = Plan(all_samples(samples, "none"), batch_size, 0, ranks, last_batch="partial")
        expected = sizes_of_partial(samples, ranks, batch_size)
        plans = [replace(plan, rank=rank) for rank in range(ranks)]
        steps = list(zip(*map(epoch, plans), strict=True))
        assert [[len(ids) for ids, _ in step] for step in steps] == expected
        assert [sample for step in steps for ids, _ in step for sample in ids] == list(range(samples))
        has_empty = any(0 in step for step in expected)
        assert plan.has_empty_shares == has_empty == (samples < ranks or (batch_size == 1 and samples % ranks > 0))
        assert len(steps) == plan.steps == -(-samples // (ranks * batch_size))
        assert [plan.at(0, step) for step in range(plan.steps)] == [
            Cursor(0, sum(map(sum, expected[:step]))) for step in range(plan.steps)
        ]


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.slow(kept=2)
def test_equal_gives_each_rank_as_many_samples_as_torch(ranks: int) -> None:
    for samples, _, batch_size in (each for each in small_worlds() if each[1] == ranks):
        plans = [Plan(all_samples(samples, "none"), batch_size, rank, ranks, "equal") for rank in range(ranks)]
        steps = list(zip(*map(epoch, plans), strict=True))
        of_torch = [list(DistributedSampler(range(samples), ranks, rank, shuffle=False)) for rank in range(ranks)]
        assert [sum(len(step[rank][0]) for step in steps) for rank in range(ranks)] == list(map(len, of_torch))
        assert len(steps) == -(-samples // (ranks * batch_size))
        assert all(len({len(ids) for ids, _ in step}) == 1 for step in steps)
        ids = [sample for step in steps for ids, _ in step for sample in ids]
        assert sorted(ids) == sorted(itertools.chain(*of_torch))
        # The padding is at the end of the last global batch, and shorter than a row of the ranks.
        assert [good for step in steps for _, valid in step for good in valid] == [
            number < samples for number in range(len(ids))
        ]
        assert len(ids) - samples < ranks
        assert not any(plan.has_empty_shares for plan in plans)


@pytest.mark.slow(kept=0)
def test_a_state_between_the_two_last_steps_is_resumed_on_any_other_world() -> None:
    # After a full step some samples are left, fewer than ranks: the state is of the place between the last two steps.
    worlds = list(itertools.product(range(1, 10), range(1, 7)))
    for ranks, batch_size in (each for each in worlds if min(each) > 1):
        for left in {1, ranks - 1}:
            samples = ranks * batch_size + left
            old = [Plan(all_samples(samples, "none"), batch_size, rank, ranks, "partial") for rank in range(ranks)]
            before = [sample for plan in old for sample in plan.batch(START).ids.tolist()]
            cursor = old[0].after(START)
            assert old[0].resume(old[0].state(cursor))[1] == cursor
            for new_ranks, new_size in worlds:
                new = Plan(all_samples(samples, "none"), new_size, 0, new_ranks, "partial")
                steps = list(zip(*(epoch(replace(new, rank=rank), cursor) for rank in range(new_ranks)), strict=True))
                rest = [sample for step in steps for ids, _ in step for sample in ids]
                assert sorted(before + rest) == list(range(samples))
                if len(rest) >= new_ranks and new_size > 1:
                    assert all(ids for step in steps for ids, _ in step)


@pytest.mark.parametrize("shuffle", ["none", "full", "block"])
def test_the_global_batches_do_not_depend_on_the_world_size(shuffle: Shuffle) -> None:
    def global_batches(world_size: int) -> list[list[int]]:
        plans = [
            Plan(all_samples(100, shuffle), 24 // world_size, rank, world_size, "partial") for rank in range(world_size)
        ]
        return [[s for ids, _ in step for s in ids] for step in zip(*map(epoch, plans), strict=True)]

    one, eight = global_batches(1), global_batches(8)
    assert one == global_batches(2) == global_batches(3)
    # The last step has 4 samples. These are enough for 3 ranks, but not for 8: there the last two steps are others.
    assert eight[:3] == one[:3]
    assert [len(step) for step in eight[3:]] == [16, 12]
    assert list(itertools.chain(*eight)) == list(itertools.chain(*one))


def test_short_epochs_lose_no_sample_and_long_ones_have_whole_passes() -> None:
    plan = Plan(all_samples(100), 10, steps_per_epoch=3)
    samples = [ids for number in range(10) for ids, _ in epoch(plan, Cursor(number))]
    assert [sorted(itertools.chain(*samples[n : n + 10])) for n in (0, 10, 20)] == [list(range(100))] * 3
    assert len(epoch(long := Plan(all_samples(10), 12, steps_per_epoch=5))) == 5
    assert sorted(itertools.chain(*(ids for ids, _ in epoch(long)))) == sorted([*range(10)] * 6)


def test_a_repeated_sample_comes_with_its_copies_and_other_random_numbers() -> None:
    batch = Plan(all_samples(30), 12, repeats=3).batch(START)
    assert batch.ids.tolist() == [sample for sample in batch.ids[::3].tolist() for _ in range(3)]
    drawn = batch.draws.uniform(Stream.CROP, 2)
    assert len(np.unique(drawn)) == drawn.size
    assert drawn[::3].tolist() == Plan(all_samples(30), 4).batch(START).draws.uniform(Stream.CROP, 2).tolist()


def test_an_epoch_ends_where_the_new_length_says_and_the_next_begins_there() -> None:
    state = {"epoch": 3, "begin": 72, "delivered": 10}
    for last_batch, following in (("drop", 82), ("partial", 96)):  # "drop" leaves no sample out that comes later
        plan, cursor = Plan(all_samples(101), 24, last_batch=last_batch, steps_per_epoch=1).resume(state)  # type: ignore[arg-type]
        assert [plan.first(number) for number in (3, 4, 5)] == [72, following, following + 24]
        assert plan.steps_left(cursor) == (last_batch == "partial")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: allowed is an integer of at least 1"),
        ({"batch_size": True}, "batch_size=True: allowed is an integer of at least 1"),
        ({"last_batch": "keep"}, "last_batch='keep': allowed are 'drop', 'pad', 'partial', 'equal'"),
        ({"batch_size": 6, "rank": 1, "world_size": 2}, "10 samples are fewer than one step of 2 rank"),
        ({"steps_per_epoch": 0}, "steps_per_epoch=0: allowed is an integer of at least 1"),
        ({"repeats": 0}, "repeats=0: allowed is an integer of at least 1"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        Plan(**{"source": all_samples(10), "batch_size": 2, **arguments})  # type: ignore[arg-type]
