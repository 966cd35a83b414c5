"""Makes encoded batches from the plan and the shards: `Reader` makes one, `ReadAhead` has a thread make them ahead.

In each step it gets the plan's sample ids, reads their bytes into an arena, sends every image through the gate, and
parses the fields. A refused sample gets a replacement, or an image that is not delivered, or it raises, as `on_error`
says. Then it adds labels and what the recipe draws. The graph needs nothing else.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gpuloader.collators import wrong_rows
from gpuloader.errors import BadImageError, DataError, LabelError, TooManyBadImagesError
from gpuloader.helpers.fed_threads import FedThreads
from gpuloader.helpers.text import counted
from gpuloader.images.arrays import admit_array
from gpuloader.images.gate import admit
from gpuloader.images.limits import Admitted, Refused
from gpuloader.images.orientation import FIRST_TRANSPOSED
from gpuloader.images.png import trimmed
from gpuloader.loading.blending import paste_neighbours
from gpuloader.loading.fields import MOST_MASK_PIXELS, Component, Ragged, cause_of, check_keys, parse_fields
from gpuloader.loading.run import Run
from gpuloader.pipelines import GOOD_SIZE, cut_to_region, find_undecodable, good_jpeg
from gpuloader.plan import Cursor, Plan, PlannedBatch, Stream
from gpuloader.recipe import Drawn, Mixing, Shape
from gpuloader.shards import Ahead, Arena, EncodedImage, Wanted

REPLACEMENT_ATTEMPTS = 100
_NO_BOXES = np.zeros((0, 4))
STAGED_BYTES = 64 << 10  # up to which CUDA stages a copy from pageable memory itself
_FIELD_NUMBERS = 4  # drawn for the fields of a sample: a block of the stream

_Request: TypeAlias = tuple[Cursor, Arena]
_DrawnRow: TypeAlias = tuple[PlannedBatch, NDArray[np.float64]]
"""A row of the plan, and the numbers for its fields, (4,). A replacement has those of the sample that it replaces."""
_Sample: TypeAlias = tuple[int, EncodedImage, tuple[int, int] | None, NDArray[np.float64], Wanted]
"""The arguments of `Reader._begin`."""
_GoodRow: TypeAlias = tuple[EncodedImage, tuple[int, int], Mapping[str, Any]]
"""An image as the graph takes it, its (height, width), and the values of the sample's fields by name."""


@dataclass(frozen=True, eq=False)
class EncodedBatch:
    """One rank's batch before decoding.

    Attributes:
        cursor: of this step.
        ids: (b,) int64, the samples that are delivered: the plan's, or their replacements.
        valid: (b,) bool, False for padding and for bad samples: only their replacements are delivered, or nothing.
        images: b encoded images, views into the arena; or arrays (height, width, 3) if the shards contain arrays.
        drawn: what the recipe draws for them.
        mixing: how neighbours are mixed, or None.
        labels: (b,) int64, or None.
        fields: by name, what is made of the b values, or of those that are valid if others are left out; only targets
            if there are none. Large targets for a GPU are tensors in pinned memory.
        bad: the planned samples that were found bad here, with the causes: the image, or a component beside it.
        arena: the memory behind `images`; free again when the graph is done with the batch.
        reading_seconds: the time for reading the images' bytes.
        gating_seconds: the time for the rest: the plan, the gate, draws, labels, fields.
    """

    cursor: Cursor
    ids: NDArray[np.int64]
    valid: NDArray[np.bool_]
    images: Sequence[EncodedImage]
    drawn: Drawn
    mixing: Mixing | None
    labels: NDArray[np.int64] | None
    fields: Mapping[str, Any]
    bad: Mapping[int, str]
    arena: Arena
    reading_seconds: float
    gating_seconds: float


