"""MixedLoader: whose turn it is, what comes then, and going on from any step."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import write_samples
from scipy import stats

from gpuloader import GPULoader, MixedLoader, Sampling, World
from gpuloader.errors import ConfigError, LoaderError, ShardChangedError, StateError
from gpuloader.loading.loader import run_of
from gpuloader.plan import WeightedSampler, all_samples

pytestmark = pytest.mark.slow(kept=19, of="mixed loader")

OVERRIDES = {"CenterCrop": {"size": 32}, "Resize": {"size": 36}}
SUBSETS = {"a": slice(0, 12), "b": slice(12, 16), "c": slice(16, 24)}  # of 3, 1 and 2 batches of 4
ALONE = World(0, 1)
WEIGHTS = {"a": 3, "b": 1, "c": 2}
MODES: list[dict[str, Any]] = [
    *({"strategy": "round_robin", "stop": stop} for stop in ("first", "longest", "cycle")),
    *({"strategy": "weighted", "weights": WEIGHTS, "stop": stop, "seed": 7} for stop in ("first", "longest", "cycle")),
    {"strategy": "sequential"},
    {"strategy": "alternate"},
]
each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: f"{mode['strategy']} {mode.get('stop', '')}")


def loader(tar: Any, batch_size: int = 4, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    given = {"preset": {"imagenet_eval": OVERRIDES}, "output": "dict", "shuffle": "full", **kwargs}
    return GPULoader(tar, batch_size, None, **given)


def loaders(shards: list[Path], **kwargs: Any) -> dict[str, GPULoader]:  # noqa: ANN401
    return {name: loader(shards, sampling=Sampling(subset=subset), **kwargs) for name, subset in SUBSETS.items()}


def mixed(shards: list[Path], batch_size: int = 4, world: World = ALONE, **mode: Any) -> MixedLoader:  # noqa: ANN401
    return MixedLoader(loaders(shards, batch_size=batch_size, world=world), **mode)


def records(turns: Iterator[tuple[str, Any]]) -> list[tuple[str, list[int]]]:
    return [(name, batch["index"].tolist()) for name, batch in turns]


def names(turns: Iterator[tuple[str, Any]]) -> str:
    return "".join(name for name, _ in turns)


# --- turns


@pytest.mark.parametrize(
    ("mode", "epochs"),
    [
        ({"strategy": "round_robin", "stop": "first"}, ["abca"] * 3),
        ({"strategy": "round_robin", "stop": "longest"}, ["abcaca"] * 3),
        ({"strategy": "round_robin", "stop": "cycle"}, ["abcabca"] * 3),
        ({"strategy": "sequential"}, ["aaabcc"] * 3),
        ({"strategy": "alternate"}, ["aaa", "b", "cc", "aaa"]),
        # What a seed means. Changing these breaks saved runs.
        ({"strategy": "weighted", "weights": WEIGHTS, "stop": "first", "seed": 7}, ["cc", "aaacc", "ba"]),
        ({"strategy": "weighted", "weights": WEIGHTS, "stop": "longest", "seed": 7}, ["ccaaab", "aaaccb", "baaacc"]),
        (
            {"strategy": "weighted", "weights": WEIGHTS, "stop": "cycle", "seed": 7},
            ["ccccccaaaab", "aaacccccacacaaacccab", "babaacc"],
        ),
    ],
)
def test_whose_turn_it_is(shards: list[Path], mode: dict[str, Any], epochs: list[str]) -> None:
    with mixed(shards, **mode) as batches:
        lengths, turns = [], []
        for _ in epochs:
            lengths.append(len(batches))
            assert batches.num_batches == lengths[-1]
            turns.append(names(batches))
    assert turns == epochs
    assert lengths == [len(epoch) for epoch in epochs]


def drawn_names(weights: dict[str, float], steps: int, epoch: int = 0, seed: int = 0) -> str:
    """Whose turns they are where no loader ends."""
    numbers = MixedLoader({name: range(steps) for name in weights}, "weighted", weights=weights, seed=seed)
    numbers.set_epoch(epoch)
    return names(itertools.islice(numbers, steps))


def test_the_weighted_loaders_come_as_often_as_they_weigh() -> None:
    epochs = [drawn_names({"b": 0.5, "a": 1.5, "c": 1}, 6000, epoch, seed=1) for epoch in range(3)]
    for drawn in epochs:
        counts = Counter(drawn)
        assert stats.chisquare([counts[name] for name in "abc"], [3000, 1000, 2000]).pvalue > 1e-4
    pairs = Counter(map("".join, itertools.pairwise(epochs[0])))
    share = {"a": 1 / 2, "b": 1 / 6, "c": 1 / 3}
    both = [one + other for one, other in itertools.product("abc", repeat=2)]
    expected = [5999 * share[one] * share[other] for one, other in both]
    assert stats.chisquare([pairs[pair] for pair in both], expected).pvalue > 1e-4


def test_turns_have_other_numbers_than_the_samples_of_a_weighted_loader() -> None:
    samples = WeightedSampler(all_samples(2).chosen, np.ones(2), replacement=True).order(0, 0)(np.arange(4000))
    turns = np.array(list(drawn_names({"0": 1, "1": 1}, 4000)), np.int64)
    assert abs((samples == turns).mean() - 0.5) < 0.05


# --- batches


@each_mode
def test_a_loader_gives_the_epochs_that_the_mixed_one_asks_for(shards: list[Path], mode: dict[str, Any]) -> None:
    with mixed(shards, **mode) as batches:
        received = [records(batches) for _ in range(4)]
    own = loaders(shards)
    for epoch, turns in enumerate(received):
        given: Counter[str] = Counter()
        for name, ids in turns:
            passes, step = divmod(given[name], len(own[name]))
            given[name] += 1
            if mode["strategy"] == "alternate":
                epoch_of_its_own = epoch // 3
            else:
                epoch_of_its_own = 1000 * epoch + passes if mode.get("stop") == "cycle" else epoch
            plan = run_of(own[name]).plan
            positions = np.arange(4 * step, 4 * step + 4)
            assert ids == plan.ids(epoch_of_its_own, positions).tolist()


def test_what_the_loaders_did_before_does_not_count(shards: list[Path]) -> None:
    with mixed(shards) as batches:
        expected = [records(batches) for _ in range(2)]
    used = loaders(shards)
    next(iter(used["a"]))
    state = used["a"].state_dict()
    used["a"].load_state_dict(state)  # in the middle of the epoch that comes
    list(used["b"])
    used["c"].set_epoch(5)
    with MixedLoader(used) as batches:
        assert [records(batches) for _ in range(2)] == expected


# --- epochs


def test_epochs_can_be_chosen_left_and_run_again(shards: list[Path]) -> None:
    with mixed(shards) as batches:
        whole = [records(batches) for _ in range(4)]
        batches.set_epoch(np.int64(1))
        assert batches.state_dict()["epoch"] == 1
        for _ in batches:
            batches.set_epoch(3)  # does not disturb the running one
            break
        assert records(batches) == whole[3]
        batches.set_epoch(2)
        assert records(batches) == whole[2]
        assert records(batches) == whole[3]


def test_a_loader_that_is_used_beside_the_loop_is_an_error(shards: list[Path]) -> None:
    with mixed(shards, strategy="sequential") as batches:
        epoch = iter(batches)
        next(epoch)
        next(iter(batches.loaders["a"]))
        with pytest.raises(LoaderError, match="a newer one began"):
            next(epoch)


def test_the_loop_goes_on_where_it_was_after_an_error(tmp_path: Path) -> None:
    one, two = write_samples(tmp_path, 16)
    modified = two.stat().st_mtime_ns
    with MixedLoader({"a": loader(one), "b": loader(two)}) as batches:
        whole = records(batches)
    with MixedLoader({"a": loader(one), "b": loader(two)}) as batches:
        epoch = iter(batches)
        assert records(itertools.islice(epoch, 1)) == whole[:1]
        os.utime(two, ns=(0, 0))
        for _ in range(2):
            with pytest.raises(ShardChangedError):
                next(epoch)
        assert batches.state_dict()["step"] == 1
        os.utime(two, ns=(modified, modified))
        assert records(epoch) == whole[1:]


# --- ranks


@each_mode
@pytest.mark.slow(kept=2)
def test_ranks_have_the_same_turns_and_share_each_batch(shards: list[Path], mode: dict[str, Any]) -> None:
    with mixed(shards, **mode) as batches:
        alone = [turn for _ in range(2) for turn in records(batches)]
    ranks = []
    for rank in range(2):
        with mixed(shards, batch_size=2, world=World(rank, 2), **mode) as batches:
            ranks.append([turn for _ in range(2) for turn in records(batches)])
    together = [(one, mine + theirs) for (one, mine), (other, theirs) in zip(*ranks, strict=True) if one == other]
    assert together == alone


def test_a_rank_without_a_sample_has_its_turns(shards: list[Path]) -> None:
    few = {"a": loader(shards, 1, sampling=Sampling(subset=[3, 4]), last_batch="partial", world=World(0, 8))}
    more = {"b": loader(shards, 1, sampling=Sampling(subset=range(9)), last_batch="partial", world=World(0, 8))}
    with MixedLoader({**few, **more}, stop="longest") as batches:
        assert [(name, len(ids)) for name, ids in records(batches)] == [("a", 0), ("b", 1), ("b", 0)]


# --- state


def plain(state: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """What another process reads of it."""
    return json.loads(json.dumps(state, sort_keys=True))


@each_mode
@pytest.mark.slow(kept=2)
def test_a_state_after_every_step_gives_exactly_the_rest(shards: list[Path], mode: dict[str, Any]) -> None:
    epochs: list[list[Any]] = []
    states = []
    with mixed(shards, **mode) as batches:
        batches.set_epoch(2)
        for number in range(2):
            states.append((number, 0, plain(batches.state_dict())))
            epochs.append([])
            for name, batch in batches:
                epochs[-1].append((name, batch["index"].tolist()))
                states.append((number, len(epochs[-1]), plain(batches.state_dict())))
        after = plain(batches.state_dict())
    assert (after["epoch"], after["step"]) == (4, 0)
    with mixed(shards, **mode) as resumed:
        for number, step, state in states:
            resumed.load_state_dict(state)
            assert plain(resumed.state_dict()) == state
            resumed.set_epoch(state["epoch"])  # what every training loop does first
            assert records(resumed) == epochs[number][step:]
            if number == 0:
                assert records(resumed) == epochs[1]


@pytest.mark.parametrize("mode", [MODES[2], MODES[4]], ids=["round robin", "weighted"])
def test_another_world_goes_on_with_the_rest(shards: list[Path], mode: dict[str, Any]) -> None:
    with mixed(shards, **mode) as batches:
        whole = iter(batches)
        records(itertools.islice(whole, 2))
        state = plain(batches.state_dict())
        rest = records(whole)
    ranks = []
    for rank in range(4):
        with mixed(shards, batch_size=1, world=World(rank, 4), **mode) as batches:
            batches.load_state_dict(state)
            ranks.append(records(batches))
    assert [(step[0][0], [i for _, ids in step for i in ids]) for step in zip(*ranks, strict=True)] == rest


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 8}, "the state has seed=8, this MixedLoader has seed=7: make it as it was when the state was saved"),
        ({"batch_size": 2}, r"the state has lengths=\[\['a', 6\], \['b', 2\], \['c', 4\]\], this MixedLoader has"),
        ({"order": "bac"}, r"the state has lengths=\[\['b', 1\], \['a', 3\]"),
        ({"inner": {"shuffle": "none"}}, "loader 'a': the state has shuffle='none', this loader has shuffle='full'"),
    ],
)
def test_a_state_of_other_loaders_is_refused(shards: list[Path], other: dict[str, Any], message: str) -> None:
    def make(order: str = "abc", batch_size: int = 4, inner: Any = None, **mode: Any) -> MixedLoader:  # noqa: ANN401
        all_of_them = loaders(shards, batch_size=batch_size, **(inner or {}))
        mode = {"strategy": "weighted", "weights": WEIGHTS, "seed": 7, **mode}
        return MixedLoader({name: all_of_them[name] for name in order}, **mode)

    with make(**other) as theirs:
        next(iter(theirs))  # between two epochs, other lengths are fine
        state = plain(theirs.state_dict())
    with make() as mine:
        before = mine.state_dict()
        with pytest.raises(StateError, match=message):
            mine.load_state_dict(state)
        assert mine.state_dict() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [({"step": 5}, "the state has step=5 in epoch 0: allowed is an integer"), ({"loaders": {}}, "loaders=")],
)
def test_a_state_that_cannot_be_meant_is_refused(shards: list[Path], change: dict[str, Any], message: str) -> None:
    with mixed(shards) as batches:
        whole = records(batches)
        batches.set_epoch(0)
        records(itertools.islice(iter(batches), 2))
        state = batches.state_dict()
        with pytest.raises(StateError, match=message):
            batches.load_state_dict({**state, **change})
        with pytest.raises(
            StateError, match="not a state of a MixedLoader: it lacks lengths, loaders, step, stop, strat"
        ):
            batches.load_state_dict(batches.loaders["a"].state_dict())
        batches.set_epoch(0)
        assert records(batches) == whole  # nothing of the refused ones is left


def test_a_state_of_which_a_later_loader_is_refused_leaves_nothing_behind(shards: list[Path]) -> None:
    with mixed(shards) as batches:
        whole = records(batches)
        batches.set_epoch(0)
        records(itertools.islice(iter(batches), 2))
        state = batches.state_dict()
        state["loaders"]["c"] = {**state["loaders"]["c"], "seed": 1}
        batches.set_epoch(0)
        running = iter(batches)
        first = records(itertools.islice(running, 1))
        before = batches.state_dict()
        with pytest.raises(StateError, match="loader 'c': the state has seed=1"):
            batches.load_state_dict(state)
        assert batches.state_dict() == before
        assert first + records(running) == whole


def test_a_mixed_loader_can_be_pickled_before_it_begins(shards: list[Path]) -> None:
    with mixed(shards, **MODES[3]) as batches:
        batches.set_epoch(3)
        with pickle.loads(pickle.dumps(batches)) as other:
            assert records(other) == records(batches)


# --- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loaders": {}}, "loaders={}: allowed are loaders by name, such as {'photos': GPULoader"),
        ({"strategy": "random"}, "strategy='random': allowed are 'weighted', 'round_robin', 'sequential', 'alternate'"),
        ({"strategy": "sequential", "stop": "cycle"}, "stop='cycle': it is for the strategies"),
        ({"weights": WEIGHTS}, "weights={.*}: they are for the strategy \"weighted\", got 'round_robin'"),
        *(
            ({"strategy": "weighted", "weights": weights}, "allowed is a number above 0 for each of a, b, c")
            for weights in (None, {"a": 1, "b": 1}, {**WEIGHTS, "a": float("nan")})
        ),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(
    shards: list[Path], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        MixedLoader(**{"loaders": loaders(shards), **arguments})


def test_leaving_it_closes_the_loaders(shards: list[Path]) -> None:
    with mixed(shards) as batches:
        next(iter(batches))
    for each in batches.loaders.values():
        with pytest.raises(LoaderError, match="is closed"):
            iter(each)
