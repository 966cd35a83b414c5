"""Finds the images that DALI cannot decode as a whole: damage anywhere in an image shows here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.data_node import DataNode

from gpuloader.pipelines.blame import good_jpeg
from gpuloader.pipelines.running import Running
from gpuloader.pipelines.triage import WITHOUT_ENGINES, check_machine, find_failing


class WholeDecoder:
    """Decodes all pixels of images that the gate accepted.

    Args:
        batch_size: the most images at a time.
        num_threads: the number of decoding threads.
        device_id: a GPU; None for the CPU.
    """

    def __init__(self, batch_size: int, num_threads: int, device_id: int | None) -> None:
        self._device_id = device_id
        self._batch: list[list[NDArray[np.uint8]]] = []
        device: Literal["cpu", "mixed"] = "cpu" if device_id is None else "mixed"
        options = {"batch_size": batch_size, "num_threads": num_threads, "device_id": device_id}
        self._running = Running(partial(_graph, self._batch, device, **options))

    def failures(self, images: Sequence[NDArray[np.uint8]], message: str = "") -> dict[int, str]:
        """Returns the rows that fail, with the causes.

        Args:
            message: DALI's error, if these images failed as a batch.

        Raises:
            DeviceError: a good JPEG fails, too.
        """

        each = [*images, good_jpeg()]
        return find_failing(len(images), lambda rows: self._run([each[row] for row in rows]), message)

    def check_machine(self) -> None:
        """Decodes a good JPEG.

        Raises:
            DeviceError: this fails, so the images are not the cause.
        """
        check_machine(lambda: self._run([good_jpeg()]))

    def _run(self, images: Sequence[NDArray[np.uint8]]) -> None:
        self._batch[:] = [list(images)]
        if len(images) == 1 and self._device_id is not None:
            self._running.drop()
        self._running.next()


@pipeline_def(prefetch_queue_depth=1, seed=0)  # type: ignore[untyped-decorator]
def _graph(batch: list[list[NDArray[np.uint8]]], device: Literal["cpu", "mixed"]) -> DataNode:
    encoded = fn.external_source(lambda: batch[0], dtype=types.UINT8, ndim=1, no_copy=True)
    return fn.decoders.image(encoded, device=device, output_type=types.RGB, adjust_orientation=False, **WITHOUT_ENGINES)
