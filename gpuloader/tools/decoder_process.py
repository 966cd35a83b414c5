"""Decodes in a separate process, so that an image that crashes a decoder does not end the check.

The process gets batches on stdin: a line of JSON with [side, bytes] for each image of each sample, then the images one
after the other. It answers each with a line of JSON on stdout: {"bad": [[row, side, cause], ...]}, or
{"error": message} if something other than an image is the cause. It sends {"bad": []} when it is ready. The process
ends when it can no longer use CUDA.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.child_processes import ChildProcess
from gpuloader.base.dali import is_cuda_failure
from gpuloader.errors import DeviceError, LoaderError
from gpuloader.images.arrays import admit_array
from gpuloader.images.gate import admit_each
from gpuloader.images.limits import MAX_PIXELS, RefusalError
from gpuloader.images.mipmaps import size_of
from gpuloader.loading.parts import cut
from gpuloader.pipelines import LastStep, Trial
from gpuloader.plan import Draws
from gpuloader.recipe import Recipe
from gpuloader.recipe.crops import Resize

_DECODED_PIXELS = 64 << 20
MOST_ENDS = 50
_CUDA_FAILED = 70
_REDUCED = Recipe((Resize((32, 32)),), dtype="uint8", layout="channels_last").whole_graph
_MOST_LEVELS = 8.0  # that a mipmap may be from its picture, on average over 32 x 32 pixels; resizing makes about 1

Images: TypeAlias = Mapping[int, NDArray[np.uint8]]
"""The encoded images of a sample: the picture under 0, and mipmaps under their shorter sides in pixels."""

Causes: TypeAlias = dict[tuple[int, int], str]
"""The causes of faults, by the row of the sample and the image in it."""


class DecoderProcess(ChildProcess):
    """A process that validates and decodes whole images as training does, up to the most pixels that a recipe allows.

    Close it, which ends the process.

    Args:
        batch_size: the most images at a time.
        num_threads: the threads that decode.
        device_id: a GPU; None for the CPU.
        compares: whether mipmaps are compared with their pictures.
    """

    def __init__(self, batch_size: int, num_threads: int, device_id: int | None, compares: bool = False) -> None:
        settings = json.dumps([batch_size, num_threads, device_id, compares])
        super().__init__("decodes", LoaderError, "-m", __name__, settings)
        self._ends = 0

    def bad(self, samples: Sequence[Images]) -> Causes:
        """Returns the causes for images that cannot be decoded, and for mipmaps that do not fit their picture.

        A batch that ends the process is halved. A single image that ends it is tried once more, in a new process,
        because an image before it may have done the damage.

        Raises:
            LoaderError: something other than an image is the cause.
        """
        answer = self._answer_to(samples)
        if answer is not None:
            return answer
        middle = len(samples) // 2
        parts = [(0, samples[:middle]), (middle, samples[middle:])]
        if not middle:  # one of its images ends the process, so they are not compared
            parts = [(0, [{side: image}]) for side, image in samples[0].items()]
        if len(parts) > 1:
            bad = [(first, self.bad(part)) for first, part in parts]
            return {(first + row, side): cause for first, causes in bad for (row, side), cause in causes.items()}
        [side], answer = samples[0], self._answer_to(samples)
        return {(0, side): f"decoding it ends the process ({self._end})"} if answer is None else answer

    def _answer_to(self, samples: Sequence[Images]) -> Causes | None:
        """Returns the process's answer; None if the images ended the process."""
        sizes = [[(side, len(image)) for side, image in images.items()] for images in samples]
        answer = self.ask(sizes, *(image for images in samples for image in images.values()))
        if answer is None:
            self._ends += 1
            if self._ends > MOST_ENDS:
                raise LoaderError(
                    f"decoding ended its process {self._ends} times in a row ({self._end}): the cause is the "
                    f"installation or the machine, not the images; see `gpuloader doctor`"
                )
            return None
        if "error" in answer:
            raise LoaderError(*answer["error"].splitlines())
        self._ends = 0
        return {(row, side): cause for row, side, cause in answer["bad"]}

    @property
    def _end(self) -> str:
        return "an error of CUDA" if self.end == f"exit status {_CUDA_FAILED}" else self.end


class WholeImages:
    """Validates and decodes whole images in this process; see `DecoderProcess`."""

    def __init__(self, batch_size: int, num_threads: int, device_id: int | None, compares: bool = False) -> None:
        self._batch_size = batch_size
        last_step: LastStep = "all" if compares else "decode"
        self.trial = Trial(_REDUCED, device_id, batch_size, num_threads, last_step=last_step)

    def bad(self, samples: Sequence[Images]) -> Causes:
        """Returns the causes for images that cannot be decoded, and for mipmaps that do not fit their picture."""
        places = [(row, side) for row, images in enumerate(samples) for side in images]
        at = {place: number for number, place in enumerate(places)}
        files, sizes, causes = admit_each([image for images in samples for image in images.values()], MAX_PIXELS)
        for number in [number for number in causes if not places[number][1]]:
            with suppress(RefusalError):
                files[number], sizes[number] = admit_array(files[number])
                del causes[number]
        of_picture = [(at[row, side], at[row, 0], side) for row, side in places if side and (row, 0) in at]
        for number, picture, side in of_picture:
            (height, width), found = sizes[[picture, number]].tolist()
            needed = size_of(height, width, side)
            if causes.keys().isdisjoint((number, picture)) and tuple(found) != needed:
                text = "its header says {1}x{0} pixels, where its picture needs {3}x{2}"
                causes[number] = text.format(*found, *needed)
        good = [number for number, file in enumerate(files) if number not in causes and file.ndim == 1]
        params, reduced = _REDUCED.draw(Draws(0, 0, np.arange(len(files))), sizes), dict[int, NDArray[np.uint8]]()
        for numbers in (good[part] for part in cut(sizes[good].prod(1), _DECODED_PIXELS, 1, self._batch_size)):
            failing = self.trial.find_failing([files[number] for number in numbers], params.take(numbers))
            causes |= {numbers[row]: cause for row, cause in failing.items()}
            reduced |= {numbers[row]: pixels for row, pixels in self.trial.made.items()}
        for number, picture, _ in of_picture:
            if number in reduced and picture in reduced:
                levels = np.abs(reduced[number].astype(int) - reduced[picture]).mean()
                if levels > _MOST_LEVELS:
                    causes[number] = f"it is of another picture: at 32x32 pixels they are {levels:.0f} levels apart"
        return {places[number]: cause for number, cause in causes.items()}


def _serve(batch_size: int, num_threads: int, device_id: int | None, compares: bool) -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    whole = WholeImages(batch_size, num_threads, device_id, compares)
    try:
        whole.trial.check_machine()
    except RuntimeError as error:
        print(json.dumps({"error": str(error)}), file=answers)
        return
    print(json.dumps({"bad": []}), file=answers)
    # C libraries write a line or more for each bad image, without saying which.
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    while line := sys.stdin.buffer.readline():
        samples = [
            {side: np.frombuffer(sys.stdin.buffer.read(size), np.uint8) for side, size in images}
            for images in json.loads(line)
        ]
        try:
            print(json.dumps({"bad": [(*place, cause) for place, cause in whole.bad(samples).items()]}), file=answers)
        except RuntimeError as error:
            if isinstance(error, DeviceError) or is_cuda_failure(str(error)):
                os._exit(_CUDA_FAILED)  # an image broke CUDA here; cleaning up would fail, too
            print(json.dumps({"error": str(error)}), file=answers)


if __name__ == "__main__":
    _serve(*json.loads(sys.argv[1]))
