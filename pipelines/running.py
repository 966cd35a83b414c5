"""`Running`: a DALI pipeline that runs batch after batch; it is built when it is needed, and dropped when it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray
from nvidia.dali.backend import ReleaseUnusedMemory  # type: ignore[attr-defined]
from nvidia.dali.pipeline import Pipeline

from gpuloader.helpers.forking import at_fork
from gpuloader.internals.dali import is_decode_failure, leak_after_fork
from gpuloader.pipelines.graph import Source
from gpuloader.recipe import Drawn

_ahead: WeakSet[Running] = WeakSet()


def release_unused_memory() -> None:
    """Returns the memory in DALI's pools to the machine, unless a pipeline that runs ahead would take it again."""
    if not any(running.begun for running in _ahead):
        ReleaseUnusedMemory()


class UndecodableError(Exception):
    """DALI cannot decode an image of the batch; the text is DALI's message."""


class Running:
    """A pipeline, which is built for the first batch, and again for the first batch after an error.

    According to DALI, a pipeline that has failed cannot be used again. After a fork, the pipeline belongs to the
    parent, and the child builds its own.

    Args:
        build: builds the pipeline. It must not hold the owner of this object: in a reference cycle, the pipeline would
            keep its threads and memory until garbage is collected.
        views: names of the pipeline's outputs; with them, `next` returns torch tensors by these names, and DALI makes
            the next batches at the same time. Without them, it returns DALI's outputs.
        as_lists: whether `next` returns a list of tensors for each view, whose shapes may differ.
    """

    def __init__(self, build: Callable[[], Pipeline], views: Sequence[str] = (), as_lists: bool = False) -> None:
        self._build = build
        self._views = list(views)
        self._as_lists = as_lists
        self._pipeline: Pipeline | None = None
        self._iterator: Any = None
        self._ended = False  # until the source is asked again
        if views:
            _ahead.add(self)
        at_fork(self, Running._leave_to_the_parent)

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
            outputs = self._run()
        except StopIteration:
            self._ended, failure = True, StopIteration()
        except RuntimeError as error:
            failure = UndecodableError(str(error)) if is_decode_failure(str(error)) else error.with_traceback(None)
        finally:
            if outputs is None and not self._ended:
                self.drop()
        if failure is None:
            return outputs
        failure.__context__ = None
        raise failure

    def drop(self) -> None:
        self._iterator = self._pipeline = None
        self._ended = False

    def _run(self) -> Any:  # noqa: ANN401
        if self._pipeline is None:
            self._pipeline = self._build()
            if self._views:
                from nvidia.dali.plugin.pytorch import (  # here, because it imports torch
                    DALIGenericIterator,
                    DALIRaggedIterator,
                )

                kind: Any = DALIGenericIterator
                if self._as_lists:
                    tags = [DALIRaggedIterator.SPARSE_LIST_TAG] * len(self._views)
                    kind = partial(DALIRaggedIterator, output_types=tags)
                self._iterator = kind(self._pipeline, self._views, prepare_first_batch=False)
        if self._ended:
            (self._pipeline if self._iterator is None else self._iterator).reset()
            self._ended = False
        return next(self._iterator)[0] if self._iterator is not None else self._pipeline.run()

    def _leave_to_the_parent(self) -> None:
        if self._pipeline is not None:
            leak_after_fork(self._pipeline)
        self.drop()


class FilledSource:
    """A source that repeats the samples of small batches.

    The first batch of a pipeline sets how many JPEGs of any later batch the GPU's engines can get. If the first batch
    were a short one, an image's decoder would depend on where the run was resumed. And if there are several engines,
    nvImageCodec 0.9 decodes a batch of one JPEG in another way, which may round differently.

    Args:
        source: gives the batches.
        hw_load: the decoder's; nothing is repeated if it uses no engines.
        rows: of the first batch of a pipeline.

    Attributes:
        rows: the most rows that it adds up to.
    """

    def __init__(self, source: Source, hw_load: float | None, rows: int) -> None:
        self._source = source
        self._least = 2 if hw_load else 1
        self.rows = max(self._least, rows if hw_load else 1)
        self._begins = True

    def begin(self, batch_size: int) -> int:
        """Fills the next batch, the first of a new pipeline; returns the batch size that the pipeline needs."""
        self._begins = True
        return max(self.rows, batch_size)

    def __call__(self) -> tuple[Sequence[NDArray[np.uint8]], Drawn]:
        """Returns a batch of the source, with as many rows as it needs."""
        images, drawn = self._source()
        rows = self.rows if self._begins else self._least
        self._begins = False
        if len(images) >= rows:
            return images, drawn
        again = np.resize(np.arange(len(images)), rows)
        return [images[row] for row in again.tolist()], drawn.take(again)