class Reader:
    """Makes the encoded batch of any step; the result depends only on the arguments.

    A sample is bad in an epoch if the gate refuses its image, if the window drawn for it there cannot be decoded, or if
    a field cannot be parsed.

    Args:
        suspects: samples that are tried one by one, because decoding failed on them. Further suspects do not change
            any batch, so they may be added at any time.
        ahead: is told of each step, and downloads shards from stores before they are needed.
    """

    def __init__(self, run: Run, suspects: Collection[int] = (), ahead: Ahead | None = None) -> None:
        self._run = run
        self._suspects = suspects
        self._ahead = ahead
        self._unseen = run.unseen
        self._parsed_in_threads = {name: field for name, field in run.fields.items() if field.in_threads}
        self._parsed_in_order = {name: field for name, field in run.fields.items() if not field.in_threads}
        # What a decoder refused of a sample, None for the whole file, and why: trying it may build pipelines on a GPU.
        self._undecodable: dict[int, tuple[tuple[int, ...] | None, str]] = {}

    def read(self, cursor: Cursor, arena: Arena, wanted: Wanted = lambda: True) -> EncodedBatch:
        """Makes the batch of the step at the cursor, with its images in the arena; stops early if no longer `wanted`.

        Raises:
            DataError: a bad image must not be replaced, a shard changed, or a label or field is missing.
        """
        while True:
            try:
                return self._pinned(self._read(cursor, arena, wanted))
            except _DiscardedError:
                # An image was bad because the shard's copy in the cache is damaged. The copy is gone now, and what was
                # read of it counts for nothing: read all of the step again, which downloads the shard again. A shard
                # is looked at once, so this ends; an image that is bad in the second copy, too, is bad in the data.
                continue

    def _read(self, cursor: Cursor, arena: Arena, wanted: Wanted) -> EncodedBatch:
        started = time.perf_counter()
        planned = self._run.plan.batch(cursor)
        if self._ahead is not None and len(planned.ids):  # another thread reads the steps without samples
            self._ahead.reach(cursor)
        ids, valid = planned.ids.copy(), planned.valid.copy()
        reading = time.perf_counter()
        images = list(map(trimmed, self._run.shards.read_images(ids, arena, wanted)))
        reading_seconds = time.perf_counter() - reading
        accepted = self._run.shards.accepted
        sizes = accepted.of(ids)
        unseen = (sizes[:, 0] == 0) | np.isin(ids, list(self._suspects))
        numbers = planned.draws.uniform(Stream.FIELD, _FIELD_NUMBERS) if self._run.fields else np.empty((len(ids), 0))
        fields: list[Mapping[str, Any]] = [{}] * len(ids)
        refused: dict[int, str] = {}
        rows = np.flatnonzero(unseen | bool(self._run.fields)).tolist()
        size_of = {row: None if unseen[row] else tuple(sizes[row].tolist()) for row in rows}
        begun = self._begin_in_threads(
            [(int(ids[row]), images[row], size_of[row], numbers[row], wanted) for row in rows]
        )
        for row, begin in zip(rows, begun, strict=True):
            sample, image, drawn = int(ids[row]), images[row], (planned.row(row), numbers[row])
            try:
                images[row], sizes[row], fields[row] = self._admit(sample, begin, drawn, wanted)
            except Refused as error:
                refused[row] = error.cause
                continue
            if unseen[row] and images[row] is image and self._run.shards.local:
                accepted.note(sample, tuple(sizes[row].tolist()))
        if self._unseen:
            documents = (partial(self._run.shards.read_component, int(sample), "json", wanted) for sample in ids)
            self._unseen = check_keys(self._unseen, documents)
        refused = self._find_too_large(planned, ids, sizes, fields) | refused
        bad = {int(ids[row]): cause for row, cause in refused.items() if int(ids[row]) not in self._run.known_bad}
        for row, cause in refused.items():  # after the others: this reads shards, which may have changed by now
            drawn = planned.row(row), numbers[row]
            ids[row], (images[row], sizes[row], fields[row]) = self._replace(int(ids[row]), drawn, cause, wanted)
            valid[row] = False
        images, drawn_for_all = self._cut(images, self._draw(planned, ids, sizes, fields))
        mixing = self._draw_mixing(planned)
        stay = np.flatnonzero(valid) if self._run.bad_images.skip else np.arange(len(ids))
        drawn_for_those = drawn_for_all if len(stay) == len(ids) else drawn_for_all.take(stay)
        return EncodedBatch(
            cursor=cursor,
            ids=ids,
            valid=valid,
            images=images,
            drawn=drawn_for_all,
            mixing=mixing,
            labels=None if self._run.labels is None else self._labels_of(ids, stay, wanted),
            fields={
                name: self._collate(
                    name, field, [fields[row][name] for row in stay.tolist()], ids[stay], drawn_for_those, mixing
                )
                for name, field in self._run.fields.items()
                if len(stay) or field.is_target
            },
            bad=bad,
            arena=arena,
            reading_seconds=reading_seconds,
            gating_seconds=time.perf_counter() - started - reading_seconds,
        )

    def _pinned(self, batch: EncodedBatch) -> EncodedBatch:
        """Copies large targets for a GPU to pinned memory; here, because the training loop does not wait for this."""
        if self._run.device.type != "cuda":
            return batch
        pinned = {
            name: {part: list(map(_pin, of_views)) for part, of_views in batch.fields[name].items()}
            for name, field in self._run.fields.items()
            if field.is_target
        }
        return replace(batch, fields={**batch.fields, **pinned})

    def _draw(
        self,
        planned: PlannedBatch,
        ids: NDArray[np.int64],
        sizes: NDArray[np.int64],
        fields: Sequence[Mapping[str, Any]],
    ) -> Drawn:
        """Draws what the recipe draws for the images of these samples, with the values of their fields."""
        recipe, index = self._run.recipe, self._run.shards.index
        turned = index.at("orientation", ids) if recipe.orientation == "apply" else None
        name = self._run.box_field
        boxes: Sequence[NDArray[np.float64]] = ()
        if name is not None:
            boxes = [values[name].boxes if values else _NO_BOXES for values in fields]  # a bad sample has none
        return recipe.at(planned.cursor.epoch, planned.shape).draw(planned.draws, sizes, turned, boxes)

    def _find_too_large(
        self,
        planned: PlannedBatch,
        ids: NDArray[np.int64],
        sizes: NDArray[np.int64],
        fields: Sequence[Mapping[str, Any]],
    ) -> dict[int, str]:
        """Finds the rows whose output would be too large, with the causes; sizes that are not known yet are 0."""
        recipe, too_large = self._run.recipe, dict[int, str]()
        if recipe.batch == "dense" and not self._run.fields:  # its size is known to be allowed, and there are no masks
            return {}
        if recipe.batch == "dense":
            recipe = recipe.at(planned.cursor.epoch, planned.shape)
            pixels = np.full(len(ids), sum(prod(shape) for shape in recipe.shapes if shape))
        else:
            drawn = self._draw(planned, ids, np.maximum(sizes, 1), fields)
            pixels, too_large = drawn.pixels, drawn.too_large()
        masks = [sum(self._run.fields[name].count_masks(value) for name, value in each.items()) for each in fields]
        pixels = pixels * np.array(masks, np.int64)
        return too_large | {
            row: f"its {masks[row]:,} masks of objects have {pixels[row]:,} pixels as the recipe makes them: "
            f"allowed are {MOST_MASK_PIXELS:,} in a sample"
            for row in np.flatnonzero(pixels > MOST_MASK_PIXELS).tolist()
        }

    def _delivered_size(self, sample: int, size: Shape) -> Shape:
        """Returns (height, width) of an image as the recipe's transforms see it: upright, if the recipe says so."""
        if not self._run.fields or self._run.recipe.orientation != "apply":
            return size
        turned = self._run.shards.index.at("orientation", np.array([sample]))[0] >= FIRST_TRANSPOSED
        return (size[1], size[0]) if turned else size

    def _cut(self, images: list[EncodedImage], drawn: Drawn) -> tuple[list[EncodedImage], Drawn]:
        """Cuts JPEGs to what is drawn for them, in place."""
        return (images, drawn) if self._run.decoded else cut_to_region(images, drawn)

    def _draw_mixing(self, planned: PlannedBatch) -> Mixing | None:
        mix = self._run.recipe.mix
        if mix is None:
            return None
        draw = planned.draws.of(Stream.MIX)
        if mix.per == "batch":
            draw = self._run.plan.draws_of_step(planned.cursor, len(planned.ids)).of(Stream.MIX, occurrence=1)
        [shape] = self._run.recipe.at(planned.cursor.epoch, planned.shape).shapes
        assert shape is not None  # images that are mixed have one size
        return mix.draw(draw, *shape)

    def _labels_of(self, ids: NDArray[np.int64], rows: NDArray[np.int64], wanted: Wanted) -> NDArray[np.int64]:
        """Returns the labels of samples, those of some rows only, after checking that the recipe can mix them."""
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

    def _begin_in_threads(self, samples: Sequence[_Sample]) -> list[Callable[[], _GoodRow]]:
        """Begins to admit samples, in several threads if these parse fields; returns functions that give the results.

        All of it is done when this returns. So nothing depends on which thread was the first.
        """
        if not self._parsed_in_threads:
            return [partial(self._begin, *sample) for sample in samples]
        with ThreadPoolExecutor(self._run.num_threads, "gpuloader-fields") as threads:
            return [threads.submit(self._begin, *sample).result for sample in samples]

    def _begin(
        self,
        sample: int,
        image: EncodedImage,
        size: tuple[int, int] | None,
        numbers: NDArray[np.float64],
        wanted: Wanted,
    ) -> _GoodRow:
        """Returns the image as the graph takes it, its size, and the fields that several threads may parse.

        Args:
            size: of an image that the gate accepted; None asks the gate.
        """
        if cause := self._known_cause(sample):
            raise Refused(cause)
        if size is None:
            image, size = admit_for(self._run, image)
        return image, size, self._parse(self._parsed_in_threads, sample, size, numbers, wanted)

    def _known_cause(self, sample: int) -> str | None:
        """Returns why a sample is bad, if that is known before its bytes are looked at."""
        return self._run.known_bad.get(sample) or self._run.shards.too_large.get(sample)

    def _parse(
        self,
        fields: Mapping[str, Component],
        sample: int,
        size: Shape,
        numbers: NDArray[np.float64],
        wanted: Wanted,
    ) -> dict[str, Any]:
        read = partial(self._read_component, sample, wanted)
        return parse_fields(fields, read, self._delivered_size(sample, size), numbers)

    def _admit(self, sample: int, begin: Callable[[], _GoodRow], drawn: _DrawnRow, wanted: Wanted) -> _GoodRow:
        """Returns what `_begin` returns, with all fields; raises Refused if the sample is bad."""
        run, (planned, numbers) = self._run, drawn
        try:
            image, size, fields = begin()
            fields = {**fields, **self._parse(self._parsed_in_order, sample, size, numbers, wanted)}
        except Refused:
            if self._known_cause(sample) is None and run.shards.discard_if_damaged(sample):
                raise _DiscardedError from None
            raise
        # Damage may be outside of some windows. So only this epoch's window is tried, and epochs stay independent.
        if sample in self._suspects:
            files, tried = self._cut(
                [image.copy()], self._draw(planned, np.array([sample]), np.array([size]), [fields])
            )
            whole = run.decoder.region is False and len(files[0]) == len(image)
            decoded = None if whole else tuple(tried.region[0].tolist())
            if (known := self._undecodable.get(sample)) is not None and known[0] == decoded:
                raise Refused(known[1])
            if bad := find_bad_rows(run, files, tried):
                self._undecodable[sample] = decoded, bad[0]
                raise Refused(bad[0])
        return image, size, fields

    def _replace(self, sample: int, drawn: _DrawnRow, cause: str, wanted: Wanted) -> tuple[int, _GoodRow]:
        """Returns the first good sample among those that the plan draws for the bad one.

        A sample that is to be left out stays itself, with an image that can be decoded.
        """
        on_error = self._run.bad_images
        if not (on_error.replace or on_error.skip) and sample not in self._run.known_bad:
            raise BadImageError(*self._run.shards.locate(sample), cause)
        if on_error.skip:
            image = np.zeros((*GOOD_SIZE, 3), np.uint8) if self._run.decoded else good_jpeg().copy()
            return sample, (image, GOOD_SIZE, {})
        planned, numbers = drawn
        uniform = planned.draws.uniform(Stream.REPLACEMENT, REPLACEMENT_ATTEMPTS)[0]
        for candidate in self._run.plan.replacements(planned.cursor, uniform).tolist():
            [image] = self._run.shards.read_images(np.array([candidate]), Arena(), wanted)
            with suppress(Refused):
                begin = partial(self._begin, candidate, image, None, numbers, wanted)
                admitted = self._admit(candidate, begin, drawn, wanted)
                _, size, fields = admitted
                if not self._find_too_large(planned, np.array([candidate]), np.array([size]), [fields]):
                    return candidate, admitted
        raise TooManyBadImagesError(
            f"{self._run.shards.locate(sample).key!r} is bad ({cause}), and so are the {REPLACEMENT_ATTEMPTS} samples "
            f"drawn to replace it: repair the shards"
        )

    def _collate(
        self,
        name: str,
        field: Component,
        values: list[Any],
        ids: NDArray[np.int64],
        drawn: Drawn,
        mixing: Mixing | None,
    ) -> Any:  # noqa: ANN401
        try:
            collated = field.collated(values, drawn)
        except CancelledError:  # as itself, as SystemExit
            raise
        except Exception as error:
            where = f"the field {name}: of {counted(len(values), 'sample')},"
            for row, value in enumerate(values):
                try:
                    field.collated([value], drawn.take([row]))
                except Exception as its_error:
                    component = self._component_name(int(ids[row]), field.extension)
                    raise DataError(f"{where} {component}: {cause_of(its_error)}") from its_error
            component = self._component_name(int(ids[0]), field.extension)
            raise DataError(f"{where} the batch that begins with {component}: {cause_of(error)}") from error
        if not field.is_target and (wrong := wrong_rows(name, collated, len(values))):
            raise DataError(wrong)
        if field.is_target and mixing is not None:  # it is a mask of classes, and CutMix has no other views
            [masks] = collated[""]
            return {"": [paste_neighbours(masks, mixing)]}
        return collated

    def _read_component(self, sample: int, wanted: Wanted, extension: str, required: bool) -> bytes | None:
        data = self._run.shards.read_component(sample, extension, wanted)
        if data is None and required:
            raise DataError(f"{self._component_name(sample, extension)}: the sample has no such component")
        return data

    def _component_name(self, sample: int, extension: str) -> str:
        where = self._run.shards.locate(sample)
        return f"the .{extension} component of {where.key!r} in {where.shard}"


