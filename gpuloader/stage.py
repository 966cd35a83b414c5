"""`Stage`: runs a recipe on batches from any iterable, such as a webdataset pipeline or torch's `DataLoader`.

source -> _Gate -> ReadAhead -> DecodingLoop -> Stage
          (a thread)
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.read_ahead import EndOfItems, ReadAhead
from gpuloader.compose import cut_copies, draw_images, way_of
from gpuloader.errors import ConfigError, DataError, LoaderError, describe
from gpuloader.loading.argument_types import AnyDecoder, AnyDevice
from gpuloader.loading.arguments import resolve_own_device
from gpuloader.loading.decoding_loop import DecodingLoop
from gpuloader.loading.delivery import finish
from gpuloader.loading.iteration import CloseableMixin
from gpuloader.loading.options import Decoder
from gpuloader.loading.own_code_loop import OwnCodeContext, OwnCodeLoop, decoding_of
from gpuloader.loading.world import World
from gpuloader.plan import Draws, check_epoch, check_seed
from gpuloader.recipe import AnyPreset, AugmentParams, Recipe, load_preset
from gpuloader.recipe.part import as_value

_log = logging.getLogger("gpuloader")


class Stage(CloseableMixin):
    """A pipeline that decodes and transforms the batches of any iterable, as a `GPULoader` does for shards.

    `for images, ids, *others in stage(source, epoch=epoch)` reads the source ahead in a thread, and decodes ahead. The
    pipeline is kept between loops; `close` or `with` frees it.
    An image's random parameters depend only on `seed`, `epoch` and its id. A `GPULoader` with the same seed gives the
    same pixels for the sample with this number.

    Args:
        preset: a recipe, as for a `GPULoader`. It must not have `mix`, or transforms that draw by boxes. `mipmaps` is
            ignored, because only loaders read smaller copies.
        device_id: the GPU or the CPU, as for a `GPULoader`. In a worker process of torch's DataLoader, "auto" is the
            CPU.
        seed: an integer in [0, 2**64).
        on_error: "raise" raises an error at an image that cannot be decoded. "skip" drops the image, so its batch is
            smaller, and skips a batch without other images. The number of dropped images has no limit: compare
            `len(stage.bad)` with what you expect.
        decoder: a `Decoder`, or a dictionary of its fields: how images are decoded, the number of threads, and the
            number of batches that are prepared ahead.

    Attributes:
        bad: the cause for each dropped image, by id. It includes images of batches that are read ahead.

    Raises:
        PresetError: the recipe is missing or invalid.
        ConfigError: the recipe mixes or draws by boxes, or another argument is invalid.

    Example:
        >>> import numpy as np
        >>> from gpuloader import Stage
        >>> stage = Stage("imagenet_eval")
        >>> source = [([np.zeros((300, 400, 3), np.uint8)] * 2, [0, 1], ["cat", "dog"])]
        >>> for images, ids, names in stage(source):
        ...     print(images.shape, ids, names)
        torch.Size([2, 3, 224, 224]) [0, 1] ['cat', 'dog']
    """

    def __init__(
        self,
        preset: AnyPreset,
        device_id: AnyDevice = "auto",
        *,
        seed: int = 0,
        on_error: Literal["raise", "skip"] = "raise",
        decoder: AnyDecoder = None,
    ) -> None:
        recipe = load_preset(preset)
        if recipe.mix is not None:
            raise ConfigError("the recipe mixes images with labels, which a Stage does not know: load it with mix=None")
        if recipe.by_boxes:
            raise ConfigError(f"{recipe.by_boxes} draws by boxes, which a Stage does not know: leave it out")
        if on_error not in ("raise", "skip"):
            raise ConfigError(f'on_error={on_error!r}: allowed are "raise" and "skip"')
        self.bad: dict[int | str, str] = {}
        self._recipe = recipe
        self._seed = check_seed(seed)
        self._skip = on_error == "skip"
        self._device_id = device = resolve_own_device(device_id)
        decoding = as_value(Decoder, "decoder", {} if decoder is None else decoder)
        self._decoder = decoding.on(device, World.of_process().cores)
        self._decoding: DecodingLoop[_Batch] | OwnCodeLoop[_Batch] = decoding_of(recipe, self._decoder, device)
        self._reading: ReadAhead[_Batch] | None = None

    def __call__(self, source: Iterable[Any], *, epoch: int = 0) -> Iterator[tuple[Any, ...]]:
        """Iterates over the batches of a source, which a thread reads ahead.

        The thread ends with the loop or at `break`, after the source returns the batch that is being read. A new loop
        over the same stage ends the previous loop.

        Args:
            source: gives tuples or lists `(images, ids, *others)`; batches may differ in size. `images` is a list of
                files (bytes), or a list of uint8 arrays (height, width, 3) or PIL images. `ids` has an integer in
                [0, 2**63) or a string for each image. A string stands for the first 63 bits of its BLAKE2b hash. The
                others are lists, tuples, arrays or tensors with an entry for each image.
            epoch: an integer in [0, 2**32).

        Yields:
            Tuples `(images, ids, *others)`. The images are the same as in a `GPULoader`'s batch: device, dtype and
            shape. The ids and others are unchanged, without the entries of dropped images.

        Raises:
            ConfigError: the source gives something else.
            DataError: an image cannot be decoded; the message names its id and the cause.
            LoaderError: a later loop over the stage has begun.
        """
        if not hasattr(source, "__iter__"):
            raise ConfigError(f"source={describe(source)}: allowed is what a `for` loop takes, such as a DataLoader")
        return self._iterate(iter(source), check_epoch(epoch))

    def close(self) -> None:
        """Ends the loop and frees the pipeline's memory. A later loop makes a new pipeline; closing twice is fine."""
        self._end_loop()
        self._decoding.close()

    def _iterate(self, batches: Iterator[Any], epoch: int) -> Iterator[tuple[Any, ...]]:
        self._end_loop()
        gate = _Gate(self._recipe, self._seed, epoch, self.bad if self._skip else None)
        reads = repeat(partial(gate.read, batches))
        self._reading = reading = ReadAhead(reads, self._decoder.prefetch + 1, "gpuloader-stage")
        self._decoding.start(reading.take, gate.leave_out)
        try:
            while (decoded := self._decoding.next()) is not None:
                batch, views = decoded
                yield finish(self._recipe, views), *batch.columns
                if self._reading is not reading:
                    raise LoaderError("this loop is over: a later one over this Stage has begun, or it was closed")
        finally:
            reading.close()

    def _end_loop(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None


@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch before decoding.

    Attributes:
        columns: the ids and all others, as the source gave them.
        ids: (n,), with numbers in place of strings.
        images: n files (bytes,), or arrays (height, width, 3).
        params: the random parameters of the recipe, or of its part before own code.
        context: for own code; None if the recipe has none.
    """

    columns: Sequence[Any]
    ids: NDArray[np.int64]
    images: Sequence[NDArray[np.uint8]]
    params: AugmentParams
    context: OwnCodeContext | None

    def take(self, rows: NDArray[np.int64]) -> _Batch:
        return _Batch(
            [_entries(column, rows) for column in self.columns],
            self.ids[rows],
            [self.images[row] for row in rows.tolist()],
            self.params.take(rows),
            None if self.context is None else replace(self.context, draws=self.context.draws.take(rows)),
        )


class _Gate:
    """Validates what a source gives in one epoch, and makes batches for decoding.

    Args:
        bad: collects dropped images; None raises an error instead.
    """

    def __init__(self, recipe: Recipe, seed: int, epoch: int, bad: dict[int | str, str] | None) -> None:
        self._recipe = recipe
        self._seed = seed
        self._epoch = epoch
        self._bad = bad

    def read(self, given: Iterator[Any], wanted: Callable[[], bool]) -> _Batch:
        """Returns the next batch that has images; raises EndOfItems at the end of the source."""
        while wanted():
            try:
                each = next(given)
            except StopIteration:
                break
            if (batch := self._make(each)) is not None:
                return batch
        raise EndOfItems

    def _make(self, given: object) -> _Batch | None:
        images, ids, columns = _check(given)
        draws = Draws(self._seed, self._epoch, ids)
        files, params, causes = draw_images(self._recipe, images, draws)
        batch = self.leave_out(_Batch(columns, ids, files, params, way_of(self._recipe, draws)), causes)
        if batch is None:
            return None
        cut, params = cut_copies(batch.images, batch.params)
        return replace(batch, images=cut, params=params)

    def leave_out(self, batch: _Batch, causes: Mapping[int, str]) -> _Batch | None:
        """Drops the rows of bad images; returns None if no row is left. Raises DataError if bad images are errors."""
        for row, cause in sorted(causes.items()):
            given = batch.columns[0][row]
            sample = str(given) if isinstance(given, str) else int(given)
            if self._bad is None:
                raise DataError(
                    f"image {sample!r} cannot be decoded: {cause}. "
                    f'Repair it, or pass on_error="skip" to go on without it'
                )
            if sample not in self._bad:
                self._bad[sample] = cause
                _log.warning("bad image left out: %r: %s", sample, cause)
        rows = np.setdiff1d(np.arange(len(batch.ids)), list(causes))
        return None if not len(rows) else batch.take(rows) if causes else batch


def _check(given: object) -> tuple[list[Any], NDArray[np.int64], list[Any]]:
    """Returns (images, ids as numbers, columns) of a source's batch; columns are the ids and all others, unchanged."""
    if not isinstance(given, (tuple, list)) or len(given) < 2:
        raise ConfigError(
            f"the source gave {describe(given)}: allowed are tuples (images, ids, *others), each with an entry for "
            f"each image"
        )
    images, *columns = given
    if (count := _rows(images)) is None:
        raise ConfigError(f"images: the source gave {describe(images)}: allowed is a list of images")
    names = ["ids", *(f"the entry {number} after the images and ids" for number in range(len(columns) - 1))]
    for name, column in zip(names, columns, strict=True):
        if _rows(column) != count:
            raise ConfigError(
                f"{name}: the source gave {describe(column)} for {count} images: allowed is a list, tuple, array "
                f"or tensor with an entry for each image"
            )
    named = all(isinstance(each, str) for each in columns[0])  # also without images
    ids = np.array([_hash(each) for each in columns[0]], np.int64) if named else np.asarray(columns[0])
    if not (ids.dtype.kind in "iu" and ids.ndim == 1 and ids.min(initial=0) >= 0 and ids.max(initial=0) < 2**63):
        raise ConfigError(
            f"ids: the source gave {describe(columns[0])}: allowed is an integer in [0, 2**63) for each image, or a "
            f"string for each"
        )
    images = list(images)
    if 0 < (files := sum(isinstance(image, (bytes, bytearray)) for image in images)) < len(images):
        raise ConfigError(f"{files} of {len(images)} images are bytes: allowed are all of them, or none")
    return images, ids.astype(np.int64), columns


def _rows(column: Any) -> int | None:  # noqa: ANN401
    """Counts the entries of a list, tuple, array or tensor; returns None for anything else."""
    if isinstance(column, (str, bytes, bytearray, Mapping)) or not hasattr(column, "__getitem__"):
        return None
    return None if getattr(column, "shape", None) == () else len(column)


def _hash(name: str) -> int:
    """Returns the first 63 bits of a name's BLAKE2b hash."""
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest(), "big") >> 1


def _entries(column: Any, rows: NDArray[np.int64]) -> Any:  # noqa: ANN401
    return [column[row] for row in rows.tolist()] if isinstance(column, (list, tuple)) else column[rows]
