"""`Own`: a link that runs own code on decoded images, in processes, up to some batches ahead.

Decode of the first graph -> Own -> Decode of the second graph
(on the CPU)                 (up to prefetch + 1 batches)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.chain.batch import Batch
from gpuloader.chain.link import Link, Over, Pulled
from gpuloader.chain.own_function import Item, Targets
from gpuloader.chain.own_workers import InlineWorkers, ProcessWorkers, Results, ThreadWorkers, WorkerLostError, Workers
from gpuloader.chain.settings import Decoder
from gpuloader.errors import DataError, LoaderError
from gpuloader.plan import Stream
from gpuloader.recipe import AugmentParams, Recipe
from gpuloader.recipe.apply import Apply

Boxes: TypeAlias = Sequence[NDArray[np.float64]]
_log = logging.getLogger("gpuloader")


class OwnCodeTargets:
    """What own code gets beside images: no targets, of images in memory. Other sources have their own classes."""

    def before(self, batch: Batch, view: int, row: int) -> Targets:
        """Returns the targets of an image for own code."""
        return {}

    def boxes(self, made: Sequence[Targets]) -> Boxes:
        """Returns the boxes of a view's images after own code; nothing if the recipe needs none."""
        return ()

    def name(self, batch: Batch, row: int) -> str:
        """Returns the name of a sample, for errors."""
        return f"image {batch.ids[row]}"


class Own(Over):
    """A link that replaces decoded views by what own code makes of them, as the images of the second graph.

    Args:
        recipe: the recipe, which has own code.
        decoder: the settings, with values in place of None.
        targets: what own code gets beside the images.
        runs_ahead: whether own code runs elsewhere, ahead of use. Otherwise it runs in the calling thread.
        delivers: whether the sizes of the images follow from what own code returned.
    """

    def __init__(
        self,
        under: Link,
        recipe: Recipe,
        decoder: Decoder,
        targets: OwnCodeTargets,
        *,
        runs_ahead: bool = True,
        delivers: bool = False,
    ) -> None:
        super().__init__(under)
        own = recipe.own_code
        assert own is not None
        self._recipe, self._decoder, self._targets = recipe, decoder, targets
        self._runs_ahead, self._delivers = runs_ahead, delivers
        self._ahead = decoder.prefetch + 1 if runs_ahead else 1
        self._own = [own.functions[view] for view in own.views]  # of each source of the second graph
        self._views = own.views
        self._functions = [function for function in self._own if function is not None]
        self._workers: Workers | None = None
        self._pulled = Pulled()

    def seek(self, place: Any) -> None:  # noqa: ANN401
        with suppress(WorkerLostError):  # the next batch raises it again
            while self._pulled.batches and self._workers is not None:
                if len(self._pulled.batches.popleft()):
                    self._workers.get()
        self._pulled.batches.clear()
        self._pulled.begin()
        if self._workers is None:  # the processes fork here, before what is under this has threads
            self._workers = _make_workers(self._functions, self._decoder, self._runs_ahead, self._ahead)
        self._under.seek(place)

    def next(self) -> Batch | None:
        """Returns the next batch, with the images and the parameters of the second graph.

        Raises:
            DataError: own code raised an error, or did not return an image.
            LoaderError: a process of own code ended or hangs.
        """
        workers, pulled = self._workers, self._pulled
        assert workers is not None
        while len(pulled.batches) < self._ahead and not pulled.ended:
            try:
                pulled.add(batch := self._under.next())
            except BaseException as error:  # noqa: BLE001 - it comes behind the batches before it
                pulled.fail(error)
                break
            if batch is not None:
                pulled.batches[-1] = self._begin(workers, batch)
        if not pulled.batches:
            pulled.finish()
            return None
        batch, started = pulled.batches.popleft(), time.perf_counter()
        try:
            results = workers.get() if len(batch) else Results((), ())
        except WorkerLostError as error:
            raise LoaderError(self._explain(batch, error.number, str(error))) from None
        return self._drawn(replace(batch, own_code_seconds=time.perf_counter() - started), results)

    def close(self) -> None:
        self._pulled.batches.clear()
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()
        self._under.close()

    def _begin(self, workers: Workers, batch: Batch) -> Batch:
        """Gives a batch to the workers; the views are in DALI's memory until the next call."""
        if len(batch):
            workers.put(self._items(batch))
        left = [
            [each.copy() for each in batch.views[view]] if own is None else []  # the workers have the others
            for view, own in zip(self._views, self._own)
        ]
        return replace(batch, views=(), images=left)

    def _items(self, batch: Batch) -> list[Item]:
        items: list[Item] = []
        for view, own in zip(self._views, self._own):
            if own is None:
                continue
            keys, function = batch.draws.of(Stream.OWN, view=view).keys().tolist(), len(items) // len(batch)
            for row, (image, (low, high), stays) in enumerate(zip(batch.views[view], keys, batch.stays.tolist())):
                targets = self._targets.before(batch, view, row) if own.targets else {}
                items.append(Item(image, function, (low, high), targets, dropped=not stays))
        return items

    def _drawn(self, batch: Batch, results: Results) -> Batch:
        """Returns a batch with the results, and the second graph's parameters by their sizes."""
        if results.failure is not None:
            number, failure = results.failure
            raise DataError(self._explain(batch, number, failure.lines[0]), *failure.lines[1:]) from failure.error
        count, first = len(batch), 0
        images, moved = list(batch.images), list[Sequence[Targets]]()
        for source, (view, own) in enumerate(zip(self._views, self._own)):
            rows = slice(first, first + count)
            if own is not None:
                images[source], first = results.images[rows], rows.stop
            if own is not None and own.targets:
                moved.append(results.targets[rows])
            else:  # own code that takes no targets leaves them
                moved.append([self._targets.before(batch, view, row) for row in range(count)])
        graph = self._recipe.at(batch.draws.epoch, batch.step.shape).graphs[1]
        sizes = [np.array([image.shape[:2] for image in of_source], np.int64).reshape(-1, 2) for of_source in images]
        views = [
            plan.draw(batch.draws, sizes[source], boxes=self._targets.boxes(moved[source]))
            for source, [plan] in graph.parts
        ]
        params = AugmentParams.of(views)
        for row, cause in params.refused().items():
            refusing = (at for (at, _), view in zip(graph.parts, views) if row in AugmentParams.of([view]).refused())
            made = sizes[next(refusing)][row].tolist()
            raise DataError(f"own code made {made} of {self._targets.name(batch, row)}: {cause}")
        return replace(
            batch,
            images=images,
            params=params,
            delivered=params if self._delivers else batch.delivered,
            targets=[moved[source] for source, _ in graph.parts],
        )

    def _explain(self, batch: Batch, number: int, cause: str) -> str:
        function, row = divmod(number, len(batch))
        return f"{self._functions[function].called} failed on {self._targets.name(batch, row)}: {cause}"


def _make_workers(functions: Sequence[Apply], decoder: Decoder, runs_ahead: bool, ahead: int) -> Workers:
    if not runs_ahead:
        return InlineWorkers(functions)
    if decoder.processes:
        return ProcessWorkers(functions, decoder.processes, ahead)
    return ThreadWorkers(functions, decoder.num_threads or 1)


@cache
def say_where() -> None:
    """Logs a warning, once, that own code moves decoding from the GPU to the CPU."""
    _log.warning(
        "the recipe has own code, so the CPU decodes its images and does what stands before it; the GPU does the rest"
    )
