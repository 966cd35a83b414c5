"""What the gate and DALI make of mutated images: each batch is decoded twice, and must come to the same."""

from __future__ import annotations

import ctypes
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from nvidia.dali.pipeline import Pipeline

from fuzzing.jobs import BATCH, Job, Result
from fuzzing.material import IMAGES, material, shades
from gpuloader.helpers.image_limits import DEFAULT_MAX_PIXELS
from gpuloader.internals.dali import is_decode_failure
from gpuloader.pipelines import admit, find_undecodable, recipe_pipeline
from gpuloader.plan import Draws
from gpuloader.recipe import Preset, load_preset

_SIZE = 32
_REPLACED = "replaced"
_PERTURB = -6  # mallopt(3), M_PERTURB: which byte fills what malloc gives and free gets
_BYTES = (0x11, 0xEE)

Admitted: TypeAlias = tuple[NDArray[np.uint8], tuple[int, int]]
"""What `admit` returns: the file that DALI gets, and its height and width."""
Batch: TypeAlias = tuple[list[NDArray[np.uint8]], dict[str, NDArray[Any]]]
"""Encoded images, and what a recipe drew for them."""


class Decoder:
    """The gate, and the graphs of two recipes: whole images, and random windows."""

    def __init__(self) -> None:
        self._recipes = (
            load_preset("raw_uint8", {"Resize": {"size": [_SIZE, _SIZE]}, "CenterCrop": {"size": _SIZE}}),
            load_preset("imagenet_train", {"RandomResizedCrop": {"size": _SIZE}}),
        )
        self._splits = [[_Split(recipe, *each) for each in zip(shades(), _BYTES)] for recipe in self._recipes]

    def warm_up(self) -> None:
        """Loads what the first batches would load."""
        for kind in IMAGES:
            for recipe in range(len(self._recipes)):
                self.examine(Job(kind, range(BATCH), 0, recipe), dict(enumerate(material(kind)[:4])))

    def examine(self, job: Job, mutants: Mapping[int, bytes]) -> Result:
        """Gate, decode, and triage where that fails."""
        admitted = {number: _admit(image) for number, image in mutants.items()}
        images = {number: image for number, image in admitted.items() if not isinstance(image, str)}
        result = self.decode_twice(images, job.recipe)
        return result._replace(outcomes=result.outcomes + Counter({"refused": len(mutants) - len(images)}))

    def decode_twice(self, images: Mapping[int, Admitted], recipe: int) -> Result:
        """Decodes images that passed the gate in one batch, then backwards in two, and compares."""
        first, second = self._splits[recipe]
        numbers = list(images)
        half = (len(numbers) + 1) // 2
        once = first.decode(images, [numbers], check_triage=True)
        return compare(once, second.decode(images, [numbers[:half][::-1], numbers[half:][::-1]]))


def _admit(image: bytes) -> Admitted | str:
    return admit(np.frombuffer(image, np.uint8), DEFAULT_MAX_PIXELS, tuple(IMAGES))


def compare(once: Mapping[int, str], again: Mapping[int, str]) -> Result:
    """The result of a batch that was decoded twice: number -> a digest of its pixels, or "replaced"."""
    differing = [number for number in once if once[number] != again[number]]
    replaced = sum(outcome == _REPLACED for number, outcome in once.items() if number not in differing)
    outcomes = Counter({"replaced": replaced, "accepted": len(once) - len(differing) - replaced})
    if not differing:
        return Result(outcomes)
    some = ", ".join(f"{number}: {once[number]} and {again[number]}" for number in differing[:5])
    return Result(outcomes, "split", f"other pixels or verdicts in other batches ({some})", differing)


class _Split:
    """A recipe's pipeline, kept until a batch fails, as in the loader.

    Args:
        shade: an image of one colour; a batch of it is decoded before each batch, so that its pixels are in the memory
            that the pipeline keeps.
        byte: what fills the memory that the decoders get from malloc.
    """

    def __init__(self, recipe: Preset, shade: bytes, byte: int) -> None:
        self._recipe, self._byte = recipe, byte
        admitted = _admit(shade)
        assert not isinstance(admitted, str)
        self._shades = [admitted] * BATCH
        self._pipeline: Pipeline | None = None
        self._batch: tuple[Any, ...] = ()

    def decode(
        self, images: Mapping[int, Admitted], batches: Sequence[Sequence[int]], check_triage: bool = False
    ) -> dict[int, str]:
        """Number -> a digest of its pixels, or "replaced"; an error if triage and the graph disagree."""
        outcomes = {}
        with _filling_memory(self._byte):
            for numbers in filter(None, batches):
                drawn = self._draw([images[number] for number in numbers], numbers)
                bad: set[int] = set()
                try:
                    pixels = self._run(*drawn)
                except RuntimeError as error:
                    bad = self._find_bad(drawn, error)
                    good = [row for row in range(len(numbers)) if row not in bad]
                    pixels = self._run(*_take(drawn, good)) if good else np.empty(0)
                    if check_triage and any(self._decodes(_take(drawn, [row])) for row in bad):
                        raise RuntimeError("triage refuses an image that the graph decodes") from None
                digests = map(_digest, pixels)
                outcomes |= {number: _REPLACED if row in bad else next(digests) for row, number in enumerate(numbers)}
        return outcomes

    def _find_bad(self, batch: Batch, error: RuntimeError) -> set[int]:
        """The rows that triage refuses, after an error of the graph."""
        if not is_decode_failure(str(error)):
            raise error
        bad = set(find_undecodable(self._recipe, *batch, device_id=None))
        if not bad:
            raise RuntimeError(f"triage decodes every image of a batch that fails: {error}") from None
        return bad

    def _draw(self, images: Sequence[Admitted], numbers: Sequence[int]) -> Batch:
        files, sizes = zip(*images)
        return list(files), self._recipe.arrays(Draws(0, 0, np.array(numbers)), *np.array(sizes).T)

    def _decodes(self, batch: Batch) -> bool:
        try:
            self._run(*batch)
        except RuntimeError:
            return False
        return True

    def _run(self, files: list[NDArray[np.uint8]], arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The pixels of one batch; every image must come out."""
        rows = len(files)
        self._run_pipeline(*self._draw(self._shades[:rows], range(rows)))
        pixels = self._run_pipeline(files, arrays)
        if len(pixels) != rows:
            raise AssertionError(f"{len(pixels)} images out of {rows}")
        return pixels

    def _run_pipeline(self, files: list[NDArray[np.uint8]], arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        if self._pipeline is None:
            self._pipeline = recipe_pipeline(
                preset=self._recipe,
                source=lambda: self._batch,
                batch_size=BATCH,
                num_threads=2,
                prefetch_queue_depth=1,
            )
        self._batch = (files, *arrays.values())
        try:
            [output] = self._pipeline.run()
        except RuntimeError:
            self._pipeline = None  # a failed pipeline cannot be used again
            raise
        return np.array(output.as_array())


def _take(batch: Batch, rows: list[int]) -> Batch:
    """The images of some rows, and what was drawn for them."""
    files, arrays = batch
    return [files[row] for row in rows], {name: array[rows] for name, array in arrays.items()}


def _digest(pixels: NDArray[Any]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(pixels).view(np.uint8).data, digest_size=8).hexdigest()


@contextmanager
def _filling_memory(byte: int) -> Iterator[None]:
    """Within, memory from malloc has other bytes than zeros: an image of memory that was never written shows it."""
    set_option = ctypes.CDLL(None).mallopt
    set_option(_PERTURB, byte)
    try:
        yield
    finally:
        set_option(_PERTURB, 0)
