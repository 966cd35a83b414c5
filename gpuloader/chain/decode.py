"""`Decode`: a link that runs a graph in DALI, ahead of use.

    under -> Feed -> DALI's pipeline -> PipelineRunner -> Decode
    (called by the pipeline, in the thread that calls `next`)

`Feed` holds the link under it. Neither it nor the pipeline may hold `Decode`: in a reference cycle the pipeline would
keep its threads and memory until garbage collection.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from weakref import proxy

import numpy as np
import torch
from nvidia.dali.pipeline import Pipeline

from gpuloader.chain.batch import Batch
from gpuloader.chain.feed import Feed
from gpuloader.chain.link import Link, Over
from gpuloader.chain.settings import Decoder
from gpuloader.errors import LoaderError
from gpuloader.pipelines import (
    LastStep,
    PipelineRunner,
    UndecodableError,
    batch_error,
    find_undecodable,
    graph_pipeline,
    release_unused_memory,
)
from gpuloader.recipe import Graph, Shape


class Decode(Over):
    """A link that runs a graph. It keeps its pipeline as long as batches fit it, also after `seek`.

    Images that cannot be decoded do not end it: it asks the link under it for the batch again.

    Args:
        decoder: the settings, with values in place of None.
        device_id: a GPU's number, or None for the CPU.
        rows: the most images of a batch, as far as it is known.
        largest_image: the approximate height and width of the largest image; 0 if it is not known.
        runs_ahead: whether the pipeline works between two calls of `next`, and needs its memory then.
        as_arrays: on the CPU, whether views are arrays in DALI's memory, which are valid until the next call:
            (n, h, w, 3) for a view whose images have one size, otherwise a list of n.
        last_step: where the graph ends, see `recipe_pipeline`; the batches of an earlier step have no views.
    """

    def __init__(
        self,
        under: Link,
        graph: Graph,
        decoder: Decoder,
        device_id: int | None = None,
        *,
        rows: int = 1,
        largest_image: Shape = (0, 0),
        runs_ahead: bool = True,
        as_arrays: bool = False,
        last_step: LastStep = "all",
    ) -> None:
        super().__init__(under)
        self._graph, self._decoder, self._device_id = graph, decoder, device_id
        self._is_cut = last_step != "all"
        self._names = [] if as_arrays or self._is_cut else [str(view.number) for view in graph.views]
        self._feed = Feed(under, graph, decoder, device_id, rows, last_step)
        build = partial(_build, self._feed, decoder, device_id, largest_image)
        self._running = PipelineRunner(build, self._names, graph.batch == "list", runs_ahead)

    def seek(self, place: Any) -> None:  # noqa: ANN401
        if not self._running.begun:  # as in a forked child
            self._feed.clear()
        self._feed.restart()
        self._under.seek(place)

    def next(self) -> Batch | None:
        """Returns the next batch, with its views.

        Raises:
            DeviceError: the decoder or the machine is the reason that images cannot be decoded.
        """
        feed, message = self._feed, ""
        while not feed.is_over:
            if (batch := feed.pop_empty()) is not None:
                return replace(batch, views=self._no_images(batch))
            if not self._running.begun and not feed.begin():
                continue  # either batches without rows came, or the end
            outputs = None
            try:
                outputs = self._running.next()
            except StopIteration:
                pass
            except UndecodableError as error:
                message = str(error)
            # Outside of `except`, because an error's context would hold DALI's frames, which hold the pipeline.
            if outputs is not None:
                if not feed.pop_unwanted():
                    batch = feed.pop()
                    return replace(batch, images=(), memory=None, views=self._views_of(outputs, len(batch)))
            elif message:
                self._leave_out(message)
                message = ""
            elif not feed.stopped:
                raise LoaderError("DALI ended before the batches did")
            else:
                feed.stopped = False
                if feed.waits:  # the next batch needs another pipeline
                    self._running.drop()
        feed.finish()
        return None

    def close(self) -> None:
        """Ends the pipeline and what is under it, and frees DALI's memory pools if no other pipeline uses them."""
        self._running.drop()
        self._feed.clear()
        self._under.close()
        release_unused_memory()

    def _leave_out(self, message: str) -> None:
        """Replaces the first batch in flight, which failed; later batches are decoded again."""
        feed = self._feed
        if feed.drop_unwanted():  # an unwanted batch needs no replacement
            return
        batch = feed.in_flight[0]
        causes = find_undecodable(
            self._graph, batch.images[0], batch.params, self._device_id, message=message, **self._decoder.graph_options
        )
        if not causes:
            raise batch_error(message)
        feed.put_back(self._under.again(batch, causes))

    def _views_of(self, outputs: Any, count: int) -> list[Any]:  # noqa: ANN401 - DALI's
        if self._is_cut:
            return []
        if self._names:
            return [outputs[name][:count] for name in self._names]
        return [
            np.asarray(output.as_tensor())[:count]
            if output.is_dense_tensor()
            else [np.asarray(output[row]) for row in range(count)]
            for output in outputs
        ]

    def _no_images(self, batch: Batch) -> list[Any]:
        if not self._names:
            return [[] for _ in self._graph.views]
        device = "cpu" if self._device_id is None else f"cuda:{self._device_id}"
        make = partial(torch.empty, dtype=getattr(torch, self._graph.dtype), device=device)
        shapes = [view.shape for view in batch.params.views]
        is_first = self._graph.layout == "nchw"
        return [[] if shape is None else make((0, 3, *shape) if is_first else (0, *shape, 3)) for shape in shapes]


def _build(feed: Feed, decoder: Decoder, device_id: int | None, largest_image: Shape) -> Pipeline:
    """Builds the pipeline for the batches of `feed`, which has begun."""
    return graph_pipeline(
        feed.inputs,
        proxy(feed),  # DALI's operators hold their source in a reference cycle, and what that holds
        batch_size=feed.rows,
        num_threads=min(decoder.num_threads or 1, feed.rows),
        device_id=device_id,
        prefetch_queue_depth=decoder.prefetch,
        largest_image=largest_image,
        decoder_options=decoder.graph_options["decoder_options"],
    )
