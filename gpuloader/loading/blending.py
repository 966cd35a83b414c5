"""Applies MixUp and CutMix, with the parameters of `gpuloader.recipe.mix`, to tensors on their device, and to masks."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from gpuloader.recipe import Mixing


def mix_images(images: torch.Tensor, mixing: Mixing) -> None:
    """Mixes each image with its neighbour in place: 0 with 1, 2 with 3, and so on.

    Args:
        images: (n, 3, h, w), float, n even.
        mixing: the random parameters of the n samples.
    """
    (mix_one_by_one if images.device.type == "cpu" else mix_together)(images, mixing)


def mix_one_by_one(images: torch.Tensor, mixing: Mixing) -> None:
    """Mixes on a CPU, pair by pair: a pair fits into the caches, and torch's threads would compete with DALI's."""
    array: NDArray[Any] = images.numpy()
    for first in range(0, len(array), 2):
        pair = array[first : first + 2].copy(order="K")
        for row in (first, first + 1):
            image, own, neighbour = array[row], pair[row - first], pair[first + 1 - row]
            top, left, bottom, right = mixing.box[row]
            if bottom:
                image[:, top:bottom, left:right] = neighbour[:, top:bottom, left:right]
            elif mixing.weight[row] < 1:
                difference = neighbour - own
                difference *= 1 - mixing.weight[row]
                image += difference


def mix_together(images: torch.Tensor, mixing: Mixing) -> None:
    """Mixes on a GPU, with few kernel launches."""
    arrays = (mixing.weight, mixing.box)
    weight, box = (torch.from_numpy(array).to(images.device, non_blocking=True) for array in arrays)
    rows, columns = (torch.arange(size, device=images.device) for size in images.shape[2:])
    top, left, bottom, right = (side[:, None] for side in box.unbind(1))
    inside = ((rows >= top) & (rows < bottom))[:, None, :, None] & ((columns >= left) & (columns < right))[
        :, None, None
    ]
    cut = (bottom > 0)[:, :, None, None]
    share = torch.where(cut, inside.to(images.dtype), (1 - weight)[:, None, None, None].to(images.dtype))
    first, second = images[0::2], images[1::2]
    difference = second - first
    first.addcmul_(share[0::2], difference)
    second.addcmul_(share[1::2], difference, value=-1)


def paste_neighbours(masks: NDArray[Any], mixing: Mixing) -> NDArray[Any]:
    """Returns masks, (n, h, w), with the rectangles that CutMix pastes from their neighbours."""
    pasted = masks.copy()
    for row, (top, left, bottom, right) in enumerate(mixing.box.tolist()):
        pasted[row, top:bottom, left:right] = masks[row ^ 1, top:bottom, left:right]
    return pasted


def soft_labels(labels: torch.Tensor, weight: torch.Tensor, num_classes: int, smoothing: float) -> torch.Tensor:
    """Returns smoothed labels, (n, num_classes) float32, mixed with the neighbours' in the same ratio as the images.

    Args:
        labels: (n,) int64 in [0, num_classes), n even.
        weight: (n,) float32, the share of the sample itself.
        smoothing: the part that is spread evenly over all classes.
    """
    own = torch.full((len(labels), num_classes), smoothing / num_classes, device=labels.device)
    own.scatter_(1, labels[:, None], 1 - smoothing + smoothing / num_classes)
    neighbour = own.view(-1, 2, num_classes).flip(1).reshape(own.shape)
    return torch.lerp(neighbour, own, weight[:, None])
