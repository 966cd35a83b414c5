"""`Open`: the head of a loader's chain, which opens steps; `Split` and `Prepare`: the links that make their parts.

plan -> choose -> read -> admit -> parse -> draw -> judge -> collate    each a function from a batch to a batch
          ^                                           |
          +------------- a replacement <--------------+                 of one row, which takes the same road
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np

from gpuloader.chain.batch import Batch
from gpuloader.chain.link import Causes, Link, Over, Wanted
from gpuloader.errors import BadImageError, LabelError, TooManyBadImagesError
from gpuloader.loading.admitting import Admit, DiscardedError, Judge, Parse
from gpuloader.loading.collating import Collate
from gpuloader.loading.drawing import Choose, Draw
from gpuloader.loading.reading import Read
from gpuloader.loading.run import Run
from gpuloader.pipelines import GOOD_SIZE, good_jpeg, prepare
from gpuloader.plan import Cursor, PlannedBatch, Stream
from gpuloader.recipe import Mixing
from gpuloader.recipe.model import Ints
from gpuloader.shards import Prefetcher

REPLACEMENT_ATTEMPTS = 100


class Open:
    """The head of a chain: opens one step after another, from a cursor on, also across epochs.

    A step of one part has its images. A step of several parts has only those that are not as stored. The result
    depends only on the run, the cursor and its argument `suspects`, which change no batch that can be decoded.

    Args:
        suspects: samples that are tried one by one, because they failed to decode.
        wanted: says whether the work is still wanted.
        read: reads images.
        goes_on: whether further steps follow the one at the cursor, whose shards are downloaded ahead.
    """

    def __init__(self, run: Run, suspects: set[int], wanted: Wanted, read: Read, goes_on: bool = True) -> None:
        self._run, self._suspects, self._wanted, self._read = run, suspects, wanted, read
        self._goes_on = goes_on
        self._choose, self._admit, self._parse = Choose(run), Admit(run, suspects), Parse(run, wanted)
        self._draw, self._judge, self._collate = Draw(run), Judge(run, suspects), Collate(run)
        self._downloads: Prefetcher | None = None
        self._cursor: Cursor | None = None

    def seek(self, place: Cursor) -> None:
        self.close()
        if self._goes_on:
            self._downloads = self._run.shards.ahead(self._run.plan, self._run.world.node)
        self._cursor = self._run.plan.at_step(place)

    def next(self) -> Batch | None:
        """Opens the next step.

        Raises:
            DataError: an image is bad and `on_error` is "raise", a shard changed, or a label or field is missing.
        """
        plan, cursor = self._run.plan, self._cursor
        if cursor is None or not plan.steps_left(cursor):
            return None
        batch = self._open(cursor)
        self._cursor = plan.at_step(plan.after(cursor)) if self._goes_on else None
        return batch

    def again(self, batch: Batch, causes: Causes) -> Batch | None:
        """Opens the step of a batch again, with replacements for the samples that cannot be decoded."""
        refused = set(batch.ids[list(causes)].tolist())
        if refused <= batch.step.tried:  # the images are not the cause; this also ends the repetition
            raise RuntimeError(f"images fail in their batch, but not alone: {', '.join(causes.values())}")
        self._suspects |= refused
        return self._open(batch.step.cursor)

    def open(self, planned: PlannedBatch, chosen: Batch) -> Batch:
        """Reads, validates and draws what `Choose` began; bad samples get replacements.

        Raises:
            BadImageError: a sample is bad, and bad samples are errors.
        """
        try:
            if len(chosen.step.parts) > 1:  # few images are in memory at once
                batch = Batch.joined([self._look_at(chosen.part(rows)) for rows in chosen.step.parts])
            else:
                batch = self._parse(self._admit(self._read(chosen)))
            batch = self._judge(self._draw(batch, chosen))
            self._parse.check_keys(batch)
            return self._replace_bad(planned, batch) if batch.bad else batch
        except DiscardedError:
            # An image was bad because the shard's copy in the cache is damaged. The copy is gone now: read all of the
            # step again, which downloads the shard again. A shard is looked at once, so this ends; an image that is bad
            # in the second copy, too, is bad in the data.
            return self.open(planned, chosen)

    def close(self) -> None:
        self._parse.close()
        if self._downloads is not None:
            self._downloads.close()
            self._downloads = None

    def _open(self, cursor: Cursor) -> Batch:
        started, run = time.perf_counter(), self._run
        planned = run.plan.batch(cursor)
        if self._downloads is not None and len(planned.ids):
            self._downloads.reach(cursor)
        chosen = self._choose(planned)
        batch = self.open(planned, replace(chosen, step=replace(chosen.step, parts=self._choose.parts_of(chosen))))
        if run.bad_images.skip:
            batch = replace(batch, stays=batch.valid)
        batch = replace(
            batch,
            labels=None if run.labels is None else self._labels_of(batch.ids, np.flatnonzero(batch.stays)),
            step=replace(batch.step, mixing=self._draw_mixing(planned)),
        )
        if run.fields and not self._collate.is_behind_own_code:
            batch = self._collate(batch)
        seconds = time.perf_counter() - started - batch.reading_seconds
        return replace(batch, step=replace(batch.step, gating_seconds=seconds))

    def _look_at(self, part: Batch) -> Batch:
        """Admits the images whose sizes are not known, and keeps those that are changed or suspects."""
        _, unknown = self._admit.find_unknown(part)
        read = self._read(part, unknown)
        batch = self._parse(self._admit(read))
        images = [
            np.array(image) if image is not None and (image is not stored or sample in self._suspects) else None
            for image, stored, sample in zip(batch.images[0], read.images[0], part.ids.tolist())
        ]
        return replace(batch, images=[images], memory=None)

    def _replace_bad(self, planned: PlannedBatch, batch: Batch) -> Batch:
        """Returns a batch with replacements in its bad rows; their causes stay."""
        rows, first = list[Batch](), 0
        for row in [row for row, cause in enumerate(batch.causes) if cause is not None]:
            rows += [batch.part(slice(first, row))] if first < row else []
            rows.append(self._replacement_of(planned.take(slice(row, row + 1)), batch.part(slice(row, row + 1))))
            first = row + 1
        rows += [batch.part(slice(first, len(batch)))] if first < len(batch) else []
        return replace(
            Batch.joined(rows),
            step=batch.step,
            rows=batch.rows,
            causes=batch.causes,
            memory=batch.memory,
            reading_seconds=batch.reading_seconds,
        )

    def _replacement_of(self, planned: PlannedBatch, bad: Batch) -> Batch:
        """Returns the first good one of the plan's replacements; a row to be dropped gets an image that is good."""
        run, sample, [cause] = self._run, int(bad.ids[0]), bad.causes
        assert cause is not None
        if not (run.bad_images.replace or run.bad_images.skip or run.expects(sample, cause)):
            raise BadImageError(*run.shards.locate(sample, int(bad.sides[0])), cause)
        if run.bad_images.skip:
            image = np.zeros((*GOOD_SIZE, 3), np.uint8) if run.decoded else good_jpeg().copy()
            dropped = replace(Batch.of(planned, bad.params), rows=bad.rows, valid=np.zeros(1, np.bool_))
            return self._draw(replace(dropped, images=[[image]], sizes=np.array([GOOD_SIZE])), bad)
        uniform = planned.draws.uniform(Stream.REPLACEMENT, REPLACEMENT_ATTEMPTS)[0]
        for candidate in run.plan.replacements(planned.cursor, sample, uniform).tolist():
            instead = replace(planned, ids=np.array([candidate]))
            chosen = self._choose(instead)
            read = self._read(chosen)
            own = [np.array(image) for image in read.images[0]]  # in memory of its own
            found = self._judge(self._draw(self._parse(self._admit(replace(read, images=[own], memory=None))), chosen))
            if found.causes[0] is None:
                return replace(found, rows=bad.rows, planned=bad.planned, valid=np.array([False]), step=bad.step)
        raise TooManyBadImagesError(
            f"{run.shards.locate(sample).key!r} is bad ({cause}), and so are the {REPLACEMENT_ATTEMPTS} samples drawn "
            f"to replace it: repair the shards, or leave fewer samples out"
        )

    def _draw_mixing(self, planned: PlannedBatch) -> Mixing | None:
        recipe = self._run.recipe.at(planned.cursor.epoch, planned.shape)
        if (mix := recipe.mix) is None:
            return None
        draw = planned.draws.of(Stream.MIX)
        if mix.per == "batch":
            draw = self._run.plan.draws_of_step(planned.cursor, len(planned.ids)).of(Stream.MIX, occurrence=1)
        [shape] = recipe.shapes
        assert shape is not None  # images that are mixed have one size
        return mix.draw(draw, *shape)

    def _labels_of(self, ids: Ints, rows: Ints) -> Ints:
        """Returns the labels of samples, 0 outside of `rows`; raises LabelError if the recipe cannot mix them."""
        assert self._run.labels is not None
        labels, mix = np.zeros(len(ids), np.int64), self._run.recipe.mix
        labels[rows] = self._run.labels.of(ids[rows], self._wanted)
        if mix is not None and not (labels.min(initial=0) >= 0 and labels.max(initial=0) < mix.num_classes):
            row = int(np.argmax((labels < 0) | (labels >= mix.num_classes)))
            where = self._run.shards.locate(int(ids[row]))
            raise LabelError(
                f"{where.key!r} in {where.shard} has the label {labels[row]}, but the recipe's mix.num_classes is "
                f"{mix.num_classes}: set it to the number of classes, such as "
                f'preset={{"NAME": {{"mix": {{"num_classes": ...}}}}}}'
            )
        return labels


