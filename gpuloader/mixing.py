"""MixUp and CutMix of a batch: what `gpuloader.recipe.mix` drew, done to tensors on the batch's device."""

from __future__ import annotations

import torch


def mix_images(images: torch.Tensor, weight: torch.Tensor, box: torch.Tensor) -> None:
    """Mixes each image with its neighbour, 0 with 1, 2 with 3 and so on, in place.

    Args:
        images: (n, 3, h, w), float, n even.
        weight: (n,) float32, what stays of an image where it has no box.
        box: (n, 4) int32 top, left, bottom, right of what comes from the neighbour; all 0 for none.
    """
    height, width = images.shape[2:]
    rows, columns = (torch.arange(size, device=images.device) for size in (height, width))
    top, left, bottom, right = (side[:, None] for side in box.unbind(1))
    inside = ((rows >= top) & (rows < bottom))[:, None, :, None] & ((columns >= left) & (columns < right))[
        :, None, None
    ]
    cut = (box[:, 2] > 0)[:, None, None, None]
    share = torch.where(cut, inside.to(images.dtype), (1 - weight)[:, None, None, None].to(images.dtype))
    # On a CPU a pair at a time, which its caches hold.
    together = 2 if images.device.type == "cpu" else max(2, len(images))
    room = torch.empty_like(images[: together // 2])
    for pairs, shares in zip(torch.split(images, together), torch.split(share, together)):
        first, second = pairs[0::2], pairs[1::2]
        difference = torch.sub(second, first, out=room)
        first.addcmul_(shares[0::2], difference)
        second.addcmul_(shares[1::2], difference, value=-1)


def soft_labels(labels: torch.Tensor, weight: torch.Tensor, num_classes: int, smoothing: float) -> torch.Tensor:
    """(n, num_classes) float32: each label's share of its class, smoothed, mixed with the neighbour's like its image.

    Args:
        labels: (n,) int64 in [0, num_classes), n even.
        weight: (n,) float32, the sample's own share.
        smoothing: spread evenly over all classes.
    """
    own = torch.full((len(labels), num_classes), smoothing / num_classes, device=labels.device)
    own.scatter_(1, labels[:, None], 1 - smoothing + smoothing / num_classes)
    neighbour = own.view(-1, 2, num_classes).flip(1).reshape(own.shape)
    return torch.lerp(neighbour, own, weight[:, None])
