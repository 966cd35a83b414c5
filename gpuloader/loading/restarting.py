"""`RestartingBatches`: the decoded batch at any place, from the pipeline that runs, or after an error from another."""

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
    """Decoded batches, one after the other; after an error they begin again, with another pipeline.

    Args:
        quarantine: gets the bad images of the batches.
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
        """The batches that are read and wait for being decoded."""
        return 0 if self._running is None else self._running.ready_batches

    def decode(self, cursor: Cursor) -> tuple[EncodedBatch, list[torch.Tensor]]:
        """The batch at a place and its images.

        Raises:
            DeviceError: the memory is full; it says what took it.
            TooManyBadImagesError: more than the run allows.
        """
        if self._running is not None and self._running.cursor is None:  # an interrupt hit where it was set
            self.close()
        try:
            # Set elsewhere, or an interrupt hit between the step here and the caller's.
            if self._running is not None and self._running.cursor != cursor:
                self._running.move(cursor)
            batch, images = (self._running or self._begin(cursor)).next()
            self._quarantine.add(batch.bad)
        except BaseException as error:
            # Whatever was under way is lost; the place is not: the next call starts from it again.
            self.close()
            if isinstance(error, RuntimeError) and is_out_of_memory(str(error)):
                raise DeviceError(explain_lack_of_memory(self._run, str(error))) from None
            raise
        return batch, images

    def close(self) -> None:
        """Ends the threads and drops the pipeline; another begins with the next batch."""
        running, self._running = self._running, None  # in this order: an interrupt must not leave a closed one behind
        if running is not None:
            running.close()

    def leave_to_the_parent(self) -> None:
        """In a forked child."""
        if self._running is not None:
            self._running.leave_to_the_parent()
        self._running = None

    def _begin(self, cursor: Cursor) -> DecodedBatches:
        self._running = DecodedBatches(self._run, cursor, self._quarantine.suspects)
        return self._running
