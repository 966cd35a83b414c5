"""Decodes in a separate process, so that an image that crashes a decoder does not end the check.

The process gets batches on stdin: a line of JSON with the images' sizes in bytes, then the images one after the other.
It answers each with a line of JSON on stdout: {"bad": {row: cause}}, or {"error": message} if something other than an
image is the cause. It sends {"bad": {}} when it is ready. If CUDA can no longer be used in it, it ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DeviceError, LoaderError
from gpuloader.helpers.child_processes import Child
from gpuloader.images.arrays import admit_array
from gpuloader.images.limits import Refused
from gpuloader.internals.dali import is_cuda_failure

_DECODED_PIXELS = 64 << 20
MOST_ENDS = 50
_CUDA_FAILED = 70


class DecoderProcess:
    """The gate and the decoder of training, for whole images of all formats, with the most pixels that a recipe allows.

    A context manager; leaving it ends the process.

    Args:
        batch_size: the most images at a time.
        num_threads: the threads that decode.
        device_id: a GPU; None for the CPU.
    """

    def __init__(self, batch_size: int, num_threads: int, device_id: int | None) -> None:
        settings = json.dumps([batch_size, num_threads, device_id])
        self._child = Child("decodes", LoaderError, "-m", __name__, settings)
        self._ends = 0

    def bad(self, images: Sequence[NDArray[np.uint8]]) -> dict[int, str]:
        """Returns the rows that cannot be decoded, with the cause.

        A batch that ends the process is halved. A single image that ends it is tried once more, in a new process,
        because an image before it may have done the damage.

        Raises:
            LoaderError: something other than an image is the cause.
        """
        answer = self._ask(images)
        if answer is not None:
            return answer
        if len(images) == 1:
            answer = self._ask(images)
            return {0: f"decoding it ends the process ({self._end})"} if answer is None else answer
        middle = len(images) // 2
        first = self.bad(images[:middle])
        return first | {middle + row: cause for row, cause in self.bad(images[middle:]).items()}

    def _ask(self, images: Sequence[NDArray[np.uint8]]) -> dict[int, str] | None:
        """Returns the process's answer; None if the images ended the process."""
        answer = self._child.ask([len(image) for image in images], *images)
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
        return {int(row): cause for row, cause in answer["bad"].items()}

    @property
    def _end(self) -> str:
        return "an error of CUDA" if self._child.end == f"exit status {_CUDA_FAILED}" else self._child.end

    def __enter__(self) -> DecoderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close()


def runs(costs: Sequence[int], most: int, most_cost: int) -> Iterator[range]:
    """Yields all items, in runs of at most `most` neighbours and, unless a run is one item, of at most `most_cost`."""
    start = total = 0
    for item, cost in enumerate(costs):
        if item > start and (item - start == most or total + cost > most_cost):
            yield range(start, item)
            start, total = item, 0
        total += cost
    if start < len(costs):
        yield range(start, len(costs))


def _serve(batch_size: int, num_threads: int, device_id: int | None) -> None:
    from gpuloader.images.gate import admit
    from gpuloader.pipelines import WholeDecoder

    def bad(images: Sequence[NDArray[np.uint8]]) -> dict[int, str]:
        causes: dict[int, str] = {}
        good: list[tuple[int, NDArray[np.uint8], tuple[int, int]]] = []
        for row, image in enumerate(images):
            with suppress(Refused):
                admit_array(image)
                continue
            try:
                good.append((row, *admit(image)))
            except Refused as refused:
                causes[row] = refused.cause
        for run in runs([height * width for _, _, (height, width) in good], batch_size, _DECODED_PIXELS):
            failures = decoder.failures([good[number][1] for number in run])
            causes |= {good[run[number]][0]: cause for number, cause in failures.items()}
        return causes

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    decoder = WholeDecoder(batch_size, num_threads, device_id)
    try:
        decoder.check_machine()
    except RuntimeError as error:
        print(json.dumps({"error": str(error)}), file=answers)
        return
    print(json.dumps({"bad": {}}), file=answers)
    # C libraries write a line or more for each bad image, without saying which.
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    while line := sys.stdin.buffer.readline():
        images = [np.frombuffer(sys.stdin.buffer.read(size), np.uint8) for size in json.loads(line)]
        try:
            print(json.dumps({"bad": bad(images)}), file=answers)
        except RuntimeError as error:
            if isinstance(error, DeviceError) or is_cuda_failure(str(error)):
                os._exit(_CUDA_FAILED)  # an image broke CUDA here; cleaning up would fail, too
            print(json.dumps({"error": str(error)}), file=answers)


if __name__ == "__main__":
    _serve(*json.loads(sys.argv[1]))
