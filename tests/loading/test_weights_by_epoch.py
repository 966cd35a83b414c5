"""Weights of sources by epoch."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting import Counted, at
from making import write_samples

from gpuloader import GPULoader, MixedLoader
from gpuloader.errors import ConfigError
from gpuloader.loading.loader import run_of

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
    return list(chain(*(plan.ids(epoch, np.arange(plan.source.size)).tolist() for epoch in range(epochs))))


def saved(batches: GPULoader) -> dict[str, Any]:
    return json.loads(json.dumps(batches.state_dict()))


def counted(schedules: list[dict[float, float]], epochs: int, length: int = sum(COUNTS)) -> list[int]:
    """The samples of the first epochs in the order of the data, one after the other."""
    found, counter = [], Counted(len(schedules))
    for place in range(epochs * length):
        source, before = counter.take([int(at(schedule, Fraction(place, length))) for schedule in schedules])
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


def test_weights_that_begin_at_the_same_sample_are_the_last_of_them(three: list[Path]) -> None:
    with mixed(three, {0: 5, 0.01: 3}, 1, 2) as batches, mixed(three, 3, 1, 2) as constant:
        batches.load_state_dict(saved(batches))
        assert order(batches, 2) == order(constant, 2)


def test_a_loader_takes_each_of_its_states_while_weights_change(three: list[Path]) -> None:
    with mixed(three, 1, {0: 0, 1: 1}, {0: 0, 1.5: 1}, batch_size=2, sampling={"repeats": 2}) as batches:
        plan, state = run_of(batches).plan, saved(batches)
        found = []
        for cursor in (plan.at(epoch, step) for epoch in range(3) for step in range(plan.steps)):
            batches.load_state_dict({**state, **plan.state(cursor)})
            found.append(len(saved(batches)["ratios"]))
    assert found == [0, *[1] * 8, *[2] * 4, *[3] * 11]  # from the second copy of places 15 and 23 on


def test_with_steps_per_epoch_a_fraction_counts_its_steps_and_no_sample_is_lost(three: list[Path]) -> None:
    schedules: list[dict[float, float]] = [{0: 1, 1.5: 0}, {0: 1}, {0: 0, 2: 1}]
    with mixed(three, *schedules, shuffle="none", batch_size=2, sampling={"steps_per_epoch": 4}) as batches:
        got = [sample for _ in range(3) for sample in ids(batches)]
    assert got == counted(schedules, 3, 8)
    assert [sample // 7 for sample in got[8:16]] == [0, 1, 0, 1, 1, 1, 1, 1]  # from step 6 on, 1.5 epochs


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([{1: 1}, 1, 1], r"tar: weight of .*={1: 1}: allowed is {epoch: number}, such as .* 0 among them, and numbers"),
        ([{0: 1, -1: 1}, 1, 1], "allowed is {epoch: number}"),
        ([{0: 1, "2": 1}, 1, 1], "allowed is {epoch: number}"),
        ([{0: 1, 2: -1}, 1, 1], "numbers of at least 0"),
        ([{0: 1, 2: float("nan")}, 1, 1], "numbers of at least 0"),
        ([{0: 1, 2: 10**400}, 1, 1], "numbers of at least 0"),  # more than a float can be
        ([dict.fromkeys(range(1001), 1), 1, 1], "with at most 1000 epochs"),
        ([{0: 0, 3: 0}, 1, 1], r"weight={0: 0, 3: 0} of .*: some of its weights must be above 0; or leave it out"),
        ([{0: 1, 3: 0}, {0: 0, 4: 1}, {0: 1, 2: 0}], "from epoch 3 on all sources have weight 0: give one"),
    ],
)
def test_schedules_that_cannot_be_meant_are_refused(three: list[Path], weights: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        mixed(three, *weights)


def test_ranks_compare_their_schedules(three: list[Path]) -> None:
    with mixed(three, {0: 1, 2: 3}, 1, 1) as one, mixed(three, {0: 1, 3: 3}, 1, 1) as other:
        assert run_of(one).plan.facts != run_of(other).plan.facts


def in_buckets(shards: list[Path], batch_size: int, quantum: int | None = None) -> GPULoader:
    buckets = {"sizes": [(16, 16), (16, 24)], "quantum": quantum}
    return loader(shards, batch_size, sampling={"buckets": buckets}, last_batch="drop")


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
