"""`OwnCodeLoop`: decodes the batches of a recipe with own code, in three stages.

    take -> DecodingLoop of the first recipe -> own code, in `Workers` -> DecodingLoop of the second recipe of each view
            (on the CPU)                  (up to prefetch + 1 batches)

Each stage takes from the previous stage, in the thread of the loop. It holds the previous stage, never a later one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.read_ahead import EndOfItems
from gpuloader.errors import DataError, LoaderError
from gpuloader.loading.decoding_loop import DecodingLoop, Size
from gpuloader.loading.options import Decoder
from gpuloader.loading.own_function import Images, Item, Targets
from gpuloader.loading.own_workers import Batch, InlineWorkers, ProcessWorkers, ThreadWorkers, WorkerLostError, Workers
from gpuloader.plan import Draws, Stream
from gpuloader.recipe import AugmentParams, Recipe
from gpuloader.recipe.split_recipe import SplitRecipe

Boxes: TypeAlias = Sequence[NDArray[np.float64]]
_log = logging.getLogger("gpuloader")


class BatchTargets(Protocol):
    """The protocol of a batch's targets for own code."""

    def before(self, view: int, row: int) -> Targets:
        """Returns the targets of an image for own code."""

    def boxes(self, made: Sequence[Targets]) -> Boxes:
        """Returns the boxes of a view's images after own code."""


@dataclass(frozen=True, eq=False)
class OwnCodeContext:
    """The data of a batch that the stages after the first recipe need.

    Attributes:
        recipe: the recipe in the batch's epoch and bucket.
        draws: the random numbers of the images.
        name: returns the name of an image by its row, for errors.
        targets: the targets, for own code that takes them.
        finish: takes the batch, the random parameters after own code, and the targets that own code returned, for each
            view and row; returns the delivered batch.
        dropped: the rows that will not be delivered, which own code does not see.
    """

    recipe: Recipe
    draws: Draws
    name: Callable[[Draws, int], str]
    targets: BatchTargets | None = None
    finish: Callable[[Any, AugmentParams, Sequence[Sequence[Targets]]], Any] | None = None
    dropped: Collection[int] = ()


class LoopBatch(Protocol):
    """The protocol of a batch for the first recipe; its context is None only without own code."""

    @property
    def images(self) -> Sequence[Any]: ...

    @property
    def params(self) -> AugmentParams: ...

    @property
    def context(self) -> OwnCodeContext | None: ...


BatchT = TypeVar("BatchT", bound=LoopBatch)


def decoding_of(
    recipe: Recipe,
    decoder: Decoder,
    device_id: int | None,
    rows: int = 1,
    largest_image: Callable[[], Size] = lambda: (0, 0),
    between_calls: bool = True,
) -> DecodingLoop[BatchT] | OwnCodeLoop[BatchT]:
    """Makes the loop for a recipe, with the arguments of `DecodingLoop`.

    Without `between_calls`, own code runs in the calling thread.
    """
    if recipe.links is None:
        return DecodingLoop(recipe, decoder, device_id, rows, largest_image, between_calls)
    return OwnCodeLoop(recipe.links, decoder, device_id, rows, between_calls)


