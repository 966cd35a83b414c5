"""What a loader promises, each law once. The rows are its features, alone and in pairs: see support/features.py.

A new feature adds a row there. Of the pairs a fixed sample runs; all with `--sample all`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from features import (
    BATCH,
    COUNT,
    CUT,
    EPOCHS,
    REFUSED,
    SEED,
    UNDECODABLE,
    Row,
    Setup,
    captions_of,
    form_of,
    hash_of,
    in_sources,
    nothing,
    parts_of,
    rows_of,
    rows_where,
)
from lifecycles import left_behind, threads_and_files

from gpuloader import BadImages, Compose, Decoder, GPULoader, Stage
from gpuloader import transforms as T
from gpuloader.errors import BadImageError, ConfigError, PresetError
from gpuloader.loading.digest import digest

BAD = {CUT, UNDECODABLE}
REPLACE, SKIP = BadImages(replace=True, max_share=1), BadImages(skip=True, max_share=1)
RESUMED = [(0.1, 0), (0.7, -1)]
"""The places in a run, and the worlds, at which it goes on."""


class Run:
    """The data of a row, and what loaders deliver of it."""

    def __init__(self, row: tuple[str, ...], folder: Path, opened: ExitStack) -> None:
        self.setup, self.folder, self.opened = Setup.of(row), folder, opened

    @cache  # noqa: B019 - a run lives as long as its tests
    def data(self, bad: bool) -> tuple[Any, dict[str, Any]]:
        folder = self.folder / ("bad" if bad else "good")
        folder.mkdir()
        return self.opened.enter_context(self.setup.data(self.setup.samples(bad), folder))

    def loader(self, *, bad: bool = False, **options: Any) -> GPULoader:  # noqa: ANN401
        tar, given = self.data(bad)
        return self.setup.loader(tar, **given, **options)

    def steps(self, *where: Any, **options: Any) -> list[list[Row]]:  # noqa: ANN401
        """The rows of each step of all ranks, in the first epochs or in what a state leaves of them."""
        return self.steps_and_digest(*where, **options)[0]

    def steps_and_digest(
        self,
        ranks: int = 1,
        batch_size: int = BATCH,
        state: Any = None,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> tuple[list[list[Row]], int]:
        """The same, and the sum of the ranks' digests."""
        of_ranks, added = [], 0
        for rank in range(ranks):
            with self.loader(ranks=ranks, batch_size=batch_size, rank=rank, **options) as batches:
                if state is not None:
                    batches.load_state_dict(json.loads(json.dumps(state)))
                epochs, views = range(batches.state_dict()["epoch"], EPOCHS), len(batches.preset.each_view)
                of_ranks.append([rows_of(batch, views) for _ in epochs for batch in batches])
                added += batches.stats().digest
        return [list(itertools.chain(*step)) for step in zip(*of_ranks, strict=True)], added

    @cache  # noqa: B019
    def resumed(self, place: float, world: int) -> tuple[int, list[list[Row]], int]:
        """The step at which the run of `begun` goes on on other ranks, its steps from there on, and their digest."""
        steps, states = self.begun()
        at = int(place * len(steps))
        return at, *self.steps_and_digest(*self.setup.worlds[world], states[at])

    def begun(self, on_error: BadImages | None = None) -> tuple[list[list[Row]], list[dict[str, Any]]]:
        """The steps of one rank, of bad data if it is said what becomes of them; and the state before each."""
        return self.begun_with_digests(on_error)[:2]

    @cache  # noqa: B019
    def begun_with_digests(
        self, on_error: BadImages | None = None
    ) -> tuple[list[list[Row]], list[dict[str, Any]], list[int]]:
        """The same, and the digest of each step."""
        options = {} if on_error is None else {"bad": True, "on_error": on_error}
        with self.loader(**options) as batches:
            views, steps, states, digests = len(batches.preset.each_view), [], [batches.state_dict()], []
            for batch in itertools.chain.from_iterable(itertools.repeat(batches, EPOCHS)):
                steps.append(rows_of(batch, views))
                states.append(batches.state_dict())
                digests.append(batches.stats().last.digest)  # type: ignore[union-attr]
            assert on_error is None or set(batches.stats().bad) == BAD
        return steps, states, digests

    def same(self, steps: list[list[Row]], others: list[list[Row]], valid: bool = True) -> bool:
        """Whether the samples are the same, in their order if that does not depend on the ranks."""
        ours, theirs = ([row for step in each for row in step if row[1] or not valid] for each in (steps, others))
        assert len(ours) > 0
        return ours == theirs if self.setup.ordered else sorted(ours, key=str) == sorted(theirs, key=str)


