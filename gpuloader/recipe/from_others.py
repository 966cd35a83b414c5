"""Converts transforms of other libraries to torchvision's transforms: a row of a table for each class.

The libraries are open_clip, CLIP, timm, solo-learn and lightly, and torchvision's own reference scripts.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FunctionType, SimpleNamespace
from typing import Any, TypeAlias

from gpuloader.base.text import did_you_mean
from gpuloader.recipe.crops import CenterCrop, Resize
from gpuloader.recipe.from_config import square
from gpuloader.recipe.from_timm import ADVICE, TIMMS, NoCounterpartError, centre_crop
from gpuloader.recipe.model import Transform
from gpuloader.recipe.preset_files import TRANSFORMS

Row: TypeAlias = Callable[[Any], Any]
"""Converts an object of a class to transforms of torchvision (also made by `like`) or of this library, or a list."""

LIBRARIES = ("clip", "lightly", "open_clip", "solo", "timm")
REFERENCES = "the reference"
DIGESTS = (  # presets.py, transforms.py and v2_extras.py in classification/, detection/ and segmentation/
    "c39872b59484 06fb2eda60df 9664eef68357 724e1769cea4 8731d1cd24ab "
    "d3d0c84e77a0 b9d90e92e6cc 33acac38ba31 62caf9971cae e071961f65f7 67339f33b556 eece9b0228fd b59ed7b7486c "
    "16b11b09c20a cceac6f490fd ccf2c5893690 de5c4195c15d 58a5b60e3b8a "
    "8425957cf5c3 e8dae1b661fb 0cb86c9da45c 06ec3096b668 1c8dd45ae7d0 3a02b20d64b6 899e1263d7f9 09b7b9d02760 "
    "915b18ad3bd5 1e7c93691075 03f5a919b59e da873d05a674 34abe0ba1da0 "
    "9efd07ecb8f9 d31f86c1322a c1e998adaa39 60bb25cb7f0b d0d390bdce6f 01943daa4be2"
)
"""`digest_of` the classes of torchvision's references/, because other classes may have the same names.

They are from v0.13 to v0.15, and from v0.16 to the main branch in August 2024, before v0.20.
"""


def like(name: str, module: str = "torchvision.transforms", **attributes: Any) -> Any:  # noqa: ANN401
    """Makes an object that looks like a transform, with this class name, module and attributes."""
    return type(name, (SimpleNamespace,), {"__module__": module})(**attributes)


def name_of(leaf: object) -> tuple[str, str]:
    """Returns (module, name) of a function, or of an object's class."""
    kind = leaf if isinstance(leaf, FunctionType) else type(leaf)
    return kind.__module__, kind.__name__


def library_of(leaf: object) -> str:
    """Returns the name of a transform's package."""
    package = name_of(leaf)[0].partition(".")[0]
    if package in (*LIBRARIES, "torch", "torchvision"):  # reading the source text takes milliseconds
        return package
    digest = digest_of(type(leaf))
    return REFERENCES if digest and digest in DIGESTS else package


def digest_of(kind: type) -> str:
    """Computes the digest of a class's source text; "" without source text."""
    try:
        text = textwrap.dedent(inspect.getsource(kind)).rstrip() + "\n"
    except (OSError, TypeError):  # made without a file
        return ""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def row_of(leaf: object) -> Row | None:
    """Returns the row for an object; None for torchvision's and unknown transforms."""
    library, name = library_of(leaf), name_of(leaf)[1]
    if library == REFERENCES:
        return _REFERENCES.get(name, _of_reference)
    if library == "lightly" and re.fullmatch(r"\w+View\d?Transform", name) and hasattr(leaf, "transform"):
        return lambda leaf: leaf.transform
    return _ROWS.get(f"{library}.{name}")


