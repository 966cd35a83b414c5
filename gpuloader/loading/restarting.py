"""`RestartingBatches`: decoded batches at any place; after an error, a new pipeline begins."""

from __future__ import annotations

import torch

from gpuloader.errors import DeviceError
from gpuloader.internals.dali import is_out_of_memory
from gpuloader.loading.decoding import DecodedBatches
from gpuloader.loading.memory import explain_lack_of_memory
from gpuloader.loading.quarantine import Quarantine
from gpuloader.loading.reader import EncodedBatch
from gpuloader.loading.run import Run
from gpuloader.plan import Cursor


class RestartingBatches:
    """Decoded batches, one after the other; after an error, they begin again with a new pipeline.

    Args:
        quarantine: the bad images of the batches are added to it.
    """

    def __init__(self, run: Run, quarantine: Quarantine) -> None:
        self._run = run
        self._quarantine = quarantine
        self._running: DecodedBatches | None = None

    @property
    def begun(self) -> bool:
        """Whether a pipeline runs."""
        return self._running is not None

    @property
    def ready_batches(self) -> int:
        """The batches that are read and wait to be decoded."""
        return 0 if self._running is None else self._running.ready_batches

    def decode(self, cursor: Cursor) -> tuple[EncodedBatch, list[torch.Tensor]]:
        """Returns the batch at a place, and its images.

        Raises:
            DeviceError: the memory is full; the message says what took it.
            TooManyBadImagesError: there are more bad images than the run allows.
        """
        if self._running is not None and self._running.cursor is None:  # an interrupt came while it was set
            self.close()
        try:
            # The place was changed, or an interrupt came after the step here and before that of the caller.
            if self._running is not None and self._running.cursor != cursor:
                self._running.move(cursor)
            batch, images = (self._running or self._begin(cursor)).next()
            self._quarantine.add(batch.bad)
        except BaseException as error:
            # All batches under way are lost, but not the place: the next call starts from it again.
            self.close()
            if isinstance(error, RuntimeError) and is_out_of_memory(str(error)):
                raise DeviceError(explain_lack_of_memory(self._run, str(error))) from None
            raise
        return batch, images

    def close(self) -> None:
        """Ends the threads and drops the pipeline; the next batch begins a new one."""
        running, self._running = self._running, None  # in this order: an interrupt must not leave a closed one
        if running is not None:
            running.close()

    def leave_to_the_parent(self) -> None:
        """Releases the parent's pipeline, in a forked child."""
        if self._running is not None:
            self._running.leave_to_the_parent()
        self._running = None

    def _begin(self, cursor: Cursor) -> DecodedBatches:
        self._running = DecodedBatches(self._run, cursor, self._quarantine.suspects)
        return self._running
