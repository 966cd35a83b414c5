"""`Admit`, `Parse` and `Judge`: find the bad samples of a batch, and why they are bad.

A sample is bad in an epoch if its image fails validation, if its random window cannot be decoded, or if a field cannot
be parsed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.chain.batch import Batch
from gpuloader.chain.link import Wanted
from gpuloader.errors import DataError
from gpuloader.images.arrays import admit_array
from gpuloader.images.gate import admit
from gpuloader.images.limits import RefusalError
from gpuloader.images.mipmaps import of_mipmap
from gpuloader.images.orientation import FIRST_TRANSPOSED
from gpuloader.loading.fields import MOST_MASK_PIXELS, Component, check_keys, parse_fields
from gpuloader.loading.run import Run
from gpuloader.pipelines import find_undecodable, prepare
from gpuloader.plan import Stream
from gpuloader.recipe import Shape
from gpuloader.recipe.model import Ints

_FIELD_NUMBERS = 4  # random numbers for the fields of a sample: a block of the stream


class DiscardedError(Exception):
    """Raised if a damaged shard was removed from the cache: what was read of it counts for nothing."""


class Admit:
    """A function that validates images which were not validated before, and sets their sizes and causes."""

    def __init__(self, run: Run, suspects: Collection[int]) -> None:
        self._run, self._suspects = run, suspects

    def find_unknown(self, batch: Batch) -> tuple[Ints, list[int]]:
        """Returns (n, 2) the sizes of pictures whose images passed validation before, and the rows of the others.

        These rows have no cause yet: a sample that is left out is not validated.
        """
        sizes = self._run.shards.accepted.of(batch.ids, batch.sides)
        sizes[sizes.prod(1) > self._run.recipe.max_pixels] = 0  # another recipe accepted them
        if self._suspects:
            sizes[np.isin(batch.ids, list(self._suspects))] = 0
        return sizes, [row for row in np.flatnonzero(~sizes.any(1)).tolist() if batch.causes[row] is None]

    def __call__(self, batch: Batch) -> Batch:
        sizes, unknown = self.find_unknown(batch)
        images, causes = list(batch.images[0]), list(batch.causes)
        for row in unknown:
            try:
                images[row], sizes[row] = self._admit(int(batch.ids[row]), int(batch.sides[row]), images[row])
            except RefusalError as error:
                causes[row] = error.cause
        return replace(batch, sizes=sizes, images=[images], causes=causes)

    def _admit(self, sample: int, side: int, stored: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Shape]:
        """Returns the image for the graph, and the (height, width) of its picture."""
        run, shards = self._run, self._run.shards
        if cause := run.known_cause(sample):
            raise RefusalError(cause)
        try:
            if side and (cause := shards.too_large_mipmap(sample, side)):
                raise RefusalError(cause)
            image, size = (admit_array if run.decoded else admit)(stored, run.recipe.max_pixels)
            size = shards.picture_of(sample, side, size)
        except RefusalError as error:
            if shards.discard_if_damaged(sample):
                raise DiscardedError from None
            raise RefusalError(of_mipmap(side, error.cause)) from None
        if image is stored and shards.local:
            shards.accepted.note(sample, size, side)
        return image, size


class Parse:
    """A function that parses the fields of images that are good, and sets their values and causes."""

    def __init__(self, run: Run, wanted: Wanted) -> None:
        self._run, self._wanted = run, wanted
        self._unseen = run.unseen
        self._in_threads = {name: field for name, field in run.fields.items() if field.in_threads}
        self._in_order = {name: field for name, field in run.fields.items() if not field.in_threads}
        self._threads: ThreadPoolExecutor | None = None

    def __call__(self, batch: Batch) -> Batch:
        if not self._run.fields:
            return batch
        numbers = batch.draws.uniform(Stream.FIELD, _FIELD_NUMBERS)
        values, causes = list(batch.values), list(batch.causes)
        for fields in filter(None, (self._in_threads, self._in_order)):
            rows = [row for row, cause in enumerate(causes) if cause is None]
            parse = partial(self._of_row, fields, batch, numbers)
            # All threads finish before the first result is used, so the result does not depend on their order.
            each = list(self._pool().map(parse, rows)) if fields is self._in_threads else [parse(row) for row in rows]
            for row, parsed in zip(rows, each):
                if not isinstance(parsed, str):
                    values[row] = {**values[row], **parsed}
                    continue
                causes[row] = parsed
                if self._run.shards.discard_if_damaged(int(batch.ids[row])):
                    raise DiscardedError
        return replace(batch, values=values, causes=causes)

    def check_keys(self, batch: Batch) -> None:
        """Checks the keys of fields, until some annotations were read."""
        if self._unseen:
            read = partial(self._run.shards.read_component, extension="json", wanted=self._wanted)
            self._unseen = check_keys(self._unseen, (partial(read, sample) for sample in batch.ids.tolist()))

    def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True, cancel_futures=True)

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._run.num_threads, "gpuloader-fields")
        return self._threads

    def _of_row(
        self, fields: Mapping[str, Component], batch: Batch, numbers: NDArray[np.float64], row: int
    ) -> Mapping[str, Any] | str:
        """Returns the values of a sample's fields, or why one cannot be parsed."""
        sample, (height, width) = int(batch.ids[row]), batch.sizes[row].tolist()
        orientation = self._run.shards.index.at("orientation", np.array([sample])).item()
        if self._run.recipe.orientation == "apply" and orientation >= FIRST_TRANSPOSED:
            height, width = width, height
        try:
            return parse_fields(fields, partial(self._read, sample), (height, width), numbers[row])
        except RefusalError as error:
            return error.cause

    def _read(self, sample: int, extension: str, required: bool) -> bytes | None:
        data = self._run.shards.read_component(sample, extension, self._wanted)
        if data is None and required:
            raise DataError(f"{self._run.component_name(sample, extension)}: the sample has no such component")
        return data