class OwnCodeLoop(Generic[BatchT]):
    """A loop like `DecodingLoop`, with own code between two pipelines."""

    own_code_seconds = 0.0  # the time that it has waited for own code

    def __init__(
        self, links: SplitRecipe, decoder: Decoder, device_id: int | None, rows: int, between_calls: bool
    ) -> None:
        if device_id is not None:
            _say_where()
        self._stages: _Stages[BatchT] = _Stages(links, decoder, rows, between_calls)
        self._second: list[DecodingLoop[_ViewBatch[BatchT]]] = [
            DecodingLoop(recipe, decoder, device_id, rows, between_calls=between_calls) for recipe in links.second
        ]

    def start(
        self,
        take: Callable[[], BatchT | BaseException],
        without: Callable[[BatchT, Mapping[int, str]], BatchT | None],
    ) -> None:
        """Continues with the batches of another source; see `DecodingLoop.start`."""
        self._stages.start(take, without)
        for view, second in enumerate(self._second):
            second.start(partial(self._stages.take, view), _refuse)

    def next(self) -> tuple[BatchT, list[Any]] | None:
        """Returns the next batch and the images of each view; None after the last; see `DecodingLoop.next`.

        Raises:
            DataError: own code raised an error, or did not return an image.
            LoaderError: a process of own code ended or hangs.
        """
        try:
            views = [second.next() for second in self._second]
        except BaseException:
            self.drop()
            raise
        self.own_code_seconds = self._stages.own_code_seconds
        if any(view is None for view in views):
            return None
        of_views, images = zip(*filter(None, views))
        behind: _OwnCodeResult[BatchT] = of_views[0].behind
        batch, context = behind.batch, behind.batch.context
        assert context is not None
        if context.finish is not None:
            batch = context.finish(batch, AugmentParams.of([each.params.views[0] for each in of_views]), behind.targets)
        return batch, [each for [each] in images]

    def drop(self) -> None:
        """Ends the pipelines and the workers, and discards all batches that were taken."""
        for second in self._second:
            second.drop()
        self._stages.drop()

    def close(self) -> None:
        """Ends the pipelines and the workers, and frees DALI's memory pools if no other pipeline uses them."""
        self._stages.drop()
        for second in self._second:
            second.close()


@dataclass(frozen=True, eq=False)
class _OwnCodeResult(Generic[BatchT]):
    """A batch after own code: for each view, the images, the second recipe's random parameters, and the targets."""

    batch: BatchT
    images: Sequence[Images]
    params: Sequence[AugmentParams]
    targets: Sequence[Sequence[Targets]]


@dataclass(frozen=True, eq=False)
class _ViewBatch(Generic[BatchT]):
    """A view of a batch for the second recipe."""

    behind: _OwnCodeResult[BatchT]
    images: Images
    params: AugmentParams


