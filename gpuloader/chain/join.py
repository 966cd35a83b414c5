"""`Join`: a link that joins the decoded parts of each step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from gpuloader.chain.batch import Batch
from gpuloader.chain.link import Link, Over


class Join(Over):
    """A link that joins the parts of each step. A step of one part is not copied.

    Args:
        pads: whether smaller images are padded with zeros, at the bottom and right.
    """

    def __init__(self, under: Link, pads: bool) -> None:
        super().__init__(under)
        self._make = torch.zeros if pads else torch.empty

    def next(self) -> Batch | None:
        parts, views = list[Batch](), list[Any]()
        while (part := self._under.next()) is not None:
            if part.is_whole:
                return part
            before = views or [None] * len(part.views)
            views = [self._placed(whole, view, part) for whole, view in zip(before, part.views)]
            parts.append(replace(part, views=()))
            if part.rows.stop == part.step.count:
                return replace(Batch.joined(parts), views=views)
        return None

    def _placed(self, whole: Any, images: Any, part: Batch) -> Any:  # noqa: ANN401
        """Returns the images of a view up to this part; `whole` has the earlier ones."""
        if isinstance(images, list):
            return [*(whole or ()), *images]
        there = images.shape[1:] if whole is None else whole.shape[1:]
        sides = tuple(map(max, images.shape[1:], there))
        if whole is None or sides != there:
            larger = self._make((part.step.count, *sides), dtype=images.dtype, device=images.device)
            whole = larger if whole is None else _put(larger, whole, slice(0, part.rows.start))
        return _put(whole, images, part.rows)


def _put(whole: torch.Tensor, images: torch.Tensor, rows: slice) -> torch.Tensor:
    """Copies images into rows of a batch, each at the top left."""
    whole[(rows, *map(slice, images.shape[1:]))] = images[: rows.stop - rows.start]
    return whole
