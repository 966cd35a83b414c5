"""What the gate and DALI make of mutated images: each batch is decoded twice, and must come to the same."""

from __future__ import annotations

import ctypes
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fuzzing.jobs import BATCH, OUTCOMES, Job, Result
from fuzzing.material import IMAGES, material, shades
from gpuloader.images.gate import admit
from gpuloader.images.limits import DEFAULT_MAX_PIXELS, Admitted, Refused
from gpuloader.pipelines import Running, UndecodableError, find_undecodable, recipe_pipeline
from gpuloader.plan import Draws
from gpuloader.recipe import Drawn, Recipe, load_preset

_SIZE = 32
_PERTURB = -6  # mallopt(3), M_PERTURB: which byte fills what malloc gives and free gets

Batch: TypeAlias = tuple[list[NDArray[np.uint8]], Drawn]
"""Encoded images, and what a recipe draws for them."""


def admit_any(image: bytes) -> Admitted:
    """The gate, for all formats."""
    return admit(np.frombuffer(image, np.uint8), DEFAULT_MAX_PIXELS)


class Decoder:
    """The gate, and the graphs of two recipes: whole images, and random windows.

    Args:
        admit: the gate.
    """

    def __init__(self, admit: Callable[[bytes], Admitted] = admit_any) -> None:
        memories = [_Memory(byte) for byte in (0x11, 0xEE)]
        recipes = (
            load_preset("raw_uint8", {"Resize": {"size": [_SIZE, _SIZE]}, "CenterCrop": {"size": _SIZE}}),
            load_preset("imagenet_train", {"RandomResizedCrop": {"size": _SIZE}}),
        )
        self._splits = [[_Split(recipe, *each, admit) for each in zip(shades(), memories)] for recipe in recipes]

    def warm_up(self) -> None:
        """Loads what the first batches would load."""
        for kind in IMAGES:
            for recipe in range(len(self._splits)):
                self.examine(Job(kind, range(BATCH), 0, recipe), dict(enumerate(material(kind)[:4])))

    def examine(self, job: Job, mutants: Mapping[int, bytes]) -> Result:
        """Gate, decode, and triage where that fails: all in one batch, then backwards in two."""
        first, second = self._splits[job.recipe]
        numbers = list(mutants)
        half = (len(numbers) + 1) // 2
        once = first.decode(mutants, [numbers], check_triage=True)
        return compare(once, second.decode(mutants, [numbers[:half][::-1], numbers[half:][::-1]]))


def compare(once: Mapping[int, str], again: Mapping[int, str]) -> Result:
    """The result of a batch that was decoded twice: number -> "refused", "replaced", or a digest of the pixels."""
    differing = [number for number in once if once[number] != again[number]]
    same = (once[number] for number in once.keys() - differing)
    outcomes = Counter(outcome if outcome in OUTCOMES else "accepted" for outcome in same)
    if not differing:
        return Result(outcomes)
    some = ", ".join(f"{number}: {once[number]} and {again[number]}" for number in differing[:5])
    return Result(outcomes, "split", f"other pixels or verdicts in other batches ({some})", differing)


class _Split:
    """A recipe's pipeline, kept until a batch fails, as in the loader.

    Args:
        shade: an image of one colour; a batch of it is decoded before each batch, so that its pixels are in the memory
            that the pipeline keeps.
        memory: what decoders find in new memory.
    """

    def __init__(self, recipe: Recipe, shade: bytes, memory: _Memory, admit: Callable[[bytes], Admitted]) -> None:
        self._recipe, self._memory, self._admit = recipe, memory, admit
        self._shades = [admit_any(shade)] * BATCH
        self._batch: list[Batch] = []
        self._running = Running(
            partial(
                recipe_pipeline,
                preset=recipe,
                source=partial(self._batch.__getitem__, 0),
                batch_size=BATCH,
                num_threads=2,
                prefetch_queue_depth=1,
            )
        )

    def decode(
        self, mutants: Mapping[int, bytes], batches: Sequence[Sequence[int]], check_triage: bool = False
    ) -> dict[int, str]:
        """Number -> "refused", "replaced", or a digest of the pixels; an error if triage and the graph disagree."""
        outcomes = dict.fromkeys(mutants, "refused")
        with self._memory.filled():
            for numbers in batches:
                images = {}
                for number in numbers:
                    with suppress(Refused):
                        images[number] = self._admit(mutants[number])
                if images:
                    outcomes |= self._decode_batch(images, check_triage)
        return outcomes

    def _decode_batch(self, images: Mapping[int, Admitted], check_triage: bool) -> dict[int, str]:
        batch = self._draw(list(images.values()), list(images))
        bad: set[int] = set()
        try:
            pixels = self._run(batch)
        except UndecodableError as error:
            bad = self._find_bad(batch, str(error))
            good = [row for row in range(len(images)) if row not in bad]
            pixels = self._run(_take(batch, good)) if good else np.empty(0)
            if check_triage and any(self._decodes(_take(batch, [row])) for row in bad):
                raise RuntimeError("triage refuses an image that the graph decodes") from None
        digests = map(_digest, pixels)
        return {number: "replaced" if row in bad else next(digests) for row, number in enumerate(images)}

    def _find_bad(self, batch: Batch, message: str) -> set[int]:
        """The rows that triage refuses, after an error of the graph."""
        bad = set(find_undecodable(self._recipe, *batch, device_id=None, message=message))
        if not bad:
            raise RuntimeError(f"triage decodes every image of a batch that fails: {message}") from None
        return bad

    def _draw(self, images: Sequence[Admitted], numbers: Sequence[int]) -> Batch:
        files, sizes = zip(*images)
        return list(files), self._recipe.draw(Draws(0, 0, np.array(numbers)), np.array(sizes))

    def _decodes(self, batch: Batch) -> bool:
        try:
            self._run(batch)
        except UndecodableError:
            return False
        return True

    def _run(self, batch: Batch) -> NDArray[Any]:
        """The pixels of one batch; every image must come out."""
        rows = len(batch[0])
        self._decode(self._draw(self._shades[:rows], range(rows)))
        pixels = self._decode(batch)
        if len(pixels) != rows:
            raise AssertionError(f"{len(pixels)} images out of {rows}")
        return pixels

    def _decode(self, batch: Batch) -> NDArray[Any]:
        self._batch[:] = [batch]
        [output] = self._running.next()
        return np.array(output.as_array())


def _take(batch: Batch, rows: list[int]) -> Batch:
    """The images of some rows, and what was drawn for them."""
    files, drawn = batch
    return [files[row] for row in rows], drawn.take(rows)


def _digest(pixels: NDArray[Any]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(pixels).view(np.uint8).data, digest_size=8).hexdigest()


class _Memory:
    """What decoders find in new memory: an image of memory that no decoder wrote has other pixels for each byte."""

    def __init__(self, byte: int) -> None:
        self._byte = byte

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Within, what malloc gives is full of the byte."""
        set_option = ctypes.CDLL(None).mallopt
        set_option(_PERTURB, self._byte)
        try:
            yield
        finally:
            set_option(_PERTURB, 0)
