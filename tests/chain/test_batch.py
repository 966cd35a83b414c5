"""Batch: taking rows, cutting into parts and joining them, for each of its columns."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from drawn_numbers import all_numbers_of
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.chain.batch import Batch, Pool, Step
from gpuloader.plan import Cursor, Draws, PlannedBatch
from gpuloader.recipe import AugmentParams

ROWS = 6
OF_THE_WHOLE = {"step", "rows", "memory", "reading_seconds", "own_code_seconds"}
"""The attributes that are no columns: every other one has an entry for each row, or for each row of each view."""
CUTS = st.sets(st.integers(1, ROWS - 1)).map(sorted)


def full_batch() -> Batch:
    """A batch with something in each attribute, which differs from row to row."""
    at = np.arange(ROWS)
    draws = Draws(3, 1, at + 10, at * 7)
    recipe = Compose([T.RandomResizedCrop(8), T.ColorJitter(0.4), T.RandomErasing(0.5)])
    params, delivered = (recipe.draw(replace(draws, seed=seed), np.stack([at + 40, at + 60], 1)) for seed in (3, 4))
    planned = PlannedBatch(Cursor(1, 5), at + 10, np.where(at % 2, -1, at), draws)
    return replace(
        Batch.of(planned, params),
        planned=at + 30,
        stays=at % 3 == 0,
        sides=at + 1,
        factors=2 ** np.arange(ROWS) % 3 + 1,
        sizes=np.stack([at, at + 2], 1),
        delivered=delivered,
        values=[{"txt": f"{row}"} for row in at],
        causes=[None if row % 2 else f"cause {row}" for row in at],
        labels=at + 5,
        images=[[np.full(4, row, np.uint8) for row in at], [np.full((1, 1, 3), row, np.uint8) for row in at]],
        views=[
            torch.arange(ROWS)[:, None].repeat(1, 3),
            [torch.full((row + 1,), row) for row in range(ROWS)],
            np.eye(ROWS),
        ],
        targets=[[{"boxes": row} for row in at], [{"boxes": -row} for row in at]],
        memory=Pool().lease(),
        reading_seconds=2.0,
        own_code_seconds=3.0,
    )


def rows_of(column: Any) -> list[Any]:  # noqa: ANN401
    """The entries of a column, as what Python compares."""
    if isinstance(column, Draws):
        return rows_of(column.uniform(7, 2))
    if isinstance(column, AugmentParams):
        return list(zip(*map(rows_of, all_numbers_of(column)), strict=True))
    return [each.tolist() if isinstance(each, (np.ndarray, np.generic, torch.Tensor)) else each for each in column]


def columns(batch: Batch) -> dict[str, list[Any]]:
    """The rows of each column, by its name; a column with views has several."""
    found: dict[str, list[Any]] = {}
    for name in {each.name for each in fields(Batch)} - OF_THE_WHOLE:
        column, per_view = getattr(batch, name), name in ("images", "views", "targets")
        found |= {f"{name} {view}": rows_of(of_view) for view, of_view in enumerate(column if per_view else [column])}
    return found


def test_every_attribute_is_a_column_or_belongs_to_the_whole_step() -> None:
    """A new column must be marked as one; a new attribute without a row in `full_batch` fails here, too."""
    whole = columns(full_batch())
    assert len(whole) == len(fields(Batch)) - len(OF_THE_WHOLE) + 4  # three columns have two or three views
    assert {name: len(rows) for name, rows in whole.items()} == dict.fromkeys(whole, ROWS)
    assert all(len(set(map(repr, rows))) > 1 for rows in whole.values())


@given(st.lists(st.integers(0, ROWS - 1), max_size=9))
def test_take_gives_these_rows_of_each_column(rows: list[int]) -> None:
    batch = full_batch()
    taken = batch.take(np.array(rows, np.int64))
    assert columns(taken) == {name: [column[row] for row in rows] for name, column in columns(batch).items()}
    assert len(taken) == len(rows)
    assert all(getattr(taken, name) is getattr(batch, name) for name in OF_THE_WHOLE)


@given(CUTS)
def test_parts_joined_are_the_batch(cuts: list[int]) -> None:
    batch = full_batch()
    slices = [slice(*ends) for ends in zip([0, *cuts], [*cuts, ROWS], strict=True)]
    parts = [batch.part(rows) for rows in slices]
    assert [part.rows for part in parts] == slices
    for part, rows in zip(parts, slices, strict=True):
        assert columns(part) == {name: column[rows] for name, column in columns(batch).items()}
        assert part.is_whole is (len(parts) == 1)
    joined = Batch.joined(parts)
    assert columns(joined) == columns(batch)
    assert joined.is_whole
    assert (joined.reading_seconds, joined.own_code_seconds) == (2.0 * len(parts), 3.0 * len(parts))
    assert (joined is batch) is (len(parts) == 1)  # one part is not copied, and keeps the memory of its files
    assert joined.memory is (batch.memory if len(parts) == 1 else None)


def test_neighbours_joined_are_a_part() -> None:
    parts = [full_batch().part(slice(first, first + 2)) for first in (2, 4)]
    assert Batch.joined(parts).rows == slice(2, 6)


@pytest.mark.parametrize("newest", [0, 1, 2])
def test_joined_parts_have_the_step_that_was_opened_last(newest: int) -> None:
    """It was opened again after an image failed, so more suspects were tried: its fields have the replacements."""
    steps = [Step(count=ROWS, tried=frozenset({9}), fields={"txt": "old"})] * 3
    steps[newest] = Step(count=ROWS, tried=frozenset({9, 4}), fields={"txt": "new"})
    parts = [replace(full_batch().part(slice(2 * at, 2 * at + 2)), step=step) for at, step in enumerate(steps)]
    assert Batch.joined(parts).step is steps[newest]


def test_labels_may_be_missing() -> None:
    batch = replace(full_batch(), labels=None)
    halves = [batch.part(slice(0, 3)), batch.part(slice(3, ROWS))]
    assert [part.labels for part in (*halves, Batch.joined(halves))] == [None] * 3


def test_bad_samples_are_those_of_the_plan() -> None:
    assert full_batch().bad == {30: "cause 0", 32: "cause 2", 34: "cause 4"}


def test_memory_is_used_again_when_no_batch_holds_it() -> None:
    pool = Pool()
    batch = replace(full_batch(), memory=pool.lease())
    part, arena = batch.part(slice(0, 2)), batch.memory.arena  # type: ignore[union-attr]
    del batch
    assert pool.lease().arena is not arena
    del part
    assert pool.lease().arena is arena
