"""Checks each operation alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpuloader import transforms as T  # noqa: N812
from gpuloader.plan import Draw
from gpuloader.recipe import Recipe
from gpuloader.recipe.model import Ints, PixelTransform, Transform
from gpuloader.recipe.program import Op, Program, chain, step
from gpuloader.tools.verify.comparison import NARROWER, Comparisons, Subject, compare_loads
from gpuloader.tools.verify.pictures import SMALL, encoded, picture, tar_of

_PICTURES = 16
_AS_IT_IS = T.Resize(SMALL)


@dataclass(frozen=True)
class Steps(PixelTransform):
    """The same steps for each image: operations of `gpuloader.recipe.program`, and their first parameters."""

    operations: tuple[tuple[Op, Sequence[float]], ...]

    @property
    def steps(self) -> int:
        return len(self.operations)

    def program(self, draw: Draw, sizes: Ints) -> Program:
        return chain([step(op, draw.samples, *parameters) for op, parameters in self.operations], draw.samples)


def _step(op: Op, *parameters: float) -> Steps:
    return Steps(((op, parameters),))


PIXEL_OPERATIONS: Mapping[str, PixelTransform] = {
    "rotation, nearest": T.RandomRotation((30, 30)),
    "rotation, bilinear": T.RandomRotation((30, 30), "bilinear", fill=124),
    "shear": T.RandomAffine(0, shear=(20, 20), interpolation="bilinear"),
    "perspective": T.RandomPerspective(0.5, 1.0),
    "brightness": _step(Op.BRIGHTNESS, 1.4),
    "contrast": _step(Op.CONTRAST, 0.6),
    "saturation": _step(Op.SATURATION, 1.4),
    "hue": _step(Op.HUE, 0.1),
    "sharpness": _step(Op.SHARPNESS, 1.9),
    "posterize": _step(Op.POSTERIZE, 3),
    "solarize": _step(Op.SOLARIZE, 128),
    "solarize, add": _step(Op.SOLARIZE_ADD, 40),
    "invert": _step(Op.INVERT),
    "autocontrast": _step(Op.AUTOCONTRAST),
    "equalize": _step(Op.EQUALIZE),
    "grayscale": _step(Op.GRAYSCALE),
    "blur": _step(Op.BLUR, 2.0, 9),
    "permute": _step(Op.PERMUTE, 2, 0, 1),
    "mix with the inverse": Steps(
        ((Op.MIX_BEGIN, ()), (Op.INVERT, ()), (Op.MIX_ADD, (0.3,)), (Op.MIX_ADD, (0.7,)), (Op.MIX_END, ()))
    ),
}

OPERATIONS: Mapping[str, Sequence[Transform]] = {
    "resize, smaller": (T.Resize((50, 70)),),
    "resize, smaller, bicubic": (T.Resize((50, 70), "bicubic"),),
    "resize, larger": (T.Resize((180, 200)),),
    "crop": (_AS_IT_IS, T.RandomCrop(96)),
    **{f"padding, {mode}": (_AS_IT_IS, T.Pad(20, 124, mode)) for mode in ("constant", "edge", "reflect", "symmetric")},
    "padding before a resize": (_AS_IT_IS, T.Pad(20, 124), T.Resize((50, 70))),
    "mirrored padding before a resize": (_AS_IT_IS, T.Pad(20, padding_mode="reflect"), T.Resize((50, 70))),
    "horizontal flip": (_AS_IT_IS, T.RandomHorizontalFlip(1.0)),
    "vertical flip": (_AS_IT_IS, T.RandomVerticalFlip(1.0)),
    "flips between operations": (
        *(_AS_IT_IS, _step(Op.BRIGHTNESS, 1.2), T.RandomHorizontalFlip(1.0)),
        *(_step(Op.INVERT), T.RandomVerticalFlip(1.0), _step(Op.BRIGHTNESS, 1.1)),
    ),
    **{name: (_AS_IT_IS, operation) for name, operation in PIXEL_OPERATIONS.items()},
    "one of these for each image": (_AS_IT_IS, T.RandomChoice(tuple(PIXEL_OPERATIONS.values()))),
    "erasing, gray": (_AS_IT_IS, T.RandomErasing(1.0, value=0.5)),
    "erasing, noise": (_AS_IT_IS, T.RandomErasing(1.0, value="random")),
}


def operations(subject: Subject) -> Comparisons:
    """Compares each operation with a fixed strength, on images that every decoder decodes equally."""
    with tar_of(encoded(picture(number), "PNG") for number in range(_PICTURES)) as tar:
        for name, transforms in OPERATIONS.items():
            erases = isinstance(transforms[-1], T.RandomErasing)
            preset = Recipe(tuple(transforms), dtype="float32" if erases else "uint8")
            yield name, partial(compare_loads, subject, tar, NARROWER, preset=preset)
