"""`Apply`: runs your own code on the pixels of each image, in the middle of a recipe."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gpuloader.errors import describe
from gpuloader.plan import Stream
from gpuloader.recipe.model import UNCHECKED, Flag, Transform
from gpuloader.recipe.part import part


@part
class Apply(Transform):
    """Calls your own code on each image, between the transforms before and after it.

    A view may have one `Apply`, anywhere before `Normalize`. The code runs in processes, see `Decoder(processes=)`.

    Attributes:
        function: takes an image, uint8 (height, width, 3) RGB, and returns an image; it may change its argument. With a
            second parameter, or a parameter `rng`, it also gets a NumPy `Generator`, whose numbers depend only on seed,
            epoch and sample. A transform of albumentations or torchvision works unchanged, with its own seed for each
            sample. None is a placeholder for a function that YAML names.
        name: identifies the function in the recipe's fingerprint and in YAML. They do not contain the code, so change
            the name when the code makes other pixels. None takes the function's own name; lambdas and partials have
            none.
        targets: also pass the targets, and take them back: a dictionary after the image, with the entries of the
            loader's `Boxes`, `Mask` and `Keypoints`, or the targets of a `Compose` call. Boxes are float64 (n, 4) x1,
            y1, x2, y2 in pixels of this image. The function may drop rows, in all columns of a field.
        same_size: images keep their size. If not, a crop or `Resize` must follow, or `batch` must allow any sizes.

    Raises:
        PresetError: the function cannot be called, or has no name.

    Example:
        >>> import numpy as np
        >>> from gpuloader import Compose
        >>> from gpuloader.transforms import Apply, RandomResizedCrop
        >>> def film(image, rng):
        ...     return (image + rng.normal(0, 8, image.shape)).clip(0, 255).astype("uint8")
        >>> compose = Compose([RandomResizedCrop(32), Apply(film)])
        >>> compose(np.zeros((48, 64, 3), np.uint8), seed=7).shape
        torch.Size([3, 32, 32])
    """

    stream: ClassVar[Stream] = Stream.OWN

    function: Annotated[Callable[..., Any] | None, UNCHECKED] = None
    name: Annotated[str, Field(min_length=1)] | None = None
    targets: Flag = False
    same_size: Flag = True

    @model_validator(mode="after")
    def _check(self) -> Apply:
        if self.function is not None and not callable(self.function):
            raise ValueError(f"function={describe(self.function)}: allowed is a function that takes an image")
        if self.name is None and not own_name(self.function):
            raise ValueError(f"found {describe(self.function)}, which has no name of its own: write name='film'")
        if self.targets and is_transform(self.function) and not is_albumentations(self.function):
            raise ValueError(
                f"targets=True: {self.called} gets the image alone; give a function (image, targets) that calls it"
            )
        return self

    @property
    def called(self) -> str:
        """The name of the function in recipes."""
        return self.name or own_name(self.function)

    @property
    def random(self) -> bool:
        return self.function is None or is_transform(self.function) or takes_rng(self.function, self.targets)

    def written_as(self, brief: bool) -> dict[str, Any]:
        """Returns what is written: in YAML the name; in a fingerprint also the `repr` of a library's transform."""
        values: dict[str, Any] = {"name": self.called, "targets": self.targets, "same_size": self.same_size}
        if brief:
            return {name: value for name, value in values.items() if value is not getattr(type(self), name)}
        if is_albumentations(self.function):
            described = json.dumps(self.function.to_dict()["transform"], sort_keys=True, default=str)  # type: ignore[union-attr]
            values["transform"] = hashlib.blake2b(described.encode(), digest_size=16).hexdigest()
        elif is_transform(self.function):
            values["transform"] = repr(self.function)
        return values


class Originals:
    """Transforms in torchvision's style without counterpart here, as one function of an image.

    Args:
        transforms: are called one after the other.
        given: the first one's input: "picture" for a PIL image, "uint8" or "float32" for a tensor (3, height, width).
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]], given: str) -> None:
        self._transforms, self._given = list(transforms), given

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        made: Any = image
        if self._given == "picture":
            from PIL import Image  # late: most recipes have no such transforms

            made = Image.fromarray(image)
        else:
            import torch

            made = torch.from_numpy(image).permute(2, 0, 1)
            made = made if self._given == "uint8" else made.float() / 255
        for transform in self._transforms:
            made = transform(made)
        if not hasattr(made, "permute"):
            return np.asarray(made)
        made = made.permute(1, 2, 0)
        array: NDArray[np.uint8] = (made * 255).round().byte().numpy() if made.is_floating_point() else made.numpy()
        return array

    def __repr__(self) -> str:
        return ", ".join(re.sub(" at 0x[0-9a-f]+", "", repr(each)) for each in self._transforms)


def is_albumentations(function: object) -> bool:
    """Returns whether it is a transform or a `Compose` of albumentations."""
    return hasattr(function, "set_random_seed") and hasattr(function, "to_dict")


def is_module(function: object) -> bool:
    """Returns whether it is a transform of torchvision, or another module of torch."""
    return isinstance(function, getattr(sys.modules.get("torch.nn"), "Module", ()))


def is_transform(function: object) -> bool:
    """Returns whether it is a library's transform, which draws random numbers in its own way."""
    return is_albumentations(function) or is_module(function) or isinstance(function, Originals)


def own_name(function: object) -> str:
    """Returns the name of a function, or of a transform's class; "" if it has none."""
    name = getattr(type(function) if is_transform(function) else function, "__qualname__", "")
    name = name.rpartition("<locals>.")[2]
    return "" if "<" in name else name


def takes_rng(function: Callable[..., Any] | None, targets: bool) -> bool:
    """Returns whether a function takes random numbers: one more parameter than needed, or a parameter `rng`."""
    try:
        parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):  # of C, without a signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters.values() if each.kind in positional and each.default is each.empty]
    return "rng" in parameters or len(needed) > 1 + targets