class Split(Over):
    """A link that hands on the parts of each step, with their images."""

    def __init__(self, under: Link, read: Read) -> None:
        super().__init__(under)
        self._read = read
        self._left: deque[slice] = deque()
        self._whole: Batch | None = None

    def seek(self, place: Any) -> None:  # noqa: ANN401
        self._left.clear()
        self._under.seek(place)

    def next(self) -> Batch | None:
        if not self._left:
            self._whole = self._under.next()
            if self._whole is None:
                return None
            self._left.extend(self._whole.step.parts or [self._whole.rows])
        assert self._whole is not None
        part = self._part(self._whole, self._left.popleft())
        self._whole = replace(self._whole, reading_seconds=0.0) if self._left else None  # the first part has them
        return part

    def again(self, batch: Batch, causes: Causes) -> Batch | None:
        whole = self._under.again(batch, causes)
        return None if whole is None else self._part(whole, batch.rows)

    def close(self) -> None:
        self._left.clear()
        self._whole = None
        self._under.close()

    def _part(self, whole: Batch, rows: slice) -> Batch:
        return self._read(whole.part(rows)) if len(whole) else whole


class Prepare(Over):
    """A link that prepares the files of each part for the graph, see `prepare`."""

    def __init__(self, under: Link, run: Run) -> None:
        super().__init__(under)
        self._run = run

    def next(self) -> Batch | None:
        return self._prepared(self._under.next())

    def again(self, batch: Batch, causes: Causes) -> Batch | None:
        return self._prepared(self._under.again(batch, causes))

    def _prepared(self, part: Batch | None) -> Batch | None:
        if part is None or self._run.decoded or not len(part):
            return part
        made = prepare(part.images[0], part.params, self._run.oversampling, self._run.num_threads)
        images, params, factors = made
        memory = part.memory if any(image.ndim == 1 for image in images) else None
        return replace(part, images=[images], params=params, factors=factors, memory=memory)
