"""Groups of shards: each node reads its own, and everything else is as with one node."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloader.errors import ConfigError
from gpuloader.plan import (
    Cursor,
    GroupedSampler,
    LastBatch,
    Mix,
    Plan,
    Ratio,
    SampleSubset,
    ShuffledSampler,
    all_samples,
    choose_groups,
)

SEED = 3
SIZES = np.array([100, 0, 250, 1, 77] * 12)  # of 60 shards
sizes_of_shards = st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any)
clusters = st.tuples(st.sampled_from([1, 2, 3, 6, 8, 16]), st.integers(1, 3), st.integers(1, 4))
last_batches = st.sampled_from(["drop", "pad", "partial", "equal"])


def grouped(sizes: list[int] | np.ndarray, groups: int) -> GroupedSampler:
    return GroupedSampler(SampleSubset(int(sum(sizes))), np.array(sizes), groups)


def valid_of(plan: Plan, cursor: Cursor) -> list[int]:
    batch = plan.batch(cursor)
    return batch.ids[batch.valid].tolist()


def shards_of(sizes: np.ndarray, ids: list[int] | np.ndarray) -> set[int]:
    return set(np.searchsorted(np.cumsum(sizes), ids, side="right").tolist())


@pytest.mark.parametrize("groups", [1, 2, 7, 64, 5000])
@pytest.mark.parametrize("sizes", [[1], [0, 3], [5, 0], [7] * 16, [7] * 17, SIZES], ids=len)
def test_every_sample_of_every_shard_comes_exactly_once(sizes: list[int], groups: int) -> None:
    for seed, number in ((0, 0), (5, 9)):
        ids = grouped(sizes, groups).order(seed, number)(np.arange(sum(sizes)))
        np.testing.assert_array_equal(np.sort(ids), np.arange(sum(sizes)))


def test_the_order_is_golden_and_each_place_stands_alone() -> None:
    order = grouped(SIZES, 8).order(seed=0, number=1)
    places = np.array([0, 1, 2, 3, SIZES.sum() - 1])
    expected = [2102, 2582, 526, 1797, 341]
    assert order(places).tolist() == expected
    assert [int(order(places[place : place + 1])[0]) for place in range(5)] == expected


def test_a_group_has_the_same_samples_in_each_pass_in_another_order() -> None:
    source = grouped(SIZES, 8)
    places = np.arange(source.size)
    groups = source.groups_at(0, places)
    first, second = (source.order(SEED, number)(places) for number in (0, 1))
    for group in range(8):
        assert set(first[groups == group]) == set(second[groups == group])
    assert (first == second).mean() < 0.01
    counts = np.bincount(groups)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(
    ("groups", "most"),
    [
        (1, 16),  # a window of 16 shards
        (4, 4 * 4 + 4),
        (16, 2 * 16),  # one shard of each group, cut at the groups' borders
    ],
)
def test_few_shards_are_needed_at_a_time(groups: int, most: int) -> None:
    shards = np.searchsorted(np.cumsum(SIZES), grouped(SIZES, groups).order(2, 3)(np.arange(SIZES.sum())), side="right")
    spans = [
        (places.min(), places.max()) for each in np.unique(shards) if len(places := np.flatnonzero(shards == each))
    ]
    if groups > 1:  # a shard at a border is needed by two groups, at other times
        spans = sorted(spans, key=lambda span: span[0] - span[1])[groups:]
    assert max(sum(begin <= place <= end for begin, end in spans) for place in range(0, SIZES.sum(), 7)) <= most
    assert len(set(shards[:100].tolist())) > 5


@settings(max_examples=60, deadline=None)
@given(sizes_of_shards, st.lists(st.tuples(clusters, st.none() | st.integers(1, 5)), min_size=1, max_size=3),
       st.integers(1, 40), last_batches, st.integers(1, 3))  # fmt: skip
def test_ranks_share_the_steps_of_one_rank_also_after_resumes(
    sizes: list[int], run: list[tuple[tuple[int, int, int], int | None]], groups: int, last: LastBatch, repeats: int
) -> None:
    state = None
    for (nodes, ranks_of_node, batch_size), steps_per_epoch in run:
        ranks = nodes * ranks_of_node
        if last == "drop" and steps_per_epoch is None and ranks * batch_size > sum(sizes):
            continue
        plan = Plan(grouped(sizes, groups), batch_size, 0, ranks, last, SEED, steps_per_epoch, repeats)
        plan, cursor = (plan, Cursor()) if state is None else plan.resume(state)
        # Its last, short steps may be shared otherwise, but have the same samples together.
        alone = replace(plan, world_size=1, batch_size=plan.global_batch)
        for _ in range(3):
            cursor = plan.at_step(cursor)
            each = [valid_of(replace(plan, rank=rank), cursor) for rank in range(ranks)]
            after = plan.after(cursor)
            if alone.after(cursor) == after:
                assert sorted(chain(*each)) == sorted(valid_of(alone, cursor))
            for node in range(nodes):
                mine = range(node * ranks_of_node, (node + 1) * ranks_of_node)
                coming = plan.coming(cursor, 1, mine).tolist()
                assert coming == list(chain(*(each[rank] for rank in mine)))
            cursor = after
        state = json.loads(json.dumps(plan.state(cursor)))


@pytest.mark.parametrize("last", ["drop", "pad", "partial", "equal"])
@pytest.mark.parametrize("steps", [None, 30])
def test_what_is_coming_for_a_node_is_what_its_ranks_get(last: LastBatch, steps: int | None) -> None:
    plan = Plan(grouped(SIZES, 24), 4, 0, 6, last, SEED, steps)
    for cursor, count in ((Cursor(0), 3), (Cursor(0, 24), plan.steps), (plan.at(1, plan.steps - 2), 9)):
        expected = []
        for step in range(min(count, plan.steps_left(cursor))):
            here = plan.after(cursor, step)
            expected += [valid_of(replace(plan, rank=rank), here) for rank in (2, 3)]
        assert plan.coming(cursor, count, [2, 3]).tolist() == list(chain(*expected))


@pytest.mark.parametrize(
    ("nodes", "groups", "times"),
    [
        (8, None, 1.0),
        (16, None, 1.0),
        (3, None, 1.12),  # 16 groups of a step of 48
        (3, 12, 1.0),
        (8, 8, 1.0),
        (16, 8, 2.0),  # two nodes share a group
        (6, 8, 1.5),
        (8, 1, 8.0),  # each reads all
    ],
)
def test_a_node_reads_its_share_of_the_shards(nodes: int, groups: int | None, times: float) -> None:
    sizes = np.random.default_rng(1).integers(30, 70, 512)
    ranks, batch_size = 2 * nodes, 8
    source = grouped(sizes, groups or choose_groups(ranks * batch_size, 512))
    for steps in (None, 37):  # then passes begin within steps
        plan = Plan(source, batch_size, 0, ranks, "drop", SEED, steps)
        epochs = range(-(-3 * source.size // plan.length))
        touched = [
            set().union(
                *(
                    shards_of(sizes, plan.coming(Cursor(epoch), plan.steps, [2 * node, 2 * node + 1]))
                    for epoch in epochs
                )
            )
            for node in range(nodes)
        ]
        assert sum(map(len, touched)) / 512 == pytest.approx(times, abs=0.075)


def test_each_source_of_a_mix_has_groups_of_its_own() -> None:
    sizes = (np.full(64, 50), np.full(32, 25))
    counts = tuple(int(each.sum()) for each in sizes)
    mix = Mix(SampleSubset(sum(counts)), counts, (Ratio(0, (3, 1)),), "shards", sizes, 32)
    plan = Plan(mix, 32, 0, 8, "drop", SEED)
    touched = [shards_of(np.concatenate(sizes), plan.coming(Cursor(), plan.steps, [node])) for node in range(8)]
    for first, last in ((0, 64), (64, 96)):
        of_each = [len([shard for shard in of_node if first <= shard < last]) for of_node in touched]
        assert sum(of_each) <= 1.6 * (last - first)  # ranks take equal numbers: neighbours share some groups
    ids = np.concatenate([plan.batch(plan.at(0, step)).ids for step in range(3)])
    plain = replace(plan, source=replace(mix, shuffle="full", shard_sizes=(), groups=None))
    same = [
        sum(replace(of, rank=0, world_size=1, batch_size=256).batch(Cursor()).ids < counts[0]) for of in (plan, plain)
    ]
    assert same == [192, 192]
    assert len(set(ids.tolist())) == len(ids)


def test_replacements_are_of_the_samples_group() -> None:
    source = grouped(SIZES, 8)
    places = np.arange(source.size)
    group_of = dict(zip(source.order(SEED, 0)(places).tolist(), source.groups_at(0, places).tolist()))
    uniform = np.append(np.random.default_rng(0).random(200), [0.0, 1 - 2**-53])
    for sample in range(0, source.size, 97):
        for ranks, batch_size in ((1, 8), (4, 2)):
            found = Plan(source, batch_size, 0, ranks, seed=SEED).replacements(Cursor(5), sample, uniform).tolist()
            assert {group_of[each] for each in found} == {group_of[sample]}
            assert len(set(found)) > 50


def test_replacements_in_a_mix_are_of_the_samples_source() -> None:
    counts = (600, 200)
    chosen = SampleSubset(800, left_out=np.array([3, 700]))
    mix = Mix(chosen, counts, (Ratio(0, (1, 1)),), "shards", (np.full(6, 100), np.full(4, 50)), 4)
    for sample, low, high in ((0, 0, 601), (600, 0, 601), (601, 601, 802), (801, 601, 802)):
        found = Plan(mix, 4, seed=SEED).replacements(Cursor(), sample, np.linspace(0, 0.99, 50))
        assert ((low <= found) & (found < high)).all()


@pytest.mark.parametrize(
    ("global_batch", "shards", "groups"),
    [
        (256, 9999, 16),  # up to 16
        (2048, 9999, 32),  # or up to a 64th of the batch
        (6144, 9999, 96),
        (32_768, 9999, 512),
        (2**31, 99_999, 65_536),  # the most that there are
        (50, 9999, 10),  # a divisor
        (31, 9999, 1),
        (2048, 31, 16),  # up to the shards
        (50, 4, 2),
        (256, 1, 1),
    ],
)
def test_the_number_of_groups(global_batch: int, shards: int, groups: int) -> None:
    assert choose_groups(global_batch, shards) == groups


@pytest.mark.parametrize(
    ("global_batch", "shards", "nodes", "groups"),
    [
        (768, 9999, 3, 12),
        (1792, 9999, 7, 28),
        (32 * 1021, 9999, 1021, 1021),  # nothing fits: the nodes
        (256, 4, 8, 8),
    ],
)
def test_the_number_of_groups_that_nodes_divide(global_batch: int, shards: int, nodes: int, groups: int) -> None:
    assert choose_groups(global_batch, shards, nodes) == groups


@pytest.mark.parametrize(("batch_size", "most"), [(32, 1.125), (64, 1), (100, 1.1), (128, 1), (256, 1)])
def test_nodes_of_eight_ranks_read_hardly_more_than_the_data(batch_size: int, most: float) -> None:
    read = []
    for nodes in [*range(1, 13), 31, 127]:
        groups = choose_groups(8 * nodes * batch_size, 9999)
        source = grouped(np.full(4 * groups, 2 * batch_size), groups)
        read.append(Plan(source, batch_size, 0, 8 * nodes).times_read(nodes))
    assert max(read) <= most
    assert np.mean(read) <= 1 + (most - 1) / 2


def test_a_run_keeps_its_groups_and_refuses_others() -> None:
    state = Plan(grouped(SIZES, 8), 4, seed=SEED).state(Cursor(2, 16))
    assert state == {"epoch": 2, "begin": 2 * int(SIZES.sum()), "delivered": 16, "groups": 8}
    plan, cursor = Plan(grouped(SIZES, 32), 4, seed=SEED).resume(state)
    assert plan.state(cursor) == state
    fixed = replace(grouped(SIZES, 32), fixed=True)
    says = r"the state has groups=8, this loader has Sampling\(groups=32\): leave groups out, or give 8"
    with pytest.raises(ConfigError, match=says):
        Plan(fixed, 4, seed=SEED).resume(state)
    assert grouped(SIZES, 8).fingerprint == grouped(SIZES, 32).fingerprint


def test_how_often_the_data_is_read_is_counted() -> None:
    sizes = np.random.default_rng(1).integers(30, 70, 512)
    for nodes, groups, times in ((8, 64, 1.0), (6, 8, 1.5), (16, 8, 2.0)):
        plan = Plan(grouped(sizes, groups), 8, 0, 2 * nodes, seed=SEED)
        assert plan.times_read(nodes) == pytest.approx(times, abs=0.13)


@pytest.mark.slow(kept=0)
def test_what_a_node_reads_is_as_the_page_says() -> None:
    lines = (Path(__file__).parents[2] / "docs/gpus-and-nodes.md").read_text("utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[lines.index(next(filter(is_heading, lines))) + 2 :]][:3]
    shards, of_shard, of_node = 2000, 1000, 8 * 32
    for name, *shares in rows:
        for nodes, share in zip((8, 64, 1024), shares, strict=True):
            source: GroupedSampler | ShuffledSampler = grouped(
                np.full(shards, of_shard), choose_groups(of_node * nodes, shards)
            )
            if name != '`"shards"`':
                source = all_samples(shards * of_shard, "full" if name == '`"full"`' else "block")
            plan = Plan(source, of_node, 0, nodes)
            read = [
                len(np.unique(plan.coming(Cursor(), plan.steps, [rank]) // of_shard))
                for rank in {0, nodes // 2, nodes - 1}
            ]
            assert max(read) / shards == pytest.approx(float(share.rstrip("%")) / 100, rel=0.02)


def is_heading(line: str) -> bool:
    return line.startswith("| `shuffle` | 8 nodes")
