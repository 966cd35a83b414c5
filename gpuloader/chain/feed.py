"""`Feed`: what DALI calls for the next batch of a graph, and the batches in flight."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuloader.chain.batch import Batch
from gpuloader.chain.link import Link, Pulled
from gpuloader.chain.settings import Decoder
from gpuloader.pipelines import GraphInputs, LastStep
from gpuloader.recipe import Graph


class Feed:
    """The source that the pipeline of a graph calls for its next batch.

        in_flight:   unwanted | given to the pipeline | left of a pipeline that failed, or for the next one
                              ^ _unwanted             ^ _with_pipeline

    Batches without rows are in flight, too, but DALI takes none: they are never given to the pipeline.

    It repeats the images of small batches, if a GPU's JPEG engines decode. The first batch of a pipeline sets how many
    JPEGs of any later batch the engines can get. If the first batch were a short one, an image's decoder would depend
    on where the run was resumed. And if there are several engines, nvImageCodec 0.9 decodes a batch of one JPEG in
    another way, which may round differently.

    Args:
        rows: the most images of a batch, as far as it is known.

    Attributes:
        rows: the most images that the pipeline takes.
        inputs: makes what the pipeline takes, of files or of arrays.
        in_flight: the batches that were pulled and not returned yet, in order; those no longer wanted come first.
        stopped: whether the pipeline was told that no batch comes, and has not reported it yet.
    """

    def __init__(
        self, under: Link, graph: Graph, decoder: Decoder, device_id: int | None, rows: int, last_step: LastStep
    ) -> None:
        self._under, self._graph, self._decoder, self._device_id = under, graph, decoder, device_id
        self._last_step: LastStep = last_step
        self._pulled = Pulled()
        self.in_flight = self._pulled.batches
        self.rows = rows
        self.inputs = self._make_inputs(decoded=False)
        self.clear()

    def clear(self) -> None:
        """Forgets all batches, when there is no pipeline any more."""
        self.in_flight.clear()
        self._pulled.begin()
        self._with_pipeline = 0  # how many of those in flight the pipeline has
        self._unwanted = 0  # how many of these are no longer wanted
        self.stopped = self._begins = self._fills = False

    def restart(self) -> None:
        """Pulls the next batches from another place; a running pipeline first returns those it has, unwanted."""
        while self.waits:
            self.in_flight.pop()
        self._pulled.begin()
        self._unwanted = self._with_pipeline
        self._drop_empty()

    def begin(self) -> bool:
        """Makes `rows` and `inputs` fit the coming batch, for a new pipeline; returns whether there is one."""
        if not self._pulls():
            return False
        batch = self.in_flight[self._with_pipeline]
        self.inputs, self.stopped = self._make_inputs(_is_decoded(batch)), False
        self._fills = bool(self._decoder.hw_load) and not self.inputs.decoded
        self._begins = self._fills
        least = max(len(batch), 2 if self._fills else 1)
        if least > self.rows:
            self.rows = 1 << (least - 1).bit_length()
        return True

    def __call__(self) -> tuple[Any, ...]:
        """Returns the images of the next batch and their numbers; small batches are repeated.

        The only exception that DALI accepts here is StopIteration, after which it still returns the earlier batches. So
        an error is kept until these are out. A batch that does not fit also ends the source.
        """
        if not self._pulls() or not self._fits(batch := self.in_flight[self._with_pipeline]):
            self.stopped = True
            raise StopIteration
        self._with_pipeline += 1
        images, params = batch.images, batch.params
        least = self.rows if self._begins else 2 if self._fills else 1
        self._begins = False
        if len(batch) < least:
            again = np.resize(np.arange(len(batch)), least)
            images, params = [[each[row] for row in again.tolist()] for each in images], params.take(again)
        return self.inputs(images, params)

    @property
    def waits(self) -> bool:
        """Whether a batch waits to be given to the pipeline."""
        return self._with_pipeline < len(self.in_flight)

    @property
    def is_over(self) -> bool:
        """Whether all batches before the end were returned. DALI may report an end from before a `seek`."""
        return self._pulled.ended and not self.in_flight

    def finish(self) -> None:
        """Raises the error that came behind the last batch, if there is one."""
        self._pulled.finish()

    def pop(self) -> Batch:
        """Removes and returns the first batch in flight, which the pipeline has returned."""
        self._with_pipeline -= 1
        return self.in_flight.popleft()

    def pop_empty(self) -> Batch | None:
        """Removes and returns the first batch in flight if it is wanted and has no rows."""
        if self._unwanted or not self.in_flight or len(self.in_flight[0]):
            return None
        self._with_pipeline = max(0, self._with_pipeline - 1)
        return self.in_flight.popleft()

    def pop_unwanted(self) -> bool:
        """Removes the first batch that the pipeline has, if it is no longer wanted; returns whether it did."""
        if not self._unwanted:
            return False
        self._unwanted -= 1
        self.pop()
        self._drop_empty()
        return True

    def drop_unwanted(self) -> bool:
        """Removes all batches that are no longer wanted, with their pipeline; returns whether there were any."""
        unwanted, self._unwanted = self._unwanted, 0
        for _ in range(unwanted):
            self.in_flight.popleft()
        self._with_pipeline = 0
        return unwanted > 0

    def put_back(self, batch: Batch | None) -> None:
        """Gives all batches in flight to another pipeline; `batch` replaces the first, None drops the first."""
        self.in_flight.popleft()
        if batch is not None:
            self.in_flight.appendleft(batch)
        self._with_pipeline = 0

    def _fits(self, batch: Batch) -> bool:
        return len(batch) <= self.rows and (self.inputs.mixed or _is_decoded(batch) == self.inputs.decoded)

    def _make_inputs(self, decoded: bool) -> GraphInputs:
        return GraphInputs(
            self._graph,
            self._device_id,
            decoded=decoded,
            region=self._decoder.region is not False,
            prefetch_queue_depth=self._decoder.prefetch,
            last_step=self._last_step,
        )

    def _drop_empty(self) -> None:
        """Removes batches without rows that are no longer wanted, as soon as they come first."""
        while self._unwanted and not len(self.in_flight[0]):
            self._unwanted -= 1
            self.pop()

    def _pulls(self) -> bool:
        """Pulls until a batch waits; returns whether it has rows. If not, it is returned before more are pulled."""
        pulled = self._pulled
        while True:
            while self.waits and not len(self.in_flight[self._with_pipeline]):
                self._with_pipeline += 1
            if self.waits or pulled.ended or (self.in_flight and not len(self.in_flight[-1])):
                return self.waits
            try:
                pulled.add(self._under.next())
            except BaseException as error:  # noqa: BLE001 - it comes behind the batches before it
                pulled.fail(error)


def _is_decoded(batch: Batch) -> bool:
    return bool(batch.images[0][0].ndim == 3)