class _Stages(Generic[BatchT]):
    """The first recipe and own code, the source of the second recipes."""

    def __init__(self, links: SplitRecipe, decoder: Decoder, rows: int, between_calls: bool) -> None:
        on_cpu = replace(decoder, hw_load=None, hybrid_huffman_threshold=None)
        self._first: DecodingLoop[BatchT] = DecodingLoop(
            links.first, on_cpu, None, rows, between_calls=between_calls, as_arrays=True
        )
        self._views = [view for view, own in enumerate(links.own) if own is not None and links.same[view] == view]
        self._functions = [own for view, own in enumerate(links.own) if own is not None and view in self._views]
        self._ahead = decoder.prefetch + 1 if between_calls else 1
        self._make = partial(_make_workers, decoder, between_calls, self._ahead)
        self._workers: Workers | None = None
        self.own_code_seconds = 0.0
        self._under_way: deque[tuple[BatchT, list[Images]]] = deque()
        self._failure: BaseException | None = None
        self._waiting: list[deque[_OwnCodeResult[BatchT]]] = [deque() for _ in links.own]

    def start(
        self,
        take: Callable[[], BatchT | BaseException],
        without: Callable[[BatchT, Mapping[int, str]], BatchT | None],
    ) -> None:
        with suppress(WorkerLostError):  # the next batch raises it again
            while self._under_way and self._workers is not None:
                self._under_way.popleft()
                self._workers.get()
        self._failure = None
        for each in self._waiting:
            each.clear()
        self._first.start(take, without)

    def take(self, view: int) -> _ViewBatch[BatchT] | BaseException:
        """Returns a view of the next batch, or the error that ends the batches."""
        if not self._waiting[view]:
            try:
                behind = self._next()
            except BaseException as error:  # noqa: BLE001 - it ends the batches, see `Feed`
                return _without_frames(error)
            for each in self._waiting:
                each.append(behind)
        behind = self._waiting[view].popleft()
        return _ViewBatch(behind, behind.images[view], behind.params[view])

    def drop(self) -> None:
        self._first.drop()
        self._under_way.clear()
        for each in self._waiting:
            each.clear()
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def _next(self) -> _OwnCodeResult[BatchT]:
        if self._workers is None:  # forks before the first recipe's pipeline has threads
            self._workers = self._make(self._functions)
        while self._failure is None and len(self._under_way) < self._ahead:
            try:
                decoded = self._first.next()
            except BaseException as error:  # noqa: BLE001 - behind the batches that come before it
                self._failure = _without_frames(error)
                break
            if decoded is None:
                self._failure = EndOfItems()
                break
            batch, views = decoded
            self._workers.put(self._items(batch, views))
            self._under_way.append((batch, [self._left(view, images) for view, images in enumerate(views)]))
        if not self._under_way:
            assert self._failure is not None
            raise self._failure
        batch, images = self._under_way.popleft()
        started = time.perf_counter()
        try:
            made = self._workers.get()
        except WorkerLostError as error:
            raise LoaderError(self._explain(batch, error.number, str(error))) from None
        self.own_code_seconds += time.perf_counter() - started
        return self._behind(batch, images, made)

    def _items(self, batch: BatchT, images: Sequence[Images]) -> list[Item]:
        context = batch.context
        assert context is not None
        items = []
        for function, view in enumerate(self._views):
            keys = context.draws.of(Stream.OWN, view=view).keys().tolist()
            for row, (image, (low, high)) in enumerate(zip(images[view], keys)):
                takes = self._functions[function].targets and context.targets is not None
                targets = context.targets.before(view, row) if takes and context.targets is not None else {}
                items.append(Item(image, function, (low, high), targets, dropped=row in context.dropped))
        return items

    def _left(self, view: int, images: Images) -> Images:
        """Returns copies of the images of a view that has no own code."""
        return () if view in self._views else [image.copy() for image in images]

    def _behind(self, batch: BatchT, images: list[Images], made: Batch) -> _OwnCodeResult[BatchT]:
        context, count = batch.context, len(batch.images)
        assert context is not None
        links = context.recipe.links
        assert links is not None
        if made.failure is not None:
            number, failure = made.failure
            raise DataError(self._explain(batch, number, failure.lines[0]), *failure.lines[1:]) from failure.error
        targets: list[Sequence[Targets]] = [()] * len(images)
        for function, view in enumerate(self._views):
            rows = slice(function * count, (function + 1) * count)
            images[view] = made.images[rows]
            targets[view] = made.targets[rows] if self._functions[function].targets else ()
        for view in set(links.same):
            if not targets[view]:  # own code does not take targets
                targets[view] = [
                    {} if context.targets is None else context.targets.before(view, row) for row in range(count)
                ]
        images, targets = [images[view] for view in links.same], [targets[view] for view in links.same]
        params = []
        for second, of_view, its in zip(links.second, images, targets):
            boxes = () if context.targets is None else context.targets.boxes(its)
            sizes = np.array([image.shape[:2] for image in of_view], np.int64)
            params.append(second.draw(context.draws, sizes, boxes=boxes))
            for row, cause in params[-1].refused().items():
                raise DataError(f"own code made {sizes[row].tolist()} of {context.name(context.draws, row)}: {cause}")
        return _OwnCodeResult(batch, images, params, targets)

    def _explain(self, batch: BatchT, number: int, cause: str) -> str:
        assert batch.context is not None
        function, row = divmod(number, len(batch.images))
        return f"{self._functions[function].called} failed on {batch.context.name(batch.context.draws, row)}: {cause}"


def _without_frames(error: BaseException) -> BaseException:
    """Returns the error without its frames, which would keep DALI's frames and so the pipeline alive."""
    error.__context__ = None
    if error.__cause__ is not None:
        _without_frames(error.__cause__)
    return error.with_traceback(None)


def _make_workers(decoder: Decoder, between_calls: bool, ahead: int, functions: Sequence[Any]) -> Workers:
    if not between_calls:
        return InlineWorkers(functions)
    if decoder.processes:
        return ProcessWorkers(functions, decoder.processes, ahead)
    return ThreadWorkers(functions, decoder.num_threads or 1)


def _refuse(_: object, causes: Mapping[int, str]) -> None:
    raise LoaderError(f"arrays could not be used: {', '.join(causes.values())}")


@cache
def _say_where() -> None:
    """Logs a warning, once, that own code moves decoding from the GPU to the CPU."""
    _log.warning(
        "the recipe has own code, so the CPU decodes its images and does what stands before it; the GPU does the rest"
    )
