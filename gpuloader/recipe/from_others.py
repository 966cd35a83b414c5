"""The table of other libraries' transforms: a row for each class, with its counterpart or what to do without one.

The libraries are torchvision, its reference scripts, open_clip, CLIP, timm, solo-learn and lightly. The rows read
attributes, and import none of these libraries.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, SimpleNamespace
from typing import Any, TypeAlias

from gpuloader.base.text import did_you_mean
from gpuloader.errors import PresetError
from gpuloader.recipe.crops import CenterCrop, RandomResizedCrop, Resize
from gpuloader.recipe.output import Normalize, RandomErasing
from gpuloader.recipe.preset_files import TRANSFORMS
from gpuloader.recipe.timm import POLICY_NAMES, ThreeAugment, TimmAutoAugment, TimmRandAugment

Row: TypeAlias = Callable[[Any], Any] | str
"""Converts an object of a class to transforms of torchvision (also made by `like`) or of this library, or a list.

A text is the advice for a class without counterpart. `*` stands for all other classes, or for all libraries.
"""

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
_NESTING = {"Compose", "Sequential", "ModuleList"}


def like(name: str, module: str = "torchvision.transforms", **attributes: Any) -> Any:  # noqa: ANN401
    """Makes an object that looks like a transform, with this class name, module and attributes."""
    return type(name, (SimpleNamespace,), {"__module__": module})(**attributes)


def square(height: int, width: int) -> int | tuple[int, int]:
    """Returns a size as in recipes: only the side of a square."""
    return height if height == width else (height, width)


def evaluation(resize: Resize, crop: Any, mean: Iterable[float], std: Iterable[float]) -> list[Any]:  # noqa: ANN401
    """Lists what nearly all models do to evaluate."""
    return [resize, CenterCrop(crop), like("ToTensor"), Normalize(tuple(mean), tuple(std))]


def name_of(leaf: object) -> tuple[str, str]:
    """Returns (module, name) of a function, or of an object's class."""
    kind = leaf if isinstance(leaf, FunctionType) else type(leaf)
    return kind.__module__, kind.__name__


def library_of(leaf: object) -> str:
    """Returns the name of a transform's package; "torch" for what torch and torchvision have beside transforms."""
    module = name_of(leaf)[0]
    if module.startswith(("torchvision.transforms", "torch.nn")):
        return "torchvision"
    package = module.partition(".")[0].replace("torchvision", "torch")
    if package in (*LIBRARIES, "torch"):  # reading the source text takes milliseconds
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


def convert(leaf: object) -> Any:  # noqa: ANN401
    """Converts an object by its row, or by the row for the other classes of its library.

    Raises:
        PresetError: it has no counterpart; the message says what to do.
    """
    library, (module, name) = library_of(leaf), name_of(leaf)
    row = ROWS.get(f"{library}.{name}", ROWS.get(f"{library}.*"))
    if callable(row) and (made := row(leaf)) is not None:
        return made
    advice = row if isinstance(row, str) else ROWS.get(f"*.{name}", "")
    torchs = library in ("torchvision", "torch")
    hint = f": {advice}" if advice else did_you_mean(name, TRANSFORMS) if torchs else _attribute_to_convert(leaf)
    if advice or torchs or library in LIBRARIES:
        raise no_counterpart(leaf, f"has no counterpart{hint}")
    raise PresetError(f"{module}.{name} is not a transform of torchvision{hint}")


def _attribute_to_convert(leaf: object) -> str:
    """Writes which attribute holds the transforms of a class that may do more than them; "" if none does."""
    for key, value in getattr(leaf, "__dict__", {}).items():
        if (kind := type(value).__name__) in _NESTING:
            whole = f"Compose.from_torchvision(dataset.transform.{key})"
            return f": its attribute is a {kind}; to convert only this attribute: {whole}"
    return ""


def no_counterpart(leaf: object, why: str) -> PresetError:
    """Makes the error for a transform; `why` follows the name of its class."""
    library, name = library_of(leaf), name_of(leaf)[1]
    return PresetError(f"{library}'s {name} {why}" if library in LIBRARIES else f"{name} {why}")


