"""turboloader's transforms: each can be applied to an image, and is a recipe for a `GPULoader`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpuloader import transforms as gl
from gpuloader.compose import Compose as Recipe
from gpuloader.errors import ConfigError, PresetError

_SIZED = (gl.Resize, gl.CenterCrop, gl.RandomCrop)


class TensorFormat(Enum):
    """The order of an image's dimensions that `ToTensor` gives."""

    NONE = "as it is"
    PYTORCH_CHW = "chw"
    TENSORFLOW_HWC = "hwc"


class Transform:
    """A transform that can be applied to an image.

    The k-th image gets the random parameters of sample k in epoch 0 of a `GPULoader` with this `preset` and the seed
    `torch.initial_seed()`.

    Attributes:
        steps: the transforms of `gpuloader.transforms` that it applies.
        format: the order of dimensions of the result.
    """

    def __init__(self, *steps: Any, format: TensorFormat = TensorFormat.NONE) -> None:  # noqa: A002, ANN401 - theirs
        self.steps = steps
        self.format = format
        self._applied = 0
        self._last: tuple[tuple[int, int], Recipe] | None = None

    @cached_property
    def preset(self) -> Recipe:
        """The transform as a recipe, for `GPULoader(..., preset=)`.

        Raises:
            PresetError: it leaves images of different sizes, or its steps are in an invalid order.
        """
        if not self.sized:
            raise PresetError(
                f"{type(self).__name__} leaves images of different sizes, which make no batch: put Resize, CenterCrop "
                f"or RandomCrop before the others"
            )
        return Recipe(self.steps, dtype=self._dtype)

    def apply(self, image: NDArray[np.uint8]) -> NDArray[Any]:
        """Returns the transformed image.

        Args:
            image: uint8 (height, width, 3), RGB; any dtype if there are no steps, as for `ToTensor`.

        Returns:
            (3, height, width) with `ToTensor`, otherwise (height, width, 3); float32 if normalised, otherwise uint8.

        Raises:
            ConfigError: the image is not of this form.
            PresetError: as raised by `preset`.
        """
        pixels = np.asarray(image)
        if pixels.ndim != 3:
            raise ConfigError(f"the image is {pixels.dtype} of shape {pixels.shape}: allowed is (height, width, 3)")
        if self.steps:
            number, self._applied = self._applied, self._applied + 1
            output = self._recipe((pixels.shape[0], pixels.shape[1]))(pixels, seed=torch.initial_seed(), sample=number)
            assert isinstance(output, torch.Tensor)  # of one image, one view
            pixels = output.permute(1, 2, 0).numpy()
        if self.format is TensorFormat.PYTORCH_CHW:
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels)

    __call__ = apply

    @property
    def sized(self) -> bool:
        """Whether all its results have one size."""
        return any(isinstance(step, _SIZED) for step in self.steps)

    @property
    def _dtype(self) -> Any:  # noqa: ANN401 - a Literal of Recipe's
        return "float32" if any(isinstance(step, gl.Normalize) for step in self.steps) else "uint8"

    def _recipe(self, size: tuple[int, int]) -> Recipe:
        """Returns the recipe for an image of this size. It is kept, because its graph takes some 15 ms to make."""
        if self.sized:
            return self.preset
        last = self._last
        if last is None or last[0] != size:
            self._last = last = size, Recipe((gl.CenterCrop(size), *self.steps), dtype=self._dtype)
        return last[1]


class Compose(Transform):
    """Transforms, one after the other, in the order of recipes: geometry first, then colours, then normalising."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        if wrong := [each for each in transforms if not isinstance(each, Transform)]:
            raise PresetError(
                f"Compose: {wrong[0]!r} is not a transform of this module: use these, or `gpuloader.Compose`, which "
                f"takes transforms of gpuloader.transforms, and of torchvision with `from_torchvision`"
            )
        formats = [each.format for each in transforms if each.format is not TensorFormat.NONE]
        steps = [step for each in transforms for step in each.steps]
        super().__init__(*steps, format=formats[-1] if formats else TensorFormat.NONE)


class Resize(Transform):
    """Resizes the image to this size and changes its proportions if needed. The filter is PIL's, which antialiases."""

    def __init__(self, width: int, height: int, interpolation: Any = "bilinear") -> None:  # noqa: ANN401 - a Literal
        super().__init__(gl.Resize((height, width), interpolation))


class RandomCrop(Transform):
    """Cuts out a window of this size at a random place in the padded image."""

    def __init__(self, width: int, height: int, padding: int = 0) -> None:
        super().__init__(gl.RandomCrop((height, width), padding))


class CenterCrop(Transform):
    """Cuts out the middle of the image."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__(gl.CenterCrop((height, width)))


class RandomHorizontalFlip(Transform):
    """Flips the image left to right, with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(gl.RandomHorizontalFlip(p))


class ColorJitter(Transform):
    """Changes brightness, contrast, saturation and hue at random, as torchvision does."""

    def __init__(
        self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, hue: float = 0.0
    ) -> None:
        super().__init__(gl.ColorJitter(brightness, contrast, saturation, hue))


class Normalize(Transform):
    """(x - mean) / std by channel, for x in [0, 1]; the result is float32."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(gl.Normalize(tuple(mean), tuple(std)))


class ImageNetNormalize(Normalize):
    """`Normalize` with ImageNet's mean and standard deviation."""

    def __init__(self) -> None:
        super().__init__((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class ToTensor(Transform):
    """Puts the dimensions into torch's order. The values stay, and the result is still an array."""

    def __init__(self, format: TensorFormat = TensorFormat.PYTORCH_CHW) -> None:  # noqa: A002 - theirs
        super().__init__(format=format)