def why_not(leaf: object, nesting: Collection[str]) -> str:
    """Returns why an object has no row, and what to do; `nesting` are the names of classes that hold lists."""
    library, (module, name) = library_of(leaf), name_of(leaf)
    held = [key for key, value in getattr(leaf, "__dict__", {}).items() if type(value).__name__ in nesting]
    if library == "timm":
        return f"timm's {name} has no counterpart: {ADVICE.get(name, 'leave it out')}"
    if library in ("torchvision", "torch"):
        return f"{name} has no counterpart{f': {NEAREST[name]}' if name in NEAREST else did_you_mean(name, TRANSFORMS)}"
    advice = NEAREST.get(name, "")
    if held and not advice:
        advice = (
            f"its attribute is a {type(vars(leaf)[held[0]]).__name__}; to convert only this attribute: "
            f"Compose.from_torchvision(dataset.transform.{held[0]})"
        )
    if library in LIBRARIES:
        what = f"{library}'s {name} has no counterpart"
    else:
        what = f"{name} has no counterpart" if name in NEAREST else f"{module}.{name} is not a transform of torchvision"
    return f"{what}{advice and f': {advice}'}"


def views_of(transform: Any) -> list[tuple[Any, int]]:  # noqa: ANN401
    """Lists the pipelines that a transform applies to an image, each with its number of views."""
    match library_of(transform), name_of(transform)[1]:
        case "solo", "FullTransformPipeline":
            return [view for each in transform.transforms for view in views_of(each)]
        case "solo", "NCropAugmentation":
            return [(transform.transform, transform.num_crops)]
    for kind in type(transform).__mro__:
        is_lightlys = kind.__name__ == "MultiViewTransform" and kind.__module__.startswith("lightly.")
        if is_lightlys and type(transform).__call__ is kind.__call__:
            return [(each, 1) for each in transform.transforms]
    return [(transform, 1)]


def _of_reference(leaf: Any) -> Any:  # noqa: ANN401
    """Converts a class of the references; nearly all have torchvision's names and parameters."""
    name = type(leaf).__name__
    attributes = {"p" if key == "flip_prob" else key: value for key, value in vars(leaf).items()}
    return leaf.transforms if "Preset" in name else like(name, **attributes)


def _distort(leaf: Any) -> Any:  # noqa: ANN401
    """Converts by the ranges of its `ColorJitter`s, where None means no change."""
    neutral = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}
    held = {name: getattr(getattr(leaf, f"_{name}"), name) for name in neutral}
    ranges: dict[str, Any] = {name: bounds or (neutral[name],) * 2 for name, bounds in held.items()}
    return like("RandomPhotometricDistort", p=leaf.p, **ranges)


def _resize_by_range(leaf: Any) -> Any:  # noqa: ANN401
    if leaf.min_size == leaf.max_size:
        return Resize(leaf.min_size)
    return like("RandomResize", min_size=leaf.min_size, max_size=leaf.max_size + 1)  # there `max_size` is drawn, too


def _pil_blur(sigma: Iterable[float]) -> Any:  # noqa: ANN401
    low, high = sigma
    return like("GaussianBlur", kernel_size=2 * math.ceil(3 * high) + 1, sigma=(low, high))


def _sometimes(p: float, *transforms: Any) -> list[Any]:  # noqa: ANN401
    return [like("RandomApply", transforms=transforms, p=p)] if p > 0 else []


def _only_rgb(leaf: Any) -> list[Any]:  # noqa: ANN401
    if leaf.mode != "RGB":
        raise NoCounterpartError(f'with mode={leaf.mode!r}: only "RGB" is supported')
    return []


def with_crops(transforms: Iterable[Any]) -> Iterator[Any]:
    """Yields transforms; each `ResizeKeepRatio` gets the next crop as an attribute: both are one resize here."""
    left = iter(transforms)
    for each in left:
        module, name = name_of(each)
        apart = name == "ResizeKeepRatio" and not hasattr(each, "crop")
        yield like(name, module, **vars(each), crop=next(left, None)) if apart else each