each_row, one_source, alone, without_own_code, spoilt, unmixed = map(
    rows_where,
    (
        lambda _: True,
        lambda setup: setup.data is not in_sources and setup.count == COUNT and not (setup.mixes and setup.in_steps),
        lambda setup: setup.alone,
        lambda setup: not setup.own and setup.device_id is None,
        lambda setup: setup.spoils,
        lambda setup: setup.spoils and not setup.mixes,
    ),
)


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with ExitStack() as opened:
        made = Run(request.param, tmp_path_factory.mktemp("row"), opened)
        opened.enter_context(made.setup.on_device())
        opened.enter_context(parts_of(made.setup.part_rows))
        yield made


# --- which samples


@each_row
def test_each_sample_comes_once_with_what_belongs_to_it(run: Run) -> None:
    found = []
    for rank in range(2):
        with run.loader(ranks=2, batch_size=2, rank=rank) as batches:
            for batch in batches:
                for row, number in enumerate(batch["index"].tolist()):
                    found += [number] if batch["valid"][row] else []
                    assert Path(batch["key"][row]).name == f"{number:03d}"
                    label = batch["label"][row]
                    assert label == number if label.ndim == 0 else label[number] > 0
                    assert "caption" not in batch or batch["caption"][row] in captions_of(number)
    assert len(found) == run.setup.count or (found and not run.setup.count)
    if run.setup.once:
        assert sorted(found) == list(range(COUNT))


@each_row
@pytest.mark.parametrize(("place", "world"), RESUMED)
def test_a_state_after_any_step_goes_on_bit_for_bit_on_other_ranks(run: Run, place: float, world: int) -> None:
    at, rest, _ = run.resumed(place, world)
    assert run.same(rest, run.begun()[0][at:])


@each_row
def test_the_digests_of_ranks_and_of_the_parts_of_a_run_add_up_to_what_was_delivered(run: Run) -> None:
    good, _, digests = run.begun_with_digests()
    for place, world in RESUMED:
        at, _, of_rest = run.resumed(place, world)
        assert (sum(digests[at:]) - of_rest) % 2**64 == 0
    if not run.setup.ordered:
        return
    assert digests == expected_digests(good, good)
    if run.setup.spoils:
        replaced, _, digests = run.begun_with_digests(REPLACE)
        assert digests == expected_digests(replaced, good)
    if run.setup.spoils and not run.setup.mixes:
        left = [[(number, valid and number not in BAD, sizes) for number, valid, sizes in step] for step in good]
        assert run.begun_with_digests(SKIP)[2] == expected_digests(good, left)


