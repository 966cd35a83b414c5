"""`Reader`: plan and shards to encoded batches, read ahead by a thread of its own.

For each step: the plan's sample ids, their bytes into an arena, the gate on every image, a stand-in for each refused
one (or the error, if bad images are errors), labels, and the drawn arrays. The graph needs nothing else.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import BadImageError, DataError
from gpuloader.plan import Cursor, Draws, Plan, Stream
from gpuloader.recipe import Preset
from gpuloader.shards import Arena, Labels, ShardSet, View

Gate: TypeAlias = Callable[[View], "tuple[int, int] | str"]
"""Encoded image -> (height, width), or why it may not be decoded."""

STAND_IN_ATTEMPTS = 100


@dataclass(frozen=True, eq=False)
class EncodedBatch:
    """One rank's batch before decoding.

    Attributes:
        cursor: the place in the run before this step.
        ids: (b,) int64, the samples that are delivered: the plan's, or their stand-ins.
        valid: (b,) bool, False for padding and for stand-ins.
        images: b encoded images, views into the arena.
        arrays: what the graph takes beside them, (b, ...) each.
        labels: (b,) int64, or None.
        fields: for each asked extension b values.
        bad: the planned samples that were refused here, with the cause.
        arena: the memory behind `images`, free again once the graph is done with the batch.
        read_seconds: the time that making this batch took.
    """

    cursor: Cursor
    ids: NDArray[np.int64]
    valid: NDArray[np.bool_]
    images: Sequence[View]
    arrays: Mapping[str, NDArray[Any]]
    labels: NDArray[np.int64] | None
    fields: Mapping[str, Sequence[Any]]
    bad: Mapping[int, str]
    arena: Arena
    read_seconds: float


class Reader:
    """Encoded batches from a cursor on, one epoch after the other without end.

    Attributes:
        cursor: the place of the first batch.

    Args:
        read_ahead: batches that are read before they are asked for.
        replace_bad: put stand-ins in the place of bad images instead of raising.
        known_bad: samples that are bad though the gate lets them pass, with the cause.
    """

    def __init__(
        self,
        plan: Plan,
        shards: ShardSet,
        preset: Preset,
        gate: Gate,
        labels: Labels | None,
        *,
        fields: Sequence[str] = (),
        start: Cursor,
        read_ahead: int = 2,
        replace_bad: bool = False,
        known_bad: Mapping[int, str] | None = None,
    ) -> None:
        self._plan = plan
        self._shards = shards
        self._preset = preset
        self._gate = gate
        self._labels = labels
        self._fields = fields
        self._replace_bad = replace_bad
        self._known_bad = dict(known_bad or {})
        self.cursor = self._next = plan.at_step(start)
        self._read_ahead = read_ahead
        self._arenas: deque[Arena] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gpuloader-reader")
        self._pending: deque[Future[EncodedBatch]] = deque()

    def next(self) -> EncodedBatch:
        """The next batch; raises what reading it raised."""
        while len(self._pending) <= self._read_ahead:
            self._submit()
        return self._pending.popleft().result()

    def release(self, batch: EncodedBatch) -> None:
        """Says that a batch's images are no longer needed."""
        self._arenas.append(batch.arena)

    def close(self) -> None:
        """Ends the thread, after the batch that it is reading."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _submit(self) -> None:
        self._next = self._plan.at_step(self._next)
        arena = self._arenas.popleft() if self._arenas else Arena()
        self._pending.append(self._thread.submit(self._read, self._next, arena))
        self._next = self._plan.after(self._next)

    def _read(self, cursor: Cursor, arena: Arena) -> EncodedBatch:
        started = time.perf_counter()
        planned = self._plan.batch(cursor)
        ids, valid = planned.ids.copy(), planned.valid.copy()
        images = self._shards.read_images(ids, arena)
        sizes = np.zeros((len(ids), 2), np.int64)
        bad: dict[int, str] = {}
        for row, image in enumerate(images):
            size = self._size_or_cause(int(ids[row]), image)
            if isinstance(size, str):
                sample = int(ids[row])
                bad[sample] = size
                ids[row], images[row], size = self._stand_in(sample, cursor.epoch, cause=size)
                valid[row] = False
            sizes[row] = size
        # A stand-in is drawn for as the sample in whose place it stands.
        draws = Draws(self._plan.seed, cursor.epoch, planned.ids)
        return EncodedBatch(
            cursor=cursor,
            ids=ids,
            valid=valid,
            images=images,
            arrays=self._preset.arrays(draws, sizes[:, 0], sizes[:, 1]),
            labels=None if self._labels is None else self._labels.of(ids),
            fields={name: [self._field(int(sample), name) for sample in ids] for name in self._fields},
            bad=bad,
            arena=arena,
            read_seconds=time.perf_counter() - started,
        )

    def _size_or_cause(self, sample: int, image: View) -> tuple[int, int] | str:
        return self._known_bad.get(sample) or self._gate(image)

    def _stand_in(self, sample: int, epoch: int, cause: str) -> tuple[int, View, tuple[int, int]]:
        """The first good one of the samples that the plan draws for the bad one in this epoch."""
        if not self._replace_bad:
            raise BadImageError(*self._shards.place(sample), cause)
        draws = Draws(self._plan.seed, epoch, np.array([sample]))
        candidates = np.floor(draws.uniform(Stream.STAND_IN, STAND_IN_ATTEMPTS)[0] * len(self._shards)).astype(np.int64)
        for candidate in candidates:
            [image] = self._shards.read_images(np.array([candidate]), Arena())
            size = self._size_or_cause(int(candidate), image)
            if not isinstance(size, str):
                return int(candidate), image, size
        raise BadImageError(*self._shards.place(sample), f"{cause}; no good one among {STAND_IN_ATTEMPTS} stand-ins")

    def _field(self, sample: int, extension: str) -> Any:  # noqa: ANN401
        """A component as a Python value: parsed JSON, text, a numpy array (never unpickled), else its bytes."""
        data = self._shards.read_component(sample, extension)
        try:
            if data is None:
                raise ValueError("the sample has no such component")
            if extension == "json":
                return json.loads(data)
            if extension in ("txt", "text"):
                return data.decode()
            if extension == "npy":
                return np.load(BytesIO(data), allow_pickle=False)
        except ValueError as error:
            place = self._shards.place(sample)
            raise DataError(f"the .{extension} component of {place.key!r} in {place.shard}: {error}") from None
        return data