def leaves_of(transform: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yields the transforms within nested `Compose`s and lists, in order.

    Each `ResizeKeepRatio` gets the next crop as an attribute: both are one resize here.
    """
    if not isinstance(transform, (list, tuple)) and type(transform).__name__ not in _NESTING:
        yield transform
        return
    left = iter(getattr(transform, "transforms", transform))
    for each in left:
        module, name = name_of(each)
        apart = name == "ResizeKeepRatio" and not hasattr(each, "crop")
        yield from leaves_of(like(name, module, **vars(each), crop=next(left, None)) if apart else each)


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


# --- torchvision and its reference scripts


def _mixing(leaf: Any, alpha: str) -> Any:  # noqa: ANN401
    mix = f"mix=Mix(num_classes={leaf.num_classes or '...'}, {alpha}={leaf.alpha})"
    raise no_counterpart(leaf, f"mixes batches: leave it out, and give the recipe {mix}")


def _of_weights(leaf: Any) -> list[Any]:  # noqa: ANN401
    """Converts the `transforms()` of torchvision's weights."""
    resize = Resize(leaf.resize_size[0], leaf.interpolation.value, antialias=leaf.antialias is not False)
    return evaluation(resize, leaf.crop_size[0], leaf.mean, leaf.std)


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


# --- open_clip, CLIP, solo-learn and lightly


def _pil_blur(sigma: Iterable[float]) -> Any:  # noqa: ANN401
    low, high = sigma
    return like("GaussianBlur", kernel_size=2 * math.ceil(3 * high) + 1, sigma=(low, high))


def _sometimes(p: float, *transforms: Any) -> list[Any]:  # noqa: ANN401
    return [like("RandomApply", transforms=transforms, p=p)] if p > 0 else []


def _only_rgb(leaf: Any) -> list[Any]:  # noqa: ANN401
    if leaf.mode != "RGB":
        raise no_counterpart(leaf, f'with mode={leaf.mode!r}: only "RGB" is supported')
    return []


def _of_lightly(leaf: Any) -> Any:  # noqa: ANN401
    """Returns the pipeline of one of lightly's views; None for other classes."""
    return getattr(leaf, "transform", None) if re.fullmatch(r"\w+View\d?Transform", name_of(leaf)[1]) else None


def _resize_to_crop(leaf: Any) -> list[Any]:  # noqa: ANN401
    size, crop, filter_ = tuple(leaf.size), vars(leaf).get("crop"), leaf.interpolation
    pads = name_of(crop)[1] == "CenterCropOrPad" and getattr(crop, "padding_mode", "constant") == "constant"
    draws = leaf.random_scale_prob or leaf.random_aspect_prob or isinstance(filter_, (list, tuple))
    if not draws and tuple(getattr(crop, "size", ())) == size:
        if leaf.longest == 1 and pads:
            return [Resize(size, filter_.value, pad=crop.fill)]
        if leaf.longest == 0 and (pads or name_of(crop)[1] == "CenterCrop"):
            return [Resize("cover", filter_.value), CenterCrop(square(*size))]
    allowed = (
        "longest=1 before CenterCropOrPad, and longest=0 before CenterCrop, of the same size (with timm, crop_pct=1)"
    )
    why = f"to {size} has no counterpart before {name_of(crop)[1]}: allowed are {allowed}"
    raise no_counterpart(leaf, f"{why}, and no drawn scales, ratios or filters")


# --- timm

PIL_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_WITHOUT_MAGNITUDE = ("AutoContrast", "Equalize", "Invert")
_3A = [[("Solarize", 1.0, 5)], [("Desaturate", 1.0, 10)], [("GaussianBlurRand", 1.0, 10)]]
_OF_ONE_SIZE = "give create_transform a square input_size, or crop_mode='squash'; to train, train_crop_mode='rrc'"


def _each(value: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _crop(leaf: Any) -> Any:  # noqa: ANN401
    interpolation: Any = "random" if isinstance(leaf.interpolation, (list, tuple)) else leaf.interpolation.value
    return RandomResizedCrop(square(*leaf.size), tuple(leaf.scale), tuple(leaf.ratio), interpolation)


def _centre_crop(leaf: Any) -> Any:  # noqa: ANN401
    """Converts a `CenterCropOrPad` that does not follow a `ResizeKeepRatio`."""
    mode = getattr(leaf, "padding_mode", "constant")
    if mode != "constant" or set(_each(leaf.fill)) != {0}:
        raise no_counterpart(leaf, f"with fill={leaf.fill!r}, padding_mode={mode!r} has no counterpart: {_OF_ONE_SIZE}")
    return CenterCrop(square(*leaf.size))


def _rand_augment(leaf: Any) -> Any:  # noqa: ANN401
    first, names = leaf.ops[0], [op.name for op in leaf.ops]
    alike = {(op.prob, op.magnitude, op.magnitude_std, op.magnitude_max) for op in leaf.ops}
    increasing = "PosterizeIncreasing" in names
    expected = [_with_rel(each) for each in TimmRandAugment(increasing=increasing).names]
    if leaf.choice_weights is not None or len(alike) > 1 or names != expected:
        raise no_counterpart(
            leaf, "has other operations than timm's own two sets: leave 't' out of auto_augment='rand-...'"
        )
    std, *rest = _of_all(leaf, first)
    most = first.magnitude_max or 10
    return TimmRandAugment(first.magnitude, leaf.num_layers, std, increasing, first.prob, most, *rest)


def _of_all(leaf: Any, op: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Returns what all operations of a policy have in common: the standard deviation, the interpolation, the fill."""
    if op.hparams.get("translate_pct", 0.45) != 0.45:
        raise no_counterpart(leaf, "with another translate_pct than 0.45 has no counterpart: leave it out")
    if 100 < op.magnitude_std < math.inf:
        raise no_counterpart(leaf, f"with mstd{op.magnitude_std:g} has no counterpart: allowed is at most 100")
    std = min(op.magnitude_std, 101.0)  # infinity draws evenly; here each value above 100 does
    filters = sorted(PIL_FILTERS[int(each)] for each in _each(op.kwargs["resample"]))
    return std, "random" if filters == ["bicubic", "bilinear"] else filters[0], tuple(op.kwargs["fillcolor"])


def _with_rel(operation: str) -> str:
    """Returns timm's name of an operation, whose moves are shares of the image."""
    return f"{operation}Rel" if operation.startswith("Translate") else operation


def _auto_augment(leaf: Any) -> Any:  # noqa: ANN401
    first = leaf.policy[0][0]
    theirs = [
        [(op.name, op.prob, None if op.name in _WITHOUT_MAGNITUDE else op.magnitude) for op in operations]
        for operations in leaf.policy
    ]
    if theirs == _3A and first.magnitude_std == 0:
        return ThreeAugment(color_jitter=0.0)  # the jitter is a separate transform
    for policy in POLICY_NAMES:
        ours = TimmAutoAugment(policy, *_of_all(leaf, first))
        if theirs == [[(_with_rel(name), p, magnitude) for name, p, magnitude in pair] for pair in ours.pairs]:
            return ours
    raise no_counterpart(leaf, "has other operations than timm's own: give auto_augment='v0', 'original' or '3a'")


def _erasing(leaf: Any) -> Any:  # noqa: ANN401
    if leaf.min_count != 1:
        raise no_counterpart(leaf, f"with min_count={leaf.min_count}: only 1 is supported")
    low, high = (float(f"{math.exp(bound):.12g}") for bound in leaf.log_aspect_ratio)
    value: Any = {"pixel": "random", "rand": "random_color"}.get(leaf.mode, 0.0)
    return RandomErasing(leaf.probability, (leaf.min_area, leaf.max_area), (low, high), value, leaf.max_count)


# --- the table

_NOTHING_TO_DO = (
    *("torchvision.ConvertBoundingBoxFormat", "torchvision.Identity", "torchvision.PILToTensor", "torchvision.RGB"),
    *("torchvision.ToImage", "torchvision.ToPureTensor", "clip._convert_image_to_rgb", "open_clip._convert_to_rgb"),
    *("timm.MaybePILToTensor", "timm.ToNumpy"),
)
_TO_TENSOR = ("lightly.ToTensor", "open_clip.MaybeToTensor", "timm.MaybeToTensor")
_NO_SEQUENCES = "leave naflex out: the images of a batch have one size"
ROWS: Mapping[str, Row] = {
    **dict.fromkeys(_NOTHING_TO_DO, lambda leaf: []),
    **dict.fromkeys(_TO_TENSOR, lambda leaf: like("ToTensor")),
    "torchvision.CutMix": lambda leaf: _mixing(leaf, "cutmix_alpha"),
    "torchvision.ImageClassification": _of_weights,
    "torchvision.MixUp": lambda leaf: _mixing(leaf, "mixup_alpha"),
    f"{REFERENCES}.FixedSizeCrop": lambda leaf: like(
        "FixedSizeCrop", size=(leaf.crop_height, leaf.crop_width), fill=leaf.fill, padding_mode=leaf.padding_mode
    ),
    f"{REFERENCES}.RandomCrop": lambda leaf: [like(name, size=leaf.size) for name in ("PadIfSmaller", "RandomCrop")],
    f"{REFERENCES}.RandomPhotometricDistort": _distort,
    f"{REFERENCES}.RandomResize": _resize_by_range,
    f"{REFERENCES}.*": _of_reference,
    "lightly.GaussianBlur": lambda leaf: _sometimes(leaf.prob, _pil_blur(leaf.sigmas)),
    "lightly.RandomRotate": lambda leaf: _sometimes(leaf.prob, like("RandomRotation", degrees=(leaf.angle,) * 2)),
    "lightly.RandomRotateDegrees": lambda leaf: leaf.transform,
    "lightly.RandomSolarization": lambda leaf: like("RandomSolarize", threshold=leaf.threshold, p=leaf.prob),
    "lightly.*": _of_lightly,
    "open_clip.CenterCropOrPad": _centre_crop,
    "open_clip.MaybeConvertMode": _only_rgb,
    "open_clip.ResizeKeepRatio": _resize_to_crop,
    "open_clip.color_jitter": lambda leaf: _sometimes(leaf.p, leaf.transf),
    "open_clip.gray_scale": lambda leaf: like("RandomGrayscale", p=leaf.p),
    "solo.Equalization": lambda leaf: like("RandomEqualize", p=1.0),
    "solo.GaussianBlur": lambda leaf: _pil_blur(leaf.sigma),
    "solo.Solarization": lambda leaf: like("RandomSolarize", threshold=128, p=1.0),
    "timm.AugMixAugment": "leave auto_augment out, and put gpuloader's AugMix into the recipe",
    "timm.AutoAugment": _auto_augment,
    "timm.CenterCropOrPad": _centre_crop,
    "timm.Patchify": "leave patchify out: batches are images",
    "timm.RandAugment": _rand_augment,
    "timm.RandomCropOrPad": _OF_ONE_SIZE,
    "timm.RandomErasing": _erasing,
    "timm.RandomResizedCropAndInterpolation": _crop,
    "timm.RandomResizedCropToSequence": _NO_SEQUENCES,
    "timm.ResizeKeepRatio": _resize_to_crop,
    "timm.ResizeToSequence": _NO_SEQUENCES,
    "timm.ToTensor": "it gives levels of 0 to 255 as float32: use MaybeToTensor, or none",
    "timm.TrimBorder": "leave crop_border_pixels out",
    "timm.*": "leave it out",
    "*.ClampBoundingBoxes": "leave it out: boxes are cut to the image",
    "*.ElasticTransform": "the nearest is RandomPerspective",
    "*.GaussianNoise": 'the nearest is RandomErasing(value="random")',
    "*.JPEG": "the nearest is GaussianBlur",
    "*.LinearTransformation": "the nearest is Normalize",
    "*.RandomChannelPermutation": "the nearest is RandomPhotometricDistort",
    "*.RandomOrder": "the nearest are its transforms in one order, and RandomChoice",
    "*.SimpleCopyPaste": 'the nearest is the preset "detection_multiscale"',
    **dict.fromkeys(("*._convert_to_rgb", "*._convert_image_to_rgb"), "leave it out: images are RGB"),
}