def _pin(entry: Any) -> Any:  # noqa: ANN401
    """Returns an array, or a `Ragged` of it, as a tensor in pinned memory; small ones as they are."""
    if isinstance(entry, Ragged):
        return replace(entry, values=_pin(entry.values))
    return torch.from_numpy(entry).pin_memory() if entry.nbytes > STAGED_BYTES else entry


def admit_for(run: Run, image: EncodedImage) -> Admitted:
    """Returns a stored image as the run's graph takes it; raises Refused if the recipe refuses to decode it."""
    if run.decoded:
        return admit_array(image, run.recipe.max_pixels)
    return admit(image, run.recipe.max_pixels)


def find_bad_rows(run: Run, images: Sequence[EncodedImage], drawn: Drawn, message: str = "") -> Mapping[int, str]:
    """Finds the rows that cannot be decoded, with the causes, of encoded images and what is drawn for them.

    Args:
        message: DALI's error, if they failed as a batch.
    """
    options = run.decoder.graph_options
    return find_undecodable(run.recipe, images, drawn, run.device_id, run.num_threads, **options, message=message)


class _DiscardedError(Exception):
    """A shard in the cache was not what it should be."""


class EndOfBatches(Exception):  # noqa: N818 - an end, not an error
    """This rank has no samples in any later step."""