def expected_digests(steps: list[list[Row]], counted: list[list[Row]]) -> list[int]:
    """The digest of each step of one rank, whose rows lie in the order of their places; of rows that are to count."""
    found = []
    for at, step in enumerate(steps):
        epoch, of_epoch = divmod(at, len(steps) // EPOCHS)
        rows = [row for row, (_, counts, _) in enumerate(counted[at]) if counts]
        places = np.array([of_epoch * BATCH + row for row in rows], np.int64)
        ids = np.array([step[row][0] for row in rows], np.int64)
        sizes = [[step[row][2][f"{side} 0"] for side in ("height", "width")] for row in rows]
        found.append(digest(epoch, places, ids, np.array(sizes, np.int64).reshape(-1, 2)))
    return found


@each_row
def test_any_step_is_made_again_as_the_loop_got_it(run: Run) -> None:
    steps, states = run.begun()
    before = threads_and_files()
    with run.loader() as batches:
        half, views, epochs = len(batches), len(batches.preset.each_view), (0, 1)
        places = [(epoch, step) for epoch in epochs for step in range(half)]
        assert [rows_of(batches.at(*place), views) for place in places] == steps
        assert [rows_of(batches.at(state), views) for state in states[:-1]] == steps
        explained = batches.explain(states[0])
        assert [(sample.id, sample.valid) for sample in explained] == [row[:2] for row in steps[0]]
        assert {len(sample.views) for sample in explained} == {views}
        batches.load_state_dict(states[half // 2])
        rest = iter(batches)
        for at in range(half // 2, half):  # nothing is moved
            assert rows_of(batches.at(*places[-1 - at]), views) == steps[-1 - at]
            assert rows_of(next(rest), views) == steps[at]
            assert batches.state_dict() == states[at + 1]
        batches.seek(*places[-2])
        assert [rows_of(batch, views) for batch in batches] == steps[-2:]
    assert not left_behind(before)


@each_row
def test_any_step_is_made_again_on_other_ranks_and_after_a_state_of_others(run: Run) -> None:
    _, states = run.begun()
    ranks, batch_size = run.setup.worlds[0]
    for rank in range(ranks):
        with run.loader(ranks=ranks, batch_size=batch_size, rank=rank) as batches:
            views, count = len(batches.preset.each_view), len(batches)
            expected = [rows_of(batch, views) for _ in range(EPOCHS) for batch in batches]
            batches.load_state_dict(states[1])
            assert [rows_of(batches.at(0, step), views) for step in range(count)] == expected[:count]
            first = rows_of(batches.at(batches.state_dict()), views)
            assert first == rows_of(next(iter(batches)), views)


@one_source
def test_ranks_may_have_no_sample_left(run: Run) -> None:
    forms, rows = set(), []
    sampling = {**run.setup.options.get("sampling", {}), "subset": [0, 8]}
    for rank in range(4):
        with run.loader(ranks=4, batch_size=2 if run.setup.mixes else 1, rank=rank, sampling=sampling) as batches:
            for batch in batches:
                rows.append(int(batch["valid"].sum()))
                forms.add(form_of(batch, len(batches.preset.each_view), run.setup.sized))
    assert 0 in rows
    assert sum(rows) == 2
    assert len(forms) == 1


# --- their pixels


@each_row
def test_pixels_depend_on_no_batch_rank_part_thread_or_process(run: Run) -> None:
    steps, _ = run.begun()
    decoders = Decoder(1, prefetch=1, processes=2), Decoder(3, prefetch=4, processes=1, region=False)
    for world, rows, decoder in zip((run.setup.worlds[0], run.setup.worlds[-1]), (2, COUNT), decoders, strict=True):
        with parts_of(rows):
            assert run.same(run.steps(*world, decoder=decoder), steps)


@alone
def test_compose_and_stage_make_the_same(run: Run) -> None:
    recipe, files = Compose.load(run.setup.preset), [run.setup.stored(number) for number in range(COUNT)]
    stage = Stage(recipe, run.setup.device_id, seed=SEED, decoder=Decoder(2, processes=1))
    steps, _ = run.begun()
    for epoch, half in enumerate((steps[: len(steps) // 2], steps[len(steps) // 2 :])):
        composed = recipe(files, seed=SEED, epoch=epoch, device_id=run.setup.device_id)
        [(staged, _)] = stage([(files, list(range(COUNT)))], epoch=epoch)
        for made in (composed, staged):
            views = made if run.setup.views else [made]
            for number, _, hashes in itertools.chain(*half):
                of_views = {f"image {view}": hash_of(images[number]) for view, images in enumerate(views)}
                assert of_views.items() <= hashes.items()


@without_own_code
def test_own_code_that_changes_nothing_changes_no_pixel(run: Run) -> None:
    tar, given = run.data(False)
    with replace(run.setup, own=[T.Apply(nothing)]).loader(tar, **given) as batches:
        steps = [rows_of(batch, len(batches.preset.each_view)) for _ in range(EPOCHS) for batch in batches]
    assert steps == run.begun()[0]


# --- bad images


@spoilt
def test_a_bad_image_is_named(run: Run) -> None:
    steps, _ = run.begun()
    first = next(at for at, step in enumerate(steps) if BAD & {number for number, *_ in step})
    with run.loader(bad=True) as batches:
        epochs = itertools.chain.from_iterable(itertools.repeat(batches))
        for _ in range(first):
            next(epochs)
        with pytest.raises(BadImageError) as caught:
            next(epochs)
        with pytest.raises(BadImageError) as again:
            batches.at(batches.state_dict())
        assert str(again.value) == str(caught.value)
    number = int(Path(caught.value.key).name)
    assert number in BAD & {number for number, *_ in steps[first]}


@spoilt
def test_a_bad_image_is_replaced_by_the_same_on_any_ranks(run: Run) -> None:
    steps, states = run.begun(REPLACE)
    for row, as_good in zip(itertools.chain(*steps), itertools.chain(*run.begun()[0]), strict=True):
        if as_good[0] in BAD:
            assert not row[1]
            assert row[0] not in BAD
        elif not run.setup.mixes:
            assert row == as_good
    again = run.steps(*run.setup.worlds[0], states[3], bad=True, on_error=REPLACE)
    assert run.same(again, steps[3:], valid=False)
    with run.loader(bad=True, on_error=REPLACE) as resumed:
        views = len(resumed.preset.each_view)
        assert [rows_of(resumed.at(state), views) for state in states[:-1]] == steps
        explained = [*itertools.chain.from_iterable(map(resumed.explain, states[:-1]))]
        replaced = [sample for sample in explained if sample.planned_key is not None]
        assert {int(Path(str(sample.planned_key)).name) for sample in replaced} == BAD
        assert all(sample.cause and not sample.valid for sample in replaced)
        assert not resumed.stats().bad
        resumed.load_state_dict(states[-1])
        assert set(resumed.stats().bad) == BAD


@unmixed
def test_a_bad_image_is_left_out(run: Run) -> None:
    expected = [[row for row in step if row[0] not in BAD] for step in run.begun()[0]]
    steps, states = run.begun(SKIP)
    assert run.same(steps, expected)
    assert run.same(run.steps(*run.setup.worlds[0], states[3], bad=True, on_error=SKIP), expected[3:])


# --- samples that are left out


@each_row
def test_samples_that_are_left_out_from_a_state_on_change_no_other_row(run: Run) -> None:
    steps, states = run.begun()
    at = int(0.7 * len(steps))
    left_out = {steps[at][1][0], steps[at + 1][0][0]}
    sampling = {**run.setup.options.get("sampling", {}), "leave_out": sorted(left_out)}
    found, later = [], []
    with run.loader(sampling=sampling) as batches:
        batches.load_state_dict(states[at])
        views = len(batches.preset.each_view)
        for batch in batches:
            found.append(rows_of(batch, views))
            later.append(batches.state_dict())
        epoch, half = divmod(at, len(batches))
        assert [rows_of(batches.at(epoch, step), views) for step in range(len(batches))] == steps[
            at - half : at
        ] + found
    for step, before in zip(found, steps[at:], strict=True):
        for number, (row, as_before) in enumerate(zip(step, before, strict=True)):
            if as_before[0] in left_out:
                assert not row[1]
                assert row[0] not in left_out
            elif not run.setup.mixes or before[number ^ 1][0] not in left_out:
                assert row == as_before
    assert run.same(run.steps(2, 2, later[0]), found[1:], valid=False)  # the state alone leaves them out
    if not run.setup.mixes:
        short = run.steps(state=states[at], on_error="skip", sampling=sampling)
        assert run.same(short, [[row for row in step if row[0] not in left_out] for step in steps[at:]])


# --- the end


@each_row
def test_closing_in_mid_epoch_leaves_nothing_behind(run: Run) -> None:
    run.begun()  # libraries keep threads and files of their own from their first use on
    before = threads_and_files()
    with run.loader(decoder=Decoder(2, processes=2)) as batches:
        next(iter(batches))
    assert not left_behind(before)
    assert not active_children()


@pytest.mark.parametrize("row", REFUSED, ids=" x ".join)
def test_what_cannot_be_combined_is_refused(row: tuple[str, str], tmp_path: Path) -> None:
    setup = Setup.of(row)
    with setup.data(setup.samples(), tmp_path) as (tar, options), pytest.raises((ConfigError, PresetError)):
        setup.loader(tar, **options)
