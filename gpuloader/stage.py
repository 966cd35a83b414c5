"""`Stage`: runs a recipe on batches from any iterable, such as a webdataset pipeline or torch's `DataLoader`.

_Gate < Ahead < Decode [< Own < Decode]
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpuloader.chain.batch import Batch
from gpuloader.chain.decoding import decoding
from gpuloader.chain.given import given_batch, prepare_images
from gpuloader.chain.link import Ahead, Causes, Wanted
from gpuloader.chain.own import OwnCodeTargets
from gpuloader.chain.settings import Decoder
from gpuloader.errors import ConfigError, DataError, LoaderError, describe
from gpuloader.loading.argument_types import AnyDecoder, AnyDevice
from gpuloader.loading.arguments import as_value_or_default, resolve_own_device
from gpuloader.loading.delivery import finish
from gpuloader.loading.iteration import CloseableMixin
from gpuloader.loading.world import World
from gpuloader.plan import Draws, check_epoch, check_seed
from gpuloader.recipe import AnyPreset, Recipe, load_preset

_log = logging.getLogger("gpuloader")


class Stage(CloseableMixin):
    """A pipeline that decodes and transforms the batches of any iterable, as a `GPULoader` does for shards.

    `for images, ids, *others in stage(source, epoch=epoch)` reads the source ahead in a thread, and decodes ahead. The
    pipeline is kept between loops; `close` or `with` frees it.
    An image's random parameters depend only on `seed`, `epoch` and its id. A `GPULoader` with the same seed gives the
    same pixels for the sample with this number.

    Args:
        preset: a recipe, as for a `GPULoader`. It must not have `mix`, or transforms that draw by boxes.
            `oversampling` works without smaller copies, which only loaders read.
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
        self._device_id = device = resolve_own_device(device_id)
        settings = as_value_or_default(Decoder, "decoder", decoder)
        self._decoder = decoder = settings.on(device, World.of_process().cores)
        wanted = Wanted()
        oversampling = recipe.oversampling_on(device)
        prepares = partial(prepare_images, oversampling=oversampling, num_threads=decoder.num_threads or 1)
        gate = _Gate(recipe, self._seed, self.bad if on_error == "skip" else None, wanted, prepares)
        ahead = decoder.prefetch + 1 if oversampling is None else 1  # arrays need more memory than files
        self._ahead = Ahead(gate, ahead, wanted, "gpuloader-stage")
        self._chain = decoding(self._ahead, recipe, decoder, device, OwnCodeTargets())
        self._loop: object | None = None

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
        self._loop = None
        self._chain.close()

    def _iterate(self, batches: Iterator[Any], epoch: int) -> Iterator[tuple[Any, ...]]:
        self._loop = loop = object()
        try:
            self._chain.seek((batches, epoch))
            while (batch := self._chain.next()) is not None:
                yield finish(self._recipe, list(batch.views)), *_columns(batch)
                if self._loop is not loop:
                    raise LoaderError("this loop is over: a later one over this Stage has begun, or it was closed")
        except GeneratorExit:
            raise
        except BaseException:
            if self._loop is loop:
                self._chain.close()
            raise
        finally:
            if self._loop is loop:
                self._ahead.close()


class _Gate:
    """The head of a chain: validates what a source gives in one epoch.

    Args:
        bad: collects dropped images; None raises an error instead.
        wanted: says whether a batch is still wanted.
        prepares: see `prepare_images`.
    """

    def __init__(
        self,
        recipe: Recipe,
        seed: int,
        bad: dict[int | str, str] | None,
        wanted: Wanted,
        prepares: Callable[[Batch], Batch],
    ) -> None:
        self._recipe, self._seed, self._bad, self._wanted, self._prepares = recipe, seed, bad, wanted, prepares
        self._source: Iterator[Any] = iter(())
        self._epoch = 0

    def seek(self, place: tuple[Iterator[Any], int]) -> None:
        self._source, self._epoch = place

    def next(self) -> Batch | None:
        """Returns the next batch that has images."""
        while self._wanted():
            try:
                given = next(self._source)
            except StopIteration:
                break
            images, ids, columns = _check(given)
            batch = given_batch(self._recipe, images, Draws(self._seed, self._epoch, ids))
            batch = replace(batch, step=replace(batch.step, given=columns))
            left = self.again(batch, {row: cause for row, cause in enumerate(batch.causes) if cause is not None})
            if left is not None:
                return self._prepares(left)
        return None

    def again(self, batch: Batch, causes: Causes) -> Batch | None:
        """Drops the rows of bad images; returns None if no row is left. Raises DataError if bad images are errors."""
        for row, cause in sorted(causes.items()):
            given = batch.step.given[0][int(batch.planned[row])]
            sample = str(given) if isinstance(given, str) else int(given)
            if self._bad is None:
                raise DataError(
                    f"image {sample!r} cannot be decoded: {cause}. "
                    f'Repair it, or pass on_error="skip" to go on without it'
                )
            if sample not in self._bad:
                self._bad[sample] = cause
                _log.warning("bad image left out: %r: %s", sample, cause)
        rows = np.setdiff1d(np.arange(len(batch)), list(causes))
        return None if not len(rows) else _left(batch, rows) if causes else batch

    def close(self) -> None:
        self._source = iter(())


def _left(batch: Batch, rows: NDArray[np.int64]) -> Batch:
    return replace(batch.take(rows), rows=slice(0, len(rows)))


def _columns(batch: Batch) -> list[Any]:
    """Returns the ids and the others as the source gave them, without the entries of dropped images."""
    given = batch.step.given
    return list(given) if len(batch) == batch.step.count else [_entries(column, batch.planned) for column in given]


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