class Judge:
    """A function that sets the causes of samples that the recipe cannot take, or that the decoder refuses when tried.

    Args:
        suspects: samples that are tried one by one, because they failed to decode. They do not change any batch, so
            another thread may add to them.
    """

    def __init__(self, run: Run, suspects: Collection[int]) -> None:
        self._run, self._suspects = run, suspects
        # What a decoder refused of a sample's image or copy, None for the whole file, and why: trying it may build
        # pipelines on a GPU.
        self._undecodable: dict[tuple[int, int], tuple[tuple[int, ...] | None, str]] = {}

    def __call__(self, batch: Batch) -> Batch:
        causes = list(batch.causes)
        for row, refused in {**batch.delivered.refused(), **self._find_large_masks(batch)}.items():
            causes[row] = causes[row] or refused
        tried = frozenset(self._suspects)
        for row in np.flatnonzero(np.isin(batch.ids, list(tried))).tolist() if tried else ():
            if causes[row] is None and (cause := self._try(batch.take(np.array([row])))):
                causes[row] = of_mipmap(int(batch.sides[row]), cause)
        return replace(batch, causes=causes, step=replace(batch.step, tried=tried))

    def _find_large_masks(self, batch: Batch) -> dict[int, str]:
        fields = self._run.fields
        if not fields:
            return {}
        masks = [sum(fields[name].count_masks(value) for name, value in row.items()) for row in batch.values]
        pixels = batch.delivered.pixels * np.array(masks, np.int64)
        return {
            row: f"its {masks[row]:,} masks of objects have {pixels[row]:,} pixels as the recipe makes them: "
            f"allowed are {MOST_MASK_PIXELS:,} in a sample"
            for row in np.flatnonzero(pixels > MOST_MASK_PIXELS).tolist()
        }

    def _try(self, one: Batch) -> str | None:
        """Returns why the random window of a sample cannot be decoded, or None.

        Damage may be outside some windows. So only this epoch's window is tried, and epochs stay independent.
        """
        run, image, key = self._run, one.images[0][0], (int(one.ids[0]), int(one.sides[0]))
        files, params = [image], one.params
        if not run.decoded:
            files, params, _ = prepare([image.copy()], one.params, run.oversampling)
        if files[0].ndim == 3:
            return None
        whole = run.decoder.region is False and len(files[0]) == len(image)
        decoded = None if whole else tuple(params.region[0].tolist())
        if (known := self._undecodable.get(key)) is not None and known[0] == decoded:
            return known[1]
        causes = find_undecodable(
            run.recipe.graphs[0], files, params, run.decoding_device_id, **run.decoder.graph_options
        )
        if causes:
            self._undecodable[key] = decoded, causes[0]
        return causes.get(0)
