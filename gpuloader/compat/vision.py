"""Collates images and labels into a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from gpuloader.base.text import counted
from gpuloader.errors import ConfigError, describe

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_IMAGES = "pixel_values", "image", "img"
_LABELS = "labels", "label"


class VisionDataCollator:
    """A collator of images: "pixel_values" (B, C, H, W) float32 and, if samples have them, "labels".

    A sample is a pair (image, label), as in torchvision's data sets, or a mapping with its image under `pixel_values`,
    `image` or `img` and its label under `labels` or `label`. An image is a float tensor (C, H, W) in [0, 1], a uint8
    tensor in [0, 255], a uint8 array (H, W) or (H, W, C), or a Pillow image.

    Args:
        normalize: whether to normalise to mean 0 and standard deviation 1.
        mean: one for each channel, in [0, 1]; None uses ImageNet's. Images of one channel use the average of three.
        std: the same for the standard deviation.

    Raises:
        ConfigError: samples without images, images that cannot be stacked, or invalid arguments.
    """

    def __init__(
        self,
        normalize: bool = True,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        self._mean = _IMAGENET[0] if mean is None else mean
        self._std = _IMAGENET[1] if std is None else std
        if len(self._mean) != len(self._std) or not all(value > 0 for value in self._std):
            raise ConfigError(
                f"mean={mean!r}, std={std!r}: allowed is a number for each channel in both, and std above 0"
            )
        self._normalize = normalize

    def __call__(self, batch: Sequence[Any]) -> dict[str, Any]:
        samples = [
            sample if isinstance(sample, Mapping) else dict(zip(_IMAGES[:1] + _LABELS[:1], sample)) for sample in batch
        ]
        images = [_of(sample, _IMAGES) for sample in samples]
        labelled = any(name in samples[0] for name in _LABELS)
        labels = {"labels": default_collate([_of(sample, _LABELS) for sample in samples])} if labelled else {}
        return {"pixel_values": self._stack(images), **labels}

    def _stack(self, images: Sequence[Any]) -> torch.Tensor:
        tensors = [_as_tensor(image) for image in images]
        if len(shapes := sorted({tuple(tensor.shape) for tensor in tensors})) > 1:
            raise ConfigError(
                f"images of shapes {shapes[:5]} cannot be stacked: resize them in the dataset, or decode files with "
                f"gpuloader.Compose.load"
            )
        pixels = torch.stack(tensors)
        if not self._normalize:
            return pixels
        mean, std = (torch.tensor(values, dtype=torch.float32) for values in (self._mean, self._std))
        channels = pixels.shape[1]
        if channels == 1:
            mean, std = mean.mean(0, keepdim=True), std.mean(0, keepdim=True)
        if channels != len(mean):
            raise ConfigError(
                f"images have {counted(channels, 'channel')}, mean and std have {len(mean)}: give one for each"
            )
        return (pixels - mean[:, None, None]) / std[:, None, None]


def _of(sample: Mapping[str, Any], names: Sequence[str]) -> Any:  # noqa: ANN401
    for name in names:
        if name in sample:
            return sample[name]
    raise ConfigError(f"a sample has {', '.join(map(str, sample))}: it needs one of {', '.join(names)}")


def _as_tensor(image: Any) -> torch.Tensor:  # noqa: ANN401
    """Converts an image to (C, H, W) float32 in [0, 1]."""
    if not isinstance(image, (torch.Tensor, list)):
        array = np.array(image)
        if array.dtype != np.uint8 or array.ndim not in (2, 3):
            raise ConfigError(
                f"an image is {describe(image)}: allowed are tensors (C, H, W), uint8 arrays (H, W, C) and Pillow "
                f"images; gpuloader.Compose.load decodes the bytes of files"
            )
        image = torch.from_numpy(array.reshape(*array.shape[:2], -1)).permute(2, 0, 1)
    image = torch.as_tensor(image)
    return image / 255 if image.dtype == torch.uint8 else image.float()
