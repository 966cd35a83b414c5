"""`Assembly`: assembles the batch of a step from its decoded parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from gpuloader.loading.reader import EncodedBatch, EncodedPart


class Assembly:
    """The batch of one step, assembled from its parts in order. A batch of one part is not copied.

    Args:
        pads: whether smaller images are padded with zeros, at the bottom and right.
    """

    def __init__(self, pads: bool) -> None:
        self._make = torch.zeros if pads else torch.empty
        self._parts: list[EncodedPart] = []
        self._views: list[Any] = []

    def add(self, part: EncodedPart, views: list[Any]) -> tuple[EncodedBatch, list[Any]] | None:
        """Adds a part, with its images in each view; after the last part, returns the batch and all of its images."""
        count = len(part.batch.ids)
        if part.rows == slice(0, count):
            self._views = views
        else:
            before = self._views or [None] * len(views)
            self._views = [self._placed(whole, view, part.rows, count) for whole, view in zip(before, views)]
        self._parts.append(replace(part, images=()))
        return (self._whole(), self._views) if part.is_last else None

    def _placed(self, whole: Any, images: Any, rows: slice, count: int) -> Any:  # noqa: ANN401
        """Returns the images of a view up to these rows; `whole` has the earlier ones."""
        if isinstance(images, list):
            return [*(whole or ()), *images]
        there = images.shape[1:] if whole is None else whole.shape[1:]
        sides = tuple(map(max, images.shape[1:], there))
        if whole is None or sides != there:
            larger = self._make((count, *sides), dtype=images.dtype, device=images.device)
            whole = larger if whole is None else _put(larger, whole, slice(0, rows.start))
        return _put(whole, images, rows)

    def _whole(self) -> EncodedBatch:
        batch = max((part.batch for part in self._parts), key=lambda batch: batch.opened)
        seconds = batch.reading_seconds + sum(part.reading_seconds for part in self._parts)
        batch = replace(batch, reading_seconds=seconds)
        return batch if batch.finish is None else batch.finish(batch, self._parts)


def _put(whole: torch.Tensor, images: torch.Tensor, rows: slice) -> torch.Tensor:
    """Copies images into rows of a batch, each at the top left."""
    whole[(rows, *map(slice, images.shape[1:]))] = images[: rows.stop - rows.start]
    return whole
