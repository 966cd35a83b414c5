"""`Reader`: makes encoded batches from the plan and the shards, and the parts in which they are decoded.

To open a step, it gets the sample ids from the plan, chooses mipmaps if the recipe uses them, validates every
image, parses the fields, and draws the random parameters. A bad sample is replaced, dropped, or raises an error, by
`on_error`. Then it adds labels. If the step has one part, its images stay in memory; otherwise the images are read
part by part.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat, starmap
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gpuloader.base.read_ahead import Call, EndOfItems
from gpuloader.base.text import counted
from gpuloader.collators import wrong_rows
from gpuloader.errors import BadImageError, DataError, LabelError, TooManyBadImagesError
from gpuloader.images.arrays import admit_array
from gpuloader.images.gate import admit, decoder_file
from gpuloader.images.limits import RefusalError
from gpuloader.images.mipmaps import mipmap_sizes, of_mipmap
from gpuloader.images.orientation import FIRST_TRANSPOSED
from gpuloader.loading.blending import paste_neighbours
from gpuloader.loading.decoding_loop import find_bad_rows
from gpuloader.loading.fields import MOST_MASK_PIXELS, Component, Ragged, cause_of, check_keys, parse_fields
from gpuloader.loading.mipmaps import choose_mipmaps_by_index, draw_by_index, draw_pictures
from gpuloader.loading.own_code_loop import OwnCodeContext
from gpuloader.loading.own_targets import OwnTargets
from gpuloader.loading.run import Run
from gpuloader.pipelines import GOOD_SIZE, cut_to_region, good_jpeg
from gpuloader.plan import Cursor, PlannedBatch, Stream
from gpuloader.recipe import AugmentParams, Mixing, Shape
from gpuloader.recipe.model import Ints
from gpuloader.shards import Arena, EncodedImage, Prefetcher, WantedCallback

REPLACEMENT_ATTEMPTS = 100
_NO_BOXES = np.zeros((0, 4))
STAGED_BYTES = 64 << 10  # CUDA itself stages smaller copies from pageable memory
_FIELD_NUMBERS = 4  # random numbers for the fields of a sample: a block of the stream
_UNKNOWN = (0, 0)


class Row(NamedTuple):
    """A sample of a batch, during validation.

    Attributes:
        sample: the id of the sample.
        image: the image as stored, and then for the graph; None if it is read with its part.
        size: (height, width) of the picture; (0, 0) before validation.
        valid: False for padding, and for a replacement of a bad sample.
        side: the shorter side of the mipmap that is the image; 0 for the picture itself.
        fields: the values of the fields, by name.
        cause: why the sample is bad.
    """

    sample: int
    image: EncodedImage | None
    size: Shape
    valid: bool
    side: int = 0
    fields: Mapping[str, Any] = {}
    cause: str | None = None


@dataclass(frozen=True, eq=False)
class EncodedBatch:
    """The batch of one rank, without its images.

    Attributes:
        cursor: the position of this step.
        ids: (b,) int64, the delivered samples: the plan's samples, or their replacements.
        valid: (b,) bool, False for padding and bad samples, which are replaced or dropped.
        delivered: the random parameters of the delivered images.
        mixing: the parameters for mixing neighbours, or None.
        labels: (b,) int64, or None.
        fields: the entries of the fields by name, from the b values, or from the valid ones if others are dropped;
            without values, only targets. Large targets for a GPU are tensors in pinned memory.
        bad: the planned samples that were found bad in this step, sample id -> cause.
        finish: takes the batch and its parts after own code, and returns the batch with the results of own code; None
            without such results.
        opened: the number of batches that the reader had opened before; of two batches for a step, the later is valid.
        reading_seconds: the time for reading the images' bytes.
        gating_seconds: the time for the plan, validation, random parameters, labels and fields.
    """

    cursor: Cursor
    ids: NDArray[np.int64]
    valid: NDArray[np.bool_]
    delivered: AugmentParams
    mixing: Mixing | None
    labels: NDArray[np.int64] | None
    fields: Mapping[str, Any]
    bad: Mapping[int, str]
    finish: Callable[[EncodedBatch, Sequence[EncodedPart]], EncodedBatch] | None
    opened: int
    reading_seconds: float
    gating_seconds: float


@dataclass(frozen=True, eq=False)
class EncodedPart:
    """Rows of a batch before decoding.

    Attributes:
        batch: the whole batch.
        number: the number of the part.
        rows: the rows of the batch.
        images: encoded images, views into the arena; or arrays (height, width, 3) if the shards contain arrays.
        params: the random parameters; with own code, only of the recipe before it.
        context: the data for the stages after own code; None without own code.
        arena: the memory of `images`; it can be reused when the graph has finished the part.
        reading_seconds: the time for reading the images' bytes.
        own: the random parameters after own code, and the targets that it returned, for each view and row; None before.
    """

    batch: EncodedBatch
    number: int
    rows: slice
    images: Sequence[EncodedImage]
    params: AugmentParams
    context: OwnCodeContext | None
    arena: Arena
    reading_seconds: float
    own: tuple[AugmentParams, Sequence[Sequence[Mapping[str, Any]]]] | None = None

    @property
    def is_last(self) -> bool:
        """Whether this is the last part of its batch."""
        return self.rows.stop == len(self.batch.ids)


@dataclass(frozen=True, eq=False)
class OpenStep:
    """A step after validation, whose parts can be read.

    Attributes:
        planned: the step of the plan.
        rows: the delivered samples.
        params: the random parameters for decoding.
        batch: the batch of these samples.
        parts: the rows of each part.
        arena: the memory of the first part; it has the images already if there is no other part.
    """

    planned: PlannedBatch
    rows: Sequence[Row]
    params: AugmentParams
    batch: EncodedBatch
    parts: Sequence[slice]
    arena: Arena


class Reader:
    """A reader that opens any step and reads its parts. The result depends only on the arguments.

    A sample is bad in an epoch if its image fails validation, if its random window cannot be decoded, or if a field
    cannot be parsed.

    Args:
        suspects: samples that are tried one by one, because they failed to decode. Suspects do not change any batch, so
            they may be added at any time; a step tries the suspects of the moment when it is opened.
        ahead: downloads shards from stores before they are needed.

    Attributes:
        arenas: memory of finished parts, for reuse.
    """

    def __init__(self, run: Run, suspects: Collection[int] = (), ahead: Prefetcher | None = None) -> None:
        self._run = run
        self._suspects = suspects
        self._ahead = ahead
        self._unseen = run.unseen
        self._parsed_in_threads = {name: field for name, field in run.fields.items() if field.in_threads}
        self._parsed_in_order = {name: field for name, field in run.fields.items() if not field.in_threads}
        links = run.recipe.links
        says_sizes = run.recipe.batch != "dense" or run.plan.bucketed is not None
        has_targets = any(field.is_target for field in run.fields.values())
        self._draws_whole = links is not None and links.keeps_sizes and (says_sizes or has_targets)
        takes_targets = links is not None and links.takes_targets
        self._own_targets: Mapping[str, Any] = {
            name: field for name, field in run.fields.items() if field.is_target and takes_targets
        }
        self._finishes = links is not None and bool(self._own_targets or not links.keeps_sizes)
        # What a decoder refused of a sample's image or mipmap, None for the whole file, and why: trying it may build
        # pipelines on a GPU.
        self._undecodable: dict[tuple[int, int], tuple[tuple[int, ...] | None, str]] = {}
        self._params_by_index: tuple[PlannedBatch, Ints, AugmentParams] | None = None
        self._opened = 0
        self._of_odd_rows = Arena()
        self.arenas: deque[Arena] = deque()

    def calls(self, start: Cursor) -> Iterator[Call[EncodedPart]]:
        """Yields a function that reads each part of each step from a cursor on, also across epochs.

        It skips steps in which this rank has no sample.
        """
        cursors, left = self._cursors(start), deque[Call[EncodedPart]]()

        def read_next(wanted: WantedCallback) -> EncodedPart:
            if not left:
                if (cursor := next(cursors, None)) is None:
                    raise EndOfItems
                step = self.open(cursor, wanted)
                left.extend(partial(self.read, step, number) for number in range(len(step.parts)))
            return left.popleft()(wanted)

        return repeat(read_next)

    def _cursors(self, start: Cursor) -> Iterator[Cursor]:
        plan = self._run.plan
        cursor = plan.at_step(start)
        last_epoch = cursor.epoch + 2  # all later epochs are like the second one from here
        while cursor.epoch <= last_epoch:
            first, end = plan.share(cursor)
            if first < end:
                yield cursor
                last_epoch = cursor.epoch + 2
            cursor = plan.at_step(plan.after(cursor))

    def open(self, cursor: Cursor, wanted: WantedCallback = lambda: True) -> OpenStep:
        """Opens the step at the cursor; stops early if it is no longer `wanted`.

        Raises:
            DataError: an image is bad and `on_error` is "raise", a shard changed, or a label or field is missing.
        """
        arena = self._arena()
        while True:
            try:
                return self._open(cursor, arena, wanted)
            except _DiscardedError:
                # An image was bad because the shard's copy in the cache is damaged. The copy is gone now, and what was
                # read of it counts for nothing: read all of the step again, which downloads the shard again. A shard
                # is looked at once, so this ends; an image that is bad in the second copy, too, is bad in the data.
                continue

    def _open(self, cursor: Cursor, arena: Arena, wanted: WantedCallback) -> OpenStep:
        started = time.perf_counter()
        run = self._run
        planned = run.plan.batch(cursor)
        suspects = frozenset(self._suspects)  # another thread adds to them
        if self._ahead is not None and len(planned.ids):  # another thread reads the steps without samples
            self._ahead.reach(cursor)
        sides = self.choose_mipmaps(planned)
        parts = run.parts.of_step(planned.ids, sides)
        if len(parts) > 1:
            rows, reading_seconds = self._look_at_parts(planned, sides, parts, suspects, wanted)
        else:
            reading = time.perf_counter()
            images = self._read_images(planned.ids, sides, arena, wanted)
            reading_seconds = time.perf_counter() - reading
            rows = self._look_at(planned, sides, self._known_sizes(planned, sides, suspects), images, wanted)
        rows, params, delivered = self._judge(planned, rows, suspects)
        if self._unseen:
            documents = (partial(run.shards.read_component, row.sample, "json", wanted) for row in rows)
            self._unseen = check_keys(self._unseen, documents)
        bad = {row.sample: row.cause for row in rows if row.cause is not None}
        if bad:  # after the others: this reads shards, which may have changed by now
            each = (planned.take(slice(number, number + 1)) for number in range(len(rows)))
            rows = [self._replace(this, row, suspects, wanted) for this, row in zip(each, rows)]
            params = self._draw(planned, rows)
            delivered = self._delivered(planned, rows, params)
        mixing = self._draw_mixing(planned)
        ids = np.array([row.sample for row in rows], np.int64)
        valid = np.array([row.valid for row in rows], np.bool_)
        stay = np.flatnonzero(valid) if run.bad_images.skip else np.arange(len(rows))
        left, params_for_left = rows, delivered
        if len(stay) < len(rows):
            left, params_for_left = [rows[row] for row in stay.tolist()], delivered.take(stay)
        self._opened += 1
        batch = EncodedBatch(
            cursor=cursor,
            ids=ids,
            valid=valid,
            delivered=delivered,
            mixing=mixing,
            labels=None if run.labels is None else self._labels_of(ids, stay, wanted),
            fields={
                name: self._collate(name, field, left, params_for_left, mixing)
                for name, field in run.fields.items()
                if (left or field.is_target) and name not in self._own_targets
            },
            bad={sample: cause for sample, cause in bad.items() if sample not in run.known_bad},
            finish=partial(self._finish_own, rows, stay) if self._finishes else None,
            opened=self._opened,
            reading_seconds=reading_seconds,
            gating_seconds=time.perf_counter() - started - reading_seconds,
        )
        return OpenStep(planned, rows, params, batch, parts, arena)

    def read(self, step: OpenStep, number: int, wanted: WantedCallback = lambda: True) -> EncodedPart:
        """Reads a part of a step, by its number; stops early if it is no longer `wanted`.

        Raises:
            DataError: a shard changed.
        """
        its, rows = step.parts[number], step.rows[step.parts[number]]
        started = time.perf_counter()
        arena = self._arena() if number else step.arena
        unread = np.array([(row.sample, row.side) for row in rows if row.image is None], np.int64).reshape(-1, 2)
        read = iter(self._read_images(unread[:, 0], unread[:, 1], arena, wanted) if len(unread) else ())
        images = [next(read) if row.image is None else row.image for row in rows]
        reading_seconds = time.perf_counter() - started
        params = step.params if len(step.parts) == 1 else step.params.take(np.arange(its.start, its.stop))
        context = self._own_code_context(step.planned.take(its), rows, params)
        files, params = self._cut(images, params)
        return EncodedPart(step.batch, number, its, files, params, context, arena, reading_seconds)

    def _arena(self) -> Arena:
        return self.arenas.popleft() if self.arenas else Arena()

    def choose_mipmaps(self, planned: PlannedBatch) -> Ints:
        """Returns (b,) the shorter sides of the mipmaps that are read in place of pictures, 0 for a picture.

        They depend only on the random parameters and the index, not on earlier reads.
        """
        run, ids = self._run, planned.ids
        if not run.takes_mipmaps:
            return np.zeros(len(ids), np.int64)
        params, sizes = draw_by_index(run.recipe, run.shards, ids, planned.draws, planned.shape)
        self._params_by_index = planned, sizes, params
        return choose_mipmaps_by_index(run.recipe, run.shards, ids, params, sizes)

    def _read_images(self, ids: Ints, sides: Ints, arena: Arena, wanted: WantedCallback) -> list[EncodedImage]:
        images = self._run.shards.read_images(ids, arena, wanted, sides if sides.any() else None)
        return list(map(decoder_file, images))

    def _known_sizes(self, planned: PlannedBatch, sides: Ints, suspects: Collection[int]) -> Ints:
        """Returns (b, 2) the sizes of pictures whose images passed validation before, and 0 for the others."""
        sizes = self._run.shards.accepted.of(planned.ids, sides)
        if suspects:
            sizes[np.isin(planned.ids, list(suspects))] = _UNKNOWN
        return sizes

    def _look_at_parts(
        self,
        planned: PlannedBatch,
        sides: Ints,
        parts: Sequence[slice],
        suspects: Collection[int],
        wanted: WantedCallback,
    ) -> tuple[list[Row], float]:
        """Calls `_look_at` part by part, so that few images are in memory; unchanged images are read again later."""
        rows: list[Row] = []
        reading_seconds = 0.0
        for its in parts:
            part, of_part = planned.take(its), sides[its]
            sizes = self._known_sizes(part, of_part, suspects)
            unknown = np.flatnonzero(~sizes.any(1))
            started = time.perf_counter()
            images: list[EncodedImage | None] = [None] * len(sizes)
            read = self._read_images(part.ids[unknown], of_part[unknown], self._of_odd_rows, wanted)
            for row, image in zip(unknown.tolist(), read):
                images[row] = image
            reading_seconds += time.perf_counter() - started
            looked_at = self._look_at(part, of_part, sizes, images, wanted)
            rows += [_without_image(row, image, suspects) for row, image in zip(looked_at, images)]
        return rows, reading_seconds

    def _admit(self, planned: PlannedBatch, suspects: Collection[int], wanted: WantedCallback) -> list[Row]:
        """Reads the planned samples into separate memory; returns their rows, bad ones with the cause."""
        sides = self.choose_mipmaps(planned)
        images = self._read_images(planned.ids, sides, Arena(), wanted)
        sizes = self._known_sizes(planned, sides, suspects)
        return self._judge(planned, self._look_at(planned, sides, sizes, images, wanted), suspects)[0]

    def _judge(
        self, planned: PlannedBatch, rows: Sequence[Row], suspects: Collection[int]
    ) -> tuple[list[Row], AugmentParams, AugmentParams]:
        """Returns rows, bad ones with the cause of the recipe or decoder, and their random parameters.

        The last result is the random parameters of the delivered images.
        """
        rows = list(rows)
        params = self._draw(planned, rows)
        delivered = self._delivered(planned, rows, params)
        causes = self._find_refused(rows, delivered)
        for number, row in enumerate(rows if suspects else ()):
            is_tried = row.sample in suspects and row.cause is None and number not in causes
            if is_tried and (cause := self._try(row, params.take([number]))):
                causes[number] = of_mipmap(row.side, cause)
        for number, cause in causes.items():
            if rows[number].cause is None:
                rows[number] = rows[number]._replace(cause=cause)
        return rows, params, delivered

    def _look_at(
        self,
        planned: PlannedBatch,
        sides: Ints,
        sizes: Ints,
        images: Sequence[EncodedImage | None],
        wanted: WantedCallback,
    ) -> list[Row]:
        """Makes rows: validates images that have not passed validation before, and parses all fields."""
        each = zip(planned.ids.tolist(), images, map(tuple, sizes.tolist()), planned.valid.tolist(), sides.tolist())
        rows = list(starmap(Row, each))
        if not self._run.fields and sizes.all():
            return rows
        numbers = planned.draws.uniform(Stream.FIELD, _FIELD_NUMBERS) if self._run.fields else np.empty((len(rows), 0))
        begin = partial(self._begin, wanted=wanted)
        if self._parsed_in_threads:
            # All threads finish before the first result is used, so the result does not depend on their order.
            with ThreadPoolExecutor(self._run.num_threads, "gpuloader-fields") as threads:
                begun: Iterable[Row] = list(threads.map(begin, rows, numbers))
        else:
            begun = map(begin, rows, numbers)
        return [self._finish(*each, wanted) for each in zip(rows, begun, numbers)]

    def _begin(self, row: Row, numbers: NDArray[np.float64], wanted: WantedCallback) -> Row:
        """Returns a row with the image for the graph, its size, and the fields that several threads may parse."""
        try:
            if cause := self._known_cause(row.sample):
                return row._replace(cause=cause)
            if row.side and (cause := self._run.shards.too_large_mipmap(row.sample, row.side)):
                raise RefusalError(cause)
            if row.size == _UNKNOWN:
                assert row.image is not None
                image, size = (admit_array if self._run.decoded else admit)(row.image, self._run.recipe.max_pixels)
                row = row._replace(image=image, size=self._run.shards.picture_of(row.sample, row.side, size))
        except RefusalError as error:
            return row._replace(cause=of_mipmap(row.side, error.cause))
        try:
            return self._parse(self._parsed_in_threads, row, numbers, wanted)
        except RefusalError as error:
            return row._replace(cause=error.cause)

    def _finish(self, stored: Row, row: Row, numbers: NDArray[np.float64], wanted: WantedCallback) -> Row:
        """Returns a row with all fields, and records the result of validation."""
        shards = self._run.shards
        try:
            if row.cause is None:
                row = self._parse(self._parsed_in_order, row, numbers, wanted)
        except RefusalError as error:
            row = row._replace(cause=error.cause)
        if row.cause is not None and self._known_cause(row.sample) is None and shards.discard_if_damaged(row.sample):
            raise _DiscardedError
        if row.cause is None and stored.size == _UNKNOWN and row.image is stored.image and shards.local:
            shards.accepted.note(row.sample, row.size, row.side)
        return row

    def _known_cause(self, sample: int) -> str | None:
        """Returns why a sample is bad, if that is known before its bytes are read."""
        return self._run.known_bad.get(sample) or self._run.shards.too_large.get(sample)

    def _parse(
        self, fields: Mapping[str, Component], row: Row, numbers: NDArray[np.float64], wanted: WantedCallback
    ) -> Row:
        if not fields:
            return row
        read = partial(self._read_component, row.sample, wanted)
        values = parse_fields(fields, read, self._delivered_size(row.sample, row.size), numbers)
        return row._replace(fields={**row.fields, **values})

    def _draw(self, planned: PlannedBatch, rows: Sequence[Row], *, whole: bool = False) -> AugmentParams:
        """Draws the random parameters for these samples, from their sizes and boxes.

        With own code, they are the parameters of the recipe before own code, or of the `whole` recipe.
        """
        name = self._run.box_field
        boxes: Sequence[NDArray[np.float64]] = ()
        if name is not None:
            boxes = [row.fields[name].boxes if name in row.fields else _NO_BOXES for row in rows]  # as of a bad sample
        sizes = np.array([side for row in rows for side in row.size], np.int64).reshape(-1, 2)  # pairs take longer
        samples = np.array([row.sample for row in rows], np.int64)
        by_index = None if whole else self._params_by_index
        if by_index and by_index[0] is planned and _are_same(planned.ids, samples) and _are_same(by_index[1], sizes):
            params = by_index[2]
        else:
            recipe = self._run.recipe.at(planned.cursor.epoch, planned.shape)
            recipe = recipe if whole else recipe.before_own_code
            params = draw_pictures(recipe, self._run.shards, samples, planned.draws, sizes, boxes)
        sides = np.array([row.side for row in rows], np.int64) * sizes.any(1)
        if not sides.any():
            return params
        pictures = np.maximum(sizes, 1)
        return params.in_files(pictures, mipmap_sizes(pictures, sides))

    def _delivered(self, planned: PlannedBatch, rows: Sequence[Row], params: AugmentParams) -> AugmentParams:
        """Returns the parameters of the whole recipe, if it has own code and sizes or targets are delivered."""
        return self._draw(planned, rows, whole=True) if self._draws_whole or not rows else params

    def _find_refused(self, rows: Sequence[Row], params: AugmentParams) -> dict[int, str]:
        """Finds the rows that the recipe cannot process, and rows whose masks are too large: row -> cause."""
        refused = params.refused()
        if not self._run.fields:
            return refused
        pixels = params.pixels
        masks = [sum(self._run.fields[name].count_masks(value) for name, value in row.fields.items()) for row in rows]
        pixels = pixels * np.array(masks, np.int64)
        return refused | {
            row: f"its {masks[row]:,} masks of objects have {pixels[row]:,} pixels as the recipe makes them: "
            f"allowed are {MOST_MASK_PIXELS:,} in a sample"
            for row in np.flatnonzero(pixels > MOST_MASK_PIXELS).tolist()
        }

    def _try(self, row: Row, params: AugmentParams) -> str | None:
        """Returns why the random window of a sample cannot be decoded, or None.

        Damage may be outside some windows. So only this epoch's window is tried, and epochs stay independent.
        """
        assert row.image is not None
        files, params = self._cut([row.image.copy()], params)
        whole = self._run.decoder.region is False and len(files[0]) == len(row.image)
        decoded = None if whole else tuple(params.region[0].tolist())
        known, cause = self._undecodable.get((row.sample, row.side), ((), ""))
        if known == decoded:
            return cause
        run = self._run
        causes = find_bad_rows(run.recipe.before_own_code, run.decoder, run.decoding_device_id, files, params)
        if causes:
            self._undecodable[row.sample, row.side] = decoded, causes[0]
        return causes.get(0)

    def _replace(self, planned: PlannedBatch, row: Row, suspects: Collection[int], wanted: WantedCallback) -> Row:
        """Returns a good row unchanged; for a bad row, returns the first good one of the plan's replacements.

        A sample to be dropped keeps its id, with an image that can be decoded.
        """
        run = self._run
        if row.cause is None:
            return row
        if not (run.bad_images.replace or run.bad_images.skip) and row.sample not in run.known_bad:
            raise BadImageError(*run.shards.locate(row.sample, row.side), row.cause)
        if run.bad_images.skip:
            image = np.zeros((*GOOD_SIZE, 3), np.uint8) if run.decoded else good_jpeg().copy()
            return Row(row.sample, image, GOOD_SIZE, valid=False)
        uniform = planned.draws.uniform(Stream.REPLACEMENT, REPLACEMENT_ATTEMPTS)[0]
        for candidate in run.plan.replacements(planned.cursor, row.sample, uniform).tolist():
            instead = replace(planned, ids=np.array([candidate]), valid=np.array([False]))
            [found] = self._admit(instead, suspects, wanted)
            if found.cause is None:
                return found
        key = run.shards.locate(row.sample).key
        raise TooManyBadImagesError(
            f"{key!r} is bad ({row.cause}), and so are the {REPLACEMENT_ATTEMPTS} samples drawn to replace it: repair "
            f"the shards"
        )

    def _delivered_size(self, sample: int, size: Shape) -> Shape:
        """Returns (height, width) of an image for the recipe's transforms: upright if the recipe applies EXIF."""
        if not self._run.fields or self._run.recipe.orientation != "apply":
            return size
        turned = self._run.shards.index.at("orientation", np.array([sample]))[0] >= FIRST_TRANSPOSED
        return (size[1], size[0]) if turned else size

    def _cut(self, images: list[EncodedImage], params: AugmentParams) -> tuple[list[EncodedImage], AugmentParams]:
        """Cuts seekable JPEGs to their random windows, in place."""
        return (images, params) if self._run.decoded else cut_to_region(images, params)

    def _own_code_context(
        self, planned: PlannedBatch, rows: Sequence[Row], params: AugmentParams
    ) -> OwnCodeContext | None:
        """Returns the data of a part for the stages after own code."""
        links = self._run.recipe.links
        if links is None:
            return None
        targets = OwnTargets(self._own_targets, [row.fields for row in rows], params, self._run.box_field)
        return OwnCodeContext(
            self._run.recipe.at(planned.cursor.epoch, planned.shape),
            planned.draws,
            lambda _, row: "{0.key!r} in {0.shard}".format(self._run.shards.locate(rows[row].sample)),
            targets if self._own_targets else None,
            _with_own if self._finishes else None,
            [number for number, row in enumerate(rows) if not row.valid] if self._run.bad_images.skip else (),
        )

    def _finish_own(
        self, rows: Sequence[Row], stay: NDArray[np.int64], batch: EncodedBatch, parts: Sequence[EncodedPart]
    ) -> EncodedBatch:
        """Returns a batch with the results of own code: sizes, and the targets of the rows that `stay`."""
        own = [part.own for part in parts if part.own is not None]
        params = AugmentParams.joined([each for each, _ in own])
        made = [list(chain(*of_view)) for of_view in zip(*(targets for _, targets in own))]
        targets = OwnTargets(self._own_targets, (), params, self._run.box_field)
        fields, left = dict(batch.fields), params.take(stay)
        for name, field in self._own_targets.items():
            of_views = []
            for view, of_view in zip(left.views, made):
                values = [targets.value(name, of_view[row]) for row in stay.tolist()]
                moved = [rows[row]._replace(fields={name: value}) for row, value in zip(stay.tolist(), values)]
                of_views.append(self._collate(name, field, moved, AugmentParams.of([view]), batch.mixing))
            fields[name] = {part: [each for view in of_views for each in view[part]] for part in ("", *field.columns)}
        return replace(batch, delivered=params, fields=fields)

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

    def _labels_of(self, ids: NDArray[np.int64], rows: NDArray[np.int64], wanted: WantedCallback) -> NDArray[np.int64]:
        """Returns the labels of samples, 0 outside of `rows`; raises LabelError if the recipe cannot mix them."""
        assert self._run.labels is not None
        labels, mix = np.zeros(len(ids), np.int64), self._run.recipe.mix
        labels[rows] = self._run.labels.of(ids[rows], wanted)
        if mix is not None and not (labels.min(initial=0) >= 0 and labels.max(initial=0) < mix.num_classes):
            row = int(np.argmax((labels < 0) | (labels >= mix.num_classes)))
            where = self._run.shards.locate(int(ids[row]))
            raise LabelError(
                f"{where.key!r} in {where.shard} has the label {labels[row]}, but the recipe's mix.num_classes is "
                f"{mix.num_classes}: set it to the number of classes, such as "
                f'preset={{"NAME": {{"mix": {{"num_classes": ...}}}}}}'
            )
        return labels

    def _collate(
        self, name: str, field: Component, rows: Sequence[Row], params: AugmentParams, mixing: Mixing | None
    ) -> Any:  # noqa: ANN401
        values = [row.fields[name] for row in rows]
        try:
            collated = field.collated(values, params)
        except CancelledError:  # as itself, as SystemExit
            raise
        except Exception as error:
            where = f"the field {name}: of {counted(len(values), 'sample')},"
            for row, value in enumerate(values):
                try:
                    field.collated([value], params.take([row]))
                except Exception as its_error:
                    component = self._component_name(rows[row].sample, field.extension)
                    raise DataError(f"{where} {component}: {cause_of(its_error)}") from its_error
            component = self._component_name(rows[0].sample, field.extension)
            raise DataError(f"{where} the batch that begins with {component}: {cause_of(error)}") from error
        if not field.is_target and (wrong := wrong_rows(name, collated, len(values))):
            raise DataError(wrong)
        if field.is_target and mixing is not None:  # a class mask; a recipe with CutMix has one view
            [masks] = collated[""]
            collated = {"": [paste_neighbours(masks, mixing)]}
        if (
            field.is_target and self._run.device.type == "cuda"
        ):  # here, because the training loop does not wait for this
            with torch.cuda.device(self._run.device):  # else the first pinning takes memory of GPU 0
                return {part: list(map(_pin, of_views)) for part, of_views in collated.items()}
        return collated

    def _read_component(self, sample: int, wanted: WantedCallback, extension: str, required: bool) -> bytes | None:
        data = self._run.shards.read_component(sample, extension, wanted)
        if data is None and required:
            raise DataError(f"{self._component_name(sample, extension)}: the sample has no such component")
        return data

    def _component_name(self, sample: int, extension: str) -> str:
        where = self._run.shards.locate(sample)
        return f"the .{extension} component of {where.key!r} in {where.shard}"


def _without_image(row: Row, stored: EncodedImage | None, suspects: Collection[int]) -> Row:
    """Returns a row that needs no arena: without its image, or with a copy of an image that was changed or is tried."""
    is_kept = row.image is not None and (row.image is not stored or row.sample in suspects)
    return row._replace(image=np.array(row.image) if is_kept else None)


def _are_same(one: Ints, other: Ints) -> bool:
    return one is other or np.array_equal(one, other)


def _with_own(part: EncodedPart, params: AugmentParams, targets: Sequence[Sequence[Mapping[str, Any]]]) -> EncodedPart:
    return replace(part, own=(params, targets))


def _pin(entry: Any) -> Any:  # noqa: ANN401
    """Returns an array or a `Ragged` with a tensor in pinned memory; small ones do not change."""
    if isinstance(entry, Ragged):
        return replace(entry, values=_pin(entry.values))
    return torch.from_numpy(entry).pin_memory() if entry.nbytes > STAGED_BYTES else entry


class _DiscardedError(Exception):
    """Raised if a damaged shard was removed from the cache."""
