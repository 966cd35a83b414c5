"""Finds the images that DALI cannot decode as a whole: damage anywhere in an image shows here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.data_node import DataNode

from gpuloader.pipelines.blame import good_jpeg
from gpuloader.pipelines.pipeline_runner import PipelineRunner
from gpuloader.pipelines.triage import WITHOUT_ENGINES, check_machine, find_failing

_REDUCED_SIDE = 32


class WholeDecoder:
    """A decoder of all pixels of images that passed validation.

    Args:
        batch_size: the most images at a time.
        num_threads: the number of decoding threads.
        device_id: a GPU; None for the CPU.
        reduces: whether it also makes each image small, so that images can be compared.

    Attributes:
        reduced: if it `reduces`, row -> (32, 32, 3) uint8, RGB, of the images that `failures` last decoded.
    """

    def __init__(self, batch_size: int, num_threads: int, device_id: int | None, reduces: bool = False) -> None:
        self._device_id, self._reduces = device_id, reduces
        self.reduced: dict[int, NDArray[np.uint8]] = {}
        self._batch: list[list[NDArray[np.uint8]]] = []
        device: Literal["cpu", "mixed"] = "cpu" if device_id is None else "mixed"
        options = {"batch_size": batch_size, "num_threads": num_threads, "device_id": device_id}
        self._running = PipelineRunner(partial(_graph, self._batch, device, reduces, **options))

    def failures(self, images: Sequence[NDArray[np.uint8]], message: str = "") -> dict[int, str]:
        """Returns the rows that fail, with the causes.

        Args:
            message: DALI's error, if these images failed as a batch.

        Raises:
            DeviceError: a good JPEG fails, too.
        """

        each, self.reduced = [*images, good_jpeg()], {}

        def decode(rows: Sequence[int]) -> None:
            decoded = self._run([each[row] for row in rows])
            if self._reduces:
                self.reduced |= zip(rows, np.array(decoded.as_cpu().as_tensor()))

        failing = find_failing(len(images), decode, message)
        self.reduced.pop(len(images), None)  # the good JPEG
        return failing

    def check_machine(self) -> None:
        """Decodes a good JPEG.

        Raises:
            DeviceError: this fails, so the images are not the cause.
        """
        check_machine(lambda: self._run([good_jpeg()]))

    def _run(self, images: Sequence[NDArray[np.uint8]]) -> Any:  # noqa: ANN401 - DALI's list of tensors
        self._batch[:] = [list(images)]
        if len(images) == 1 and self._device_id is not None:
            self._running.drop()
        return self._running.next()[0]


@pipeline_def(prefetch_queue_depth=1, seed=0)  # type: ignore[untyped-decorator]
def _graph(batch: list[list[NDArray[np.uint8]]], device: Literal["cpu", "mixed"], reduces: bool) -> DataNode:
    encoded = fn.external_source(lambda: batch[0], dtype=types.UINT8, ndim=1, no_copy=True)
    decoded = fn.decoders.image(
        encoded, device=device, output_type=types.RGB, adjust_orientation=False, **WITHOUT_ENGINES
    )
    return fn.resize(decoded, size=[_REDUCED_SIDE, _REDUCED_SIDE]) if reduces else decoded