def _resize_to_crop(leaf: Any) -> list[Transform]:  # noqa: ANN401
    size, crop, filter_ = tuple(leaf.size), vars(leaf).get("crop"), leaf.interpolation
    pads = name_of(crop)[1] == "CenterCropOrPad" and getattr(crop, "padding_mode", "constant") == "constant"
    draws = leaf.random_scale_prob or leaf.random_aspect_prob or isinstance(filter_, (list, tuple))
    if not draws and tuple(getattr(crop, "size", ())) == size:
        if leaf.longest == 1 and pads:
            return [Resize(size, filter_.value, pad=crop.fill)]
        if leaf.longest == 0 and (pads or name_of(crop)[1] == "CenterCrop"):
            return [Resize("cover", filter_.value), CenterCrop(square(*size))]
    raise NoCounterpartError(
        f"to {size} has no counterpart before {name_of(crop)[1]}: allowed are longest=1 before CenterCropOrPad, and "
        f"longest=0 before CenterCrop, of the same size (with timm, crop_pct=1), and no drawn scales, ratios or filters"
    )


NEAREST = {
    "ClampBoundingBoxes": "leave it out: boxes are cut to the image",
    "ElasticTransform": "the nearest is RandomPerspective",
    "GaussianNoise": 'the nearest is RandomErasing(value="random")',
    "JPEG": "the nearest is GaussianBlur",
    "LinearTransformation": "the nearest is Normalize",
    "RandomChannelPermutation": "the nearest is RandomPhotometricDistort",
    "RandomOrder": "the nearest are its transforms in one order, and RandomChoice",
    "SimpleCopyPaste": 'the nearest is the preset "detection_multiscale"',
    **dict.fromkeys(("_convert_to_rgb", "_convert_image_to_rgb"), "leave it out: images are RGB"),
}
"""Advice for transforms without counterpart."""
_TO_TENSOR = ("lightly.ToTensor", "open_clip.MaybeToTensor", "timm.MaybeToTensor")
_NOTHING_TO_DO = ("clip._convert_image_to_rgb", "open_clip._convert_to_rgb", "timm.MaybePILToTensor", "timm.ToNumpy")
_REFERENCES: Mapping[str, Row] = {
    "FixedSizeCrop": lambda leaf: like(
        "FixedSizeCrop", size=(leaf.crop_height, leaf.crop_width), fill=leaf.fill, padding_mode=leaf.padding_mode
    ),
    "RandomCrop": lambda leaf: [like("PadIfSmaller", size=leaf.size), like("RandomCrop", size=leaf.size)],
    "RandomPhotometricDistort": _distort,
    "RandomResize": _resize_by_range,
}
_ROWS: Mapping[str, Row] = {
    **dict.fromkeys(_NOTHING_TO_DO, lambda leaf: []),
    **dict.fromkeys(_TO_TENSOR, lambda leaf: like("ToTensor")),
    "lightly.GaussianBlur": lambda leaf: _sometimes(leaf.prob, _pil_blur(leaf.sigmas)),
    "lightly.RandomRotate": lambda leaf: _sometimes(leaf.prob, like("RandomRotation", degrees=(leaf.angle,) * 2)),
    "lightly.RandomRotateDegrees": lambda leaf: leaf.transform,
    "lightly.RandomSolarization": lambda leaf: like("RandomSolarize", threshold=leaf.threshold, p=leaf.prob),
    **dict.fromkeys(("open_clip.ResizeKeepRatio", "timm.ResizeKeepRatio"), _resize_to_crop),
    "open_clip.MaybeConvertMode": _only_rgb,
    "open_clip.CenterCropOrPad": centre_crop,
    "open_clip.color_jitter": lambda leaf: _sometimes(leaf.p, leaf.transf),
    "open_clip.gray_scale": lambda leaf: like("RandomGrayscale", p=leaf.p),
    "solo.Equalization": lambda leaf: like("RandomEqualize", p=1.0),
    "solo.GaussianBlur": lambda leaf: _pil_blur(leaf.sigma),
    "solo.Solarization": lambda leaf: like("RandomSolarize", threshold=128, p=1.0),
    **{f"timm.{name}": row for name, row in TIMMS.items()},
}
