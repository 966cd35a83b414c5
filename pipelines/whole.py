"""Decodes whole images with DALI, or finds those that it cannot decode: damage anywhere in an image shows here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import Pipeline

from gpuloader.helpers.forking import at_fork
from gpuloader.internals.dali import is_decode_failure, leak_after_fork
from gpuloader.pipelines.blame import good_jpeg, machine_error
from gpuloader.pipelines.triage import WITHOUT_ENGINES, cause_of


class WholeDecoder:
    """Decodes all pixels of images that the gate accepted.

    Args:
        batch_size: the most images at a time.
        num_threads: the number of decoding threads.
        device_id: a GPU; None for the CPU.
    """

    def __init__(self, batch_size: int, num_threads: int, device_id: int | None) -> None:
        self._arguments = {"batch_size": batch_size, "num_threads": num_threads, "device_id": device_id}
        self._on_cpu = device_id is None
        self._pipeline: Pipeline | None = None
        at_fork(self, WholeDecoder._leave_to_the_parent)

    def decode(self, images: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]] | dict[int, str]:
        """Returns the images on the CPU, uint8 (height, width, 3) each; or the rows that fail, with DALI's cause."""
        outcome = self._run(images)
        if isinstance(outcome, str):
            return self.failures(images)
        decoded = outcome[0].as_cpu()
        return [np.array(decoded.at(row)) for row in range(len(images))]

    def failures(self, images: Sequence[NDArray[np.uint8]]) -> dict[int, str]:
        """Returns the rows that fail, with DALI's cause.

        DALI's error loses the batch and does not always name the image, so a failed batch is halved and tried again. On
        a GPU its images are tried one by one, each in a new pipeline, because nvJPEG's decoders may keep data of the
        image before.

        Raises:
            DeviceError: a good JPEG fails, too.
        """
        message = self._run(images) if images else None
        if not isinstance(message, str):
            return {}
        self.check_machine()
        if len(images) == 1:
            return {0: cause_of(message)}
        size = (len(images) + 1) // 2 if self._on_cpu else 1
        causes: dict[int, str] = {}
        for first in range(0, len(images), size):
            part = self.failures(images[first : first + size])
            causes.update((first + row, cause) for row, cause in part.items())
        return causes

    def check_machine(self) -> None:
        """Decodes a good JPEG.

        Raises:
            DeviceError: this fails, so the images are not the cause.
        """
        message = self._run([good_jpeg()])
        if isinstance(message, str):
            raise machine_error(message)

    def _run(self, images: Sequence[NDArray[np.uint8]]) -> Any:  # noqa: ANN401 - DALI's outputs, or its error message
        if self._pipeline is None or (len(images) == 1 and not self._on_cpu):
            self._pipeline = _graph(self._on_cpu, **self._arguments)
        try:
            return self._pipeline.run(encoded=list(images))
        except RuntimeError as error:
            self._pipeline = None  # a failed pipeline cannot be used again
            if not is_decode_failure(str(error)):
                raise
            return str(error)

    def _leave_to_the_parent(self) -> None:
        """Releases the parent's pipeline in a forked child, which makes its own."""
        if self._pipeline is not None:
            leak_after_fork(self._pipeline)
        self._pipeline = None


@pipeline_def(prefetch_queue_depth=1, seed=0)  # type: ignore[untyped-decorator]
def _graph(on_cpu: bool) -> tuple[DataNode, DataNode]:
    encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, no_copy=True)
    device = "cpu" if on_cpu else "mixed"
    image = fn.decoders.image(
        encoded, device=device, output_type=types.RGB, adjust_orientation=False, **WITHOUT_ENGINES
    )
    return image, image.shape()
