"""`PipelineRunner`: a DALI pipeline that runs batch after batch; built when it is needed, dropped when it fails."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

from nvidia.dali.backend import ReleaseUnusedMemory  # type: ignore[attr-defined]
from nvidia.dali.pipeline import Pipeline

from gpuloader.base.dali import is_decode_failure, leak_after_fork
from gpuloader.base.forking import at_fork

_runners: WeakSet[PipelineRunner] = WeakSet()


def release_unused_memory() -> None:
    """Returns the memory in DALI's pools to the machine, unless a pipeline that runs ahead would take it again."""
    if not any(running.begun and running.between_calls for running in _runners):
        ReleaseUnusedMemory()


@atexit.register
def _drop_all() -> None:
    """Drops all pipelines at the end of the process, before DALI's modules are emptied, which a pipeline then needs."""
    for running in list(_runners):
        running.drop()


class UndecodableError(Exception):
    """DALI cannot decode an image of the batch; the text is DALI's message."""


class PipelineRunner:
    """A pipeline that is built for the first batch, and again for the first batch after an error.

    According to DALI, a pipeline that has failed cannot be used again. After a fork, the pipeline belongs to the
    parent, and the child builds its own.

    Args:
        build: builds the pipeline. It must not hold the owner of this object: in a reference cycle, the pipeline would
            keep its threads and memory until garbage is collected.
        views: names of the pipeline's outputs; with them, `next` returns torch tensors by these names, and DALI makes
            the next batches at the same time. Without them, it returns DALI's outputs.
        as_lists: whether `next` returns a list of tensors for each view, whose shapes may differ.
        between_calls: whether the pipeline works between two calls of `next`, and so needs its memory then.
    """

    def __init__(
        self,
        build: Callable[[], Pipeline],
        views: Sequence[str] = (),
        as_lists: bool = False,
        between_calls: bool = False,
    ) -> None:
        self._build = build
        self._views = list(views)
        self._as_lists = as_lists
        self._pipeline: Pipeline | None = None
        self._run: Any = None
        self._reset: Any = None
        self._ended = False  # until the source is asked again
        self.between_calls = between_calls
        _runners.add(self)
        at_fork(self, PipelineRunner._leave_to_the_parent)

    @property
    def begun(self) -> bool:
        return self._pipeline is not None

    def next(self) -> Any:  # noqa: ANN401 - see `views`
        """Runs the next batch.

        Raises:
            UndecodableError: an image of the batch cannot be decoded.
            StopIteration: the source has no more batches. The next call asks it again.
        """
        # An error must not hold DALI's frames, which hold the pipeline. So it is raised outside of `except`.
        failure: Exception | None = None
        outputs: Any = None
        try:
            if self._pipeline is None:
                self._start()
            if self._ended:
                self._reset()
                self._ended = False
            outputs = self._run()
        except StopIteration:
            self._ended, failure = True, StopIteration()
        except RuntimeError as error:
            failure = UndecodableError(str(error)) if is_decode_failure(str(error)) else error.with_traceback(None)
        finally:
            if outputs is None and not self._ended:
                self.drop()
        if failure is None:
            return outputs[0] if self._views else outputs
        failure.__context__ = None
        try:
            raise failure
        finally:
            del failure  # with this frame, it would be a reference cycle

    def drop(self) -> None:
        self._pipeline = self._run = self._reset = None
        self._ended = False

    def _start(self) -> None:
        pipeline: Any = self._build()
        running, self._run = pipeline, pipeline.run
        if self._views:
            from nvidia.dali.plugin.pytorch import (  # here, because it imports torch
                DALIGenericIterator,
                DALIRaggedIterator,
            )

            kind: Any = DALIGenericIterator
            if self._as_lists:
                tags = [DALIRaggedIterator.SPARSE_LIST_TAG] * len(self._views)
                kind = partial(DALIRaggedIterator, output_types=tags)
            running = kind(pipeline, self._views, prepare_first_batch=False)
            self._run = running.__next__
        self._pipeline, self._reset = pipeline, running.reset

    def _leave_to_the_parent(self) -> None:
        if self._pipeline is not None:
            leak_after_fork(self._pipeline)
        self.drop()