class ReadAhead:
    """The batches of a reader from a cursor on, also across epochs; a thread reads them before they are asked for.

    Steps in which this rank has no sample are skipped: there is nothing to read.
    """

    def __init__(self, reader: Reader, plan: Plan, start: Cursor, depth: int) -> None:
        self._next = plan.at_step(start)
        self._plan = plan
        self._depth = depth
        self._under_way = 0
        self._read: deque[EncodedBatch | BaseException] = deque()
        self._free: deque[Arena] = deque()
        self._thread: FedThreads[_Request, EncodedBatch] = FedThreads(partial(_read, reader), "gpuloader-reader")

    def next(self) -> EncodedBatch:
        """Returns the next batch. Raises the error of reading it, or EndOfBatches if this rank has no more samples."""
        return _raised_or(self.take())

    def take(self) -> EncodedBatch | BaseException:
        """Returns the next batch, or the error that `next` would raise: no traceback then keeps frames alive."""
        while self._under_way <= self._depth and (cursor := self._next_with_samples()) is not None:
            self._thread.put((cursor, self._free.popleft() if self._free else Arena()))
            self._next = self._plan.after(cursor)
            self._under_way += 1
        if self._under_way == 0:
            return EndOfBatches()
        result = self._read.popleft() if self._read else self._thread.get()
        self._under_way -= 1
        return result

    def read_again(self, batch: EncodedBatch) -> EncodedBatch:
        """Reads a batch again, into its arena; raises the error of reading it. Later batches are not read again."""
        self._thread.put((batch.cursor, batch.arena))
        while len(self._read) < self._under_way:
            self._read.append(self._thread.get())
        return _raised_or(self._thread.get())

    def _next_with_samples(self) -> Cursor | None:
        cursor = self._plan.at_step(self._next)
        while cursor.epoch <= self._next.epoch + 2:  # all later epochs are like the second one from here
            first, end = self._plan.share(cursor)
            if first < end:
                return cursor
            cursor = self._plan.at_step(self._plan.after(cursor))
        return None

    @property
    def ready(self) -> int:
        """The batches that are read and not asked for yet."""
        return len(self._read) + self._thread.ready

    def release(self, batch: EncodedBatch) -> None:
        """Notes that a batch's images are no longer needed."""
        self._free.append(batch.arena)

    def close(self) -> None:
        """Ends the thread after the image that it is reading. Garbage collection and the process's end do this, too."""
        self._thread.close()


def _read(reader: Reader, request: _Request, wanted: Wanted) -> EncodedBatch:
    return reader.read(*request, wanted)


def _raised_or(outcome: EncodedBatch | BaseException) -> EncodedBatch:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
