"""Transforms of other libraries, torchvision's reference programs and models' configurations, as recipes.

The packages are not needed: the objects here have the names, modules and attributes of open_clip 3.3.0, solo-learn
1.0.8, lightly 1.6.0, timm 1.0 and transformers 5. timm itself, and the pixels beside theirs, are
in tests/integrations/test_model_recipes.py.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from making import picture
from oracle import transforms as v1
from PIL import Image, ImageFilter
from torchvision import tv_tensors
from torchvision.transforms import v2

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.errors import PresetError
from gpuloader.recipe import from_others, load_preset
from gpuloader.recipe.model import PixelTransform, Transform

CROP, TO_TENSOR, BICUBIC = v1.RandomResizedCrop(9), v1.ToTensor(), v1.InterpolationMode.BICUBIC
JITTER = v1.ColorJitter(0.4)
OUR_JITTER = T.ColorJitter((0.6, 1.4))


def theirs(place: str, **attributes: Any) -> Any:  # noqa: ANN401
    """An object of a class at such a place, such as "open_clip.transform.gray_scale"."""
    module, _, name = place.rpartition(".")
    made = type(name, (), {"__module__": module})()
    vars(made).update(attributes)
    return made


def function(place: str) -> Callable[[Image.Image], Image.Image]:
    def convert(image: Image.Image) -> Image.Image:
        return image.convert("RGB")

    convert.__module__, _, convert.__name__ = place.rpartition(".")
    return convert


def error_of(transform: object, **options: object) -> str:
    with pytest.raises(PresetError) as caught:
        Compose.from_torchvision(transform, **options)
    return str(caught.value)


def lightly(place: str, **attributes: Any) -> Any:  # noqa: ANN401
    return theirs(f"lightly.transforms.{place}", **attributes)


def sometimes(transform: PixelTransform) -> Transform:
    return T.RandomApply([transform], 0.5)


def keep_ratio(library: str, size: tuple[int, int], longest: float, **others: Any) -> Any:  # noqa: ANN401
    drawn = {"random_scale_prob": 0.0, "random_aspect_prob": 0.0}
    attributes = {"size": size, "longest": longest, "interpolation": BICUBIC, **drawn, **others}
    return theirs(f"{library}.ResizeKeepRatio", **attributes)


def multi_view(*views: object, name: str = "MultiViewTransform", call: object = None) -> object:
    base = type("MultiViewTransform", (), {"__module__": "lightly.transforms.multi_view", "__call__": len})
    kind = type(name, (base,), {"__module__": "mine", **({"__call__": call} if call else {})})
    made = kind()
    vars(made)["transforms"] = views
    return made


ONE, OTHER = [CROP, TO_TENSOR], [CROP, JITTER, TO_TENSOR]
OUR_ONE, OUR_OTHER = [T.RandomResizedCrop(9)], [T.RandomResizedCrop(9), OUR_JITTER]
IN_TURN = [T.View(OUR_ONE, 2), T.View(OUR_OTHER), T.View(OUR_ONE)]
SOLO = "solo.data.pretrain_dataloader"


def crops(transform: object, count: int) -> object:
    return theirs(f"{SOLO}.NCropAugmentation", transform=transform, num_crops=count)


# As timm and transformers give them, for a model of each kind.
HALF = T.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
TIMM = {
    "input_size": (3, 160, 160),
    "interpolation": "bicubic",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
    "crop_pct": 0.95,
    "crop_mode": "center",
}
STEPS = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
VIT = {**STEPS, "image_processor_type": "ViTImageProcessor", "resample": 2, "size": {"height": 224, "width": 224}}
CLIP = {
    **STEPS,
    "image_processor_type": "CLIPImageProcessor",
    "resample": 3,
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_convert_rgb": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
QWEN = {
    **CLIP,
    "image_processor_type": "Qwen2VLImageProcessor",
    "size": {"shortest_edge": 3136, "longest_edge": 12_845_056},
    "do_center_crop": False,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
OLD_QWEN = {"size": {"min_pixels": 3136, "max_pixels": 12_845_056}}
SIGLIP2 = {
    **{**STEPS, "image_processor_type": "Siglip2ImageProcessor", "resample": 2},
    **{"patch_size": 16, "max_num_patches": 256},
}
CONVNEXT = {**STEPS, "image_processor_type": "ConvNextImageProcessor", "resample": 3, "crop_pct": 0.875}


# --- what is translated: (theirs, further arguments, ours)


def cropped(transform: object, *ours: Transform, dtype: Any = "uint8") -> tuple[object, dict[str, Any], Compose]:  # noqa: ANN401
    """A row with a transform behind a crop."""
    return [CROP, transform], {}, Compose([T.RandomResizedCrop(9), *ours], dtype=dtype)


BLUR = theirs(f"{SOLO}.GaussianBlur", sigma=[0.1, 2.0])
CLIPS_NORMALIZE = load_preset("clip_eval").transforms[-1]
# timm's aug_splits, as `create_transform(..., separate=True)` returns the parts.
SPLIT_CROP = theirs(
    "timm.data.transforms.RandomResizedCropAndInterpolation",
    **{"size": (9, 9), "scale": (0.08, 1.0), "ratio": (0.75, 4 / 3), "interpolation": BICUBIC},
)
ERASING = {"probability": 0.3, "min_area": 0.02, "max_area": 0.3, "log_aspect_ratio": (0.0, 0.0), "min_count": 1}
ERASE = theirs("timm.data.random_erasing.RandomErasing", **ERASING, max_count=1, mode="const", num_splits=3)
END = v1.Compose([TO_TENSOR, v1.Normalize(HALF.mean, HALF.std), ERASE])
SPLITS = v1.Compose([SPLIT_CROP]), v1.Compose([JITTER]), END
OUR_SPLITS = Compose(
    [T.RandomResizedCrop(9, (0.08, 1.0), (0.75, 4 / 3), "bicubic")],
    [T.View([HALF]), T.View([OUR_JITTER, HALF, T.RandomErasing(0.3, (0.02, 0.3), (1.0, 1.0))], 2)],
    layout="channels_last",
)
BUDGETS = [
    (QWEN, [T.SmartResize(28, 3136, 12_845_056), CLIPS_NORMALIZE]),
    (
        {**QWEN, "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16},
        [T.SmartResize(32, 3136, 12_845_056), CLIPS_NORMALIZE],
    ),
    ({**QWEN, **OLD_QWEN}, [T.SmartResize(28, 3136, 12_845_056), CLIPS_NORMALIZE]),  # as older transformers write it
    # It overrides `size`.
    ({**QWEN, "min_pixels": 784, "max_pixels": None}, [T.SmartResize(28, 784, 12_845_056), CLIPS_NORMALIZE]),
    ({**QWEN, "size": None, "min_pixels": 784, "max_pixels": 7840}, [T.SmartResize(28, 784, 7840), CLIPS_NORMALIZE]),
    (SIGLIP2, [T.ResizeToSequence(16, 256, "bilinear"), HALF]),
]
EVALUATIONS = [
    (TIMM, [T.Resize(168, "bicubic"), T.CenterCrop(160), HALF]),  # 160 / 0.95, rounded down
    ({**TIMM, "crop_mode": "squash"}, [T.Resize((168, 168), "bicubic"), T.CenterCrop(160), HALF]),
    (
        {**TIMM, "crop_mode": "squash", "input_size": (3, 96, 192), "crop_pct": 1.0, "interpolation": "bilinear"},
        [T.Resize((96, 192)), T.CenterCrop((96, 192)), HALF],
    ),
    (VIT, [T.Resize((224, 224)), HALF]),
    (
        {**VIT, "do_resize": False, "do_center_crop": True, "crop_size": {"height": 8, "width": 9}},
        [T.CenterCrop((8, 9)), HALF],
    ),
    (CLIP, load_preset("clip_eval").transforms),
    ({**CONVNEXT, "size": {"shortest_edge": 224}}, [T.Resize(256, "bicubic"), T.CenterCrop(224), HALF]),
    ({**CONVNEXT, "size": {"shortest_edge": 384}}, [T.Resize((384, 384), "bicubic"), HALF]),
]
TRANSLATED: list[tuple[object, dict[str, Any], Compose]] = [
    cropped(theirs("open_clip.transform.MaybeConvertMode", mode="RGB")),
    cropped(function("open_clip.transform._convert_to_rgb")),
    cropped(function("clip.clip._convert_image_to_rgb")),
    cropped(theirs("open_clip.transform.color_jitter", p=0.8, transf=JITTER), T.RandomApply([OUR_JITTER], 0.8)),
    cropped(theirs("open_clip.transform.gray_scale", p=0.2), T.RandomGrayscale(0.2)),
    cropped(BLUR, T.GaussianBlur(13, (0.1, 2.0))),
    cropped(v1.RandomApply([BLUR], 0.5), sometimes(T.GaussianBlur(13, (0.1, 2.0)))),
    cropped(theirs(f"{SOLO}.Solarization"), T.RandomSolarize(128, 1.0)),
    cropped(theirs(f"{SOLO}.Equalization"), T.RandomEqualize(1.0)),
    cropped(
        lightly("gaussian_blur.GaussianBlur", prob=0.5, sigmas=(0.2, 1.5)), sometimes(T.GaussianBlur(11, (0.2, 1.5)))
    ),
    cropped(lightly("gaussian_blur.GaussianBlur", prob=0.0, sigmas=(0.2, 2))),
    cropped(lightly("solarize.RandomSolarization", prob=0.3, threshold=99), T.RandomSolarize(99, 0.3)),
    cropped(lightly("rotation.RandomRotate", prob=0.0, angle=90)),
    cropped(lightly("rotation.RandomRotate", prob=0.5, angle=90), sometimes(T.RandomRotation((90.0, 90.0)))),
    cropped(
        lightly("rotation.RandomRotateDegrees", transform=v1.RandomApply([v1.RandomRotation(5)])),
        sometimes(T.RandomRotation((-5.0, 5.0))),
    ),
    cropped(lightly("simclr.SimCLRViewTransform", transform=v1.Compose([JITTER])), OUR_JITTER),
    cropped(theirs("open_clip.transform.MaybeToTensor"), dtype="float32"),
    cropped(lightly("compatibility.ToTensor"), dtype="float32"),
    ([CROP, v1.Normalize(HALF.mean, HALF.std)], {"dtype": "float32"}, Compose([T.RandomResizedCrop(9), HALF])),
    # Several views.
    (multi_view(ONE, ONE), {}, Compose(OUR_ONE, 2)),
    (multi_view(ONE, ONE, OTHER, ONE), {}, Compose(views=IN_TURN)),
    (crops(ONE, 3), {}, Compose(OUR_ONE, 3)),
    (
        theirs(f"{SOLO}.FullTransformPipeline", transforms=[crops(ONE, 2), crops(OTHER, 1), crops(ONE, 1)]),
        {},
        Compose(views=IN_TURN),
    ),
    (SPLITS, {"views": 3, "layout": "channels_last"}, OUR_SPLITS),
    # Configurations of models.
    *((config, {}, Compose(ours)) for config, ours in EVALUATIONS),
    *((config, {"batch": "list"}, Compose(ours, batch="list")) for config, ours in BUDGETS),
    (SIGLIP2, {"batch": {"pad": 28}}, Compose(BUDGETS[-1][1], batch={"pad": 28})),
    (
        {**VIT, "do_rescale": False, "do_normalize": False},
        {"layout": "channels_last"},
        Compose([T.Resize((224, 224))], dtype="uint8", layout="channels_last"),
    ),
]


@pytest.mark.parametrize(("given", "options", "ours"), TRANSLATED)
def test_what_another_library_has_is_its_counterpart(given: object, options: dict[str, Any], ours: Compose) -> None:
    assert Compose.from_torchvision(given, **options) == Compose.from_timm(given, **options) == ours


# --- what is refused: (theirs, further arguments, a part of the message)

NEAR = "allowed are longest=1 before CenterCropOrPad, and longest=0 before"
REFUSED_CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"size": 224}, "its keys are ['size']: allowed are the mapping that timm's resolve_model_data_config(model)"),
    ({**TIMM, "input_size": (3, 96, 192)}, "crop_mode='center' with input_size=(3, 96, 192) has no counterpart"),
    ({**TIMM, "input_size": 160}, "it cannot be read: cannot unpack non-iterable int object"),
    ({**VIT, "image_processor_type": "DetrImageProcessor"}, "DetrImageProcessor is not supported: allowed are"),
    ({**VIT, "size": {"longest_edge": 224}}, "size={'longest_edge': 224}: allowed are a shortest_edge, or"),
    ({**VIT, "do_rescale": False}, "do_normalize without do_rescale: mean and std must be for values from 0 to 1"),
    ({key: value for key, value in VIT.items() if key != "resample"}, "it has no 'resample': load it with"),
    ({**QWEN, "size": {"shortest_edge": 3136}}, "it has no 'longest_edge': load it with"),
    ({**QWEN, "size": {"shortest_edge": 9, "longest_edge": 8}}, "`SmartResize`: max_pixels 8: allowed is"),
    ({**SIGLIP2, "max_num_patches": 0}, "`ResizeToSequence.max_seq_len`: found 0"),
]
TIMMS, OPEN_CLIPS = "timm.data.transforms", "open_clip.transform"
CENTRE = v1.CenterCrop((9, 9))
KEPT = [
    [keep_ratio(OPEN_CLIPS, (9, 9), 1.0), CENTRE],  # which pads with black, if at all
    [keep_ratio(TIMMS, (10, 10), 0.0), CENTRE],
    [keep_ratio(TIMMS, (9, 9), 0.0, random_scale_prob=0.1), CENTRE],
    [keep_ratio(TIMMS, (9, 9), 0.0, interpolation=(BICUBIC, BICUBIC)), CENTRE],
    [keep_ratio(OPEN_CLIPS, (9, 9), 0.0)],
]
ALONE = {  # behind a crop
    theirs("transforms.FixedSizeCrop"): "transforms.FixedSizeCrop is not a transform of torchvision",
    theirs("torchvision.transforms.v2.RandomChannelPermutation"): "the nearest is RandomPhotometricDistort",
    theirs("torchvision.transforms.v2.RandomResizeCrop"): "has no counterpart (did you mean RandomResizedCrop?)",
    lightly("rfft.RFFT2DTransform"): "lightly's RFFT2DTransform has no counterpart",
    theirs(
        "open_clip.transform.MaybeConvertMode", mode="L"
    ): "open_clip's MaybeConvertMode with mode='L': only \"RGB\" is",
    lightly(
        "solarize.RandomSolarization", prob=0.5, threshold=999
    ): "`RandomSolarize.threshold`: found 999: allowed is",
    function("mine._convert_to_rgb"): "images are RGB",
    function("mine.enhance"): "mine.enhance is not a transform of torchvision\nown_code=True",
    v1.Normalize(HALF.mean, HALF.std): "Normalize on uint8: a list without ToTensor",
}
REFUSED: list[tuple[object, dict[str, Any], str]] = [
    *((given, {}, f"the model's configuration cannot be translated: {says}") for given, says in REFUSED_CONFIGS),
    *((given, {}, NEAR) for given in KEPT),
    *(([CROP, given], {}, says) for given, says in ALONE.items()),
    (multi_view(ONE, [CROP]), {}, "its views are float32 and uint8: allowed is one dtype for all"),
    (multi_view(ONE, ONE), {"views": 3}, "it makes several views itself: leave `views` out"),
    (multi_view(ONE, [str, TO_TENSOR]), {}, "builtins.type is not a transform of torchvision"),
    (multi_view(ONE, name="Mine", call=max), {}, "mine.Mine is not a transform of torchvision"),
    *((SPLITS, options, "--aug-splits, from 2 on, such as views=3") for options in ({}, {"views": 1})),
]


@pytest.mark.parametrize(("given", "options", "says"), REFUSED, ids=[says[:60] for *_, says in REFUSED])
def test_what_has_no_counterpart_says_what_to_do(given: object, options: dict[str, Any], says: str) -> None:
    assert says in error_of(given, **options)


# --- pixels beside theirs


@pytest.mark.parametrize(("sigma", "most", "mean"), [(0.1, 6, 0.6), (0.3, 35, 10.3), (1.0, 48, 1.0), (2.0, 34, 0.7)])
def test_pils_blur_is_near(sigma: float, most: int, mean: float) -> None:
    """Pillow blurs by three boxes, and repeats the border, which torchvision reflects."""
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    blur = theirs("solo.data.pretrain_dataloader.GaussianBlur", sigma=(sigma, sigma))
    ours = Compose.from_torchvision([v1.Resize((200, 300)), blur])
    for image, allowed in ((Image.fromarray(noise), (most, mean)), (picture(200, 300), (6, 0.9))):
        blurred = np.asarray(image.filter(ImageFilter.GaussianBlur(sigma)), np.int16)
        apart = np.abs(ours(np.asarray(image)).permute(1, 2, 0).numpy() - blurred)
        assert apart.max() <= allowed[0]
        assert apart.mean() <= allowed[1]


SIZES = [(100, 37), (37, 100), (64, 64), (61, 83), (300, 299)]


def resized(image: Image.Image, size: tuple[int, int], pick: Callable[[float, float], float]) -> Image.Image:
    """`ResizeKeepRatio`, as its text says."""
    ratio = pick(image.height / size[0], image.width / size[1])
    return image.resize((round(image.width / ratio), round(image.height / ratio)), Image.Resampling.BILINEAR)


@pytest.mark.parametrize("library", ["open_clip.transform", "timm.data.transforms"])
@pytest.mark.parametrize("size", [(48, 48), (32, 50)])
def test_the_longest_side_is_a_resize_with_padding(library: str, size: tuple[int, int]) -> None:
    bilinear = keep_ratio(library, size, 1.0, interpolation=v1.InterpolationMode.BILINEAR)
    crop = theirs(f"{library}.CenterCropOrPad", size=size, fill=7, padding_mode="constant")
    ours = Compose.from_torchvision([bilinear, crop])
    assert ours.transforms == (T.Resize(size, pad=7),)
    for seed, shape in enumerate(SIZES):
        image = picture(*shape, seed)
        inner = resized(image, size, max)
        expected = Image.new("RGB", size[::-1], (7, 7, 7))
        expected.paste(inner, ((size[1] - inner.width) // 2, (size[0] - inner.height) // 2))
        apart = ours(np.asarray(image)).permute(1, 2, 0).numpy() - np.asarray(expected, np.int16)
        assert np.abs(apart).max() <= 1


@pytest.mark.parametrize("crop", [v1.CenterCrop((32, 50)), theirs("timm.a.CenterCropOrPad", size=(32, 50), fill=0)])
def test_the_shortest_side_is_a_resize_that_covers(crop: object) -> None:
    bilinear = keep_ratio("open_clip.transform", (32, 50), 0.0, interpolation=v1.InterpolationMode.BILINEAR)
    ours = Compose.from_torchvision([bilinear, crop])
    assert ours.transforms == (T.Resize("cover"), T.CenterCrop((32, 50)))
    for seed, shape in enumerate(SIZES):
        image = picture(*shape, seed)
        expected = v1.CenterCrop((32, 50))(resized(image, (32, 50), min))
        apart = ours(np.asarray(image)).permute(1, 2, 0).numpy() - np.asarray(expected, np.int16)
        assert np.abs(apart).max() <= 1


def test_own_code_may_follow_a_resize_that_keeps_the_ratio() -> None:
    crop = theirs("timm.data.transforms.CenterCropOrPad", size=(9, 9), fill=0)
    resize = keep_ratio("timm.data.transforms", (9, 9), 1.0)
    ours = Compose.from_torchvision([resize, crop, v1.ElasticTransform()], own_code=True)
    assert [type(each).__name__ for each in ours.transforms] == ["Resize", "Apply"]


# --- torchvision's reference programs, whose files are called presets.py and transforms.py


PRESETS = """
class Preset:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        return self.transforms(image)


class Other:
    def __init__(self, transforms):
        self.transforms = transforms
"""
NAMED = """
class {name}:
    def __init__(self, **attributes):
        vars(self).update(attributes)
"""
OF_DETECTION = {
    "RandomHorizontalFlip": ({"p": 0.2}, [T.RandomHorizontalFlip(0.2)]),
    "PILToTensor": ({}, []),
    "RandomIoUCrop": (
        {"min_scale": 0.4, "max_scale": 0.9, "options": [0.2, 0.4], "trials": 30},
        [T.RandomIoUCrop(0.4, 0.9, sampler_options=(0.2, 0.4), trials=30)],
    ),
    "RandomZoomOut": ({"fill": [1.0, 2.0, 3.0], "side_range": (1, 2)}, [T.RandomZoomOut((1.0, 2.0, 3.0), (1.0, 2.0))]),
    "ScaleJitter": (
        {"target_size": (40, 30), "interpolation": BICUBIC},
        [T.ScaleJitter((40, 30), (0.1, 2.0), "bicubic")],
    ),
    "RandomShortestSize": ({"min_size": [10, 20], "max_size": 33}, [T.RandomShortestSize((10, 20), 33)]),
    "FixedSizeCrop": (
        {"crop_height": 40, "crop_width": 30, "fill": (123.0, 117.0, 104.0), "padding_mode": "constant"},
        [T.FixedSizeCrop((40, 30), (123.0, 117.0, 104.0))],
    ),
    "RandomPhotometricDistort": (
        {
            "_brightness": v1.ColorJitter(brightness=(0.875, 1.125)),
            "_contrast": v1.ColorJitter(contrast=(0.5, 1.5)),
            "_saturation": v1.ColorJitter(saturation=(1, 1)),  # which is kept as None
            "_hue": v1.ColorJitter(hue=(-0.05, 0.05)),
            "p": 0.3,
        },
        [T.RandomPhotometricDistort(saturation=(1.0, 1.0), p=0.3)],
    ),
}
OF_SEGMENTATION = {
    "RandomHorizontalFlip": ({"flip_prob": 0.0}, [T.RandomHorizontalFlip(0.0)]),
    "RandomResize": ({"min_size": 10, "max_size": 20}, [T.RandomResize(10, 21)]),  # whose max_size is drawn, too
    "CenterCrop": ({"size": 9}, [T.CenterCrop(9)]),
    "RandomCrop": ({"size": 9}, [T.PadIfSmaller(9), T.RandomCrop(9)]),  # which pads at the right and the bottom
    "PadIfSmaller": ({"size": 9, "fill": {tv_tensors.Mask: 255, "others": 0}}, [T.PadIfSmaller(9)]),
    "Normalize": ({"mean": (0.1, 0.2, 0.3), "std": [0.4, 0.5, 0.6]}, [T.Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))]),
}


Program: TypeAlias = Callable[..., ModuleType]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Makes a module of a text, whose classes count as torchvision's if they are `known`."""

    def load(name: str, text: str, known: bool = True) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        digests = [from_others.digest_of(kind) for kind in vars(module).values() if isinstance(kind, type)]
        assert all(digests)
        monkeypatch.setattr(from_others, "DIGESTS", " ".join(digests if known else ["0" * 12]))
        return module

    return load


@pytest.mark.parametrize(
    ("name", "attributes", "ours"),
    [(name, *row) for rows in (OF_DETECTION, OF_SEGMENTATION) for name, row in rows.items()],
)
def test_a_reference_transform_is_ours_of_the_same_name(
    program: Program, name: str, attributes: dict[str, Any], ours: list[Transform]
) -> None:
    text, flip = NAMED.format(name=name), v1.RandomHorizontalFlip(1)
    transform = getattr(program("transforms", text), name)(**attributes)
    options: dict[str, Any] = {"batch": "list", "dtype": "float32"}
    assert Compose.from_torchvision([flip, transform], **options) == Compose(
        [T.RandomHorizontalFlip(1), *ours], **options
    )
    unknown = getattr(program("transforms", text, known=False), name)(**attributes)
    assert f"transforms.{name} is not a transform of torchvision" in error_of([unknown])


@pytest.mark.parametrize(("conversion", "dtype"), [("ConvertImageDtype", "float16"), ("ToDtype", "float16")])
def test_a_reference_conversion_says_the_dtype(program: Program, conversion: str, dtype: str) -> None:
    module = program("transforms", NAMED.format(name=conversion))
    made = getattr(module, conversion)(dtype=torch.float16, scale=True)
    assert Compose.from_torchvision([CROP, made]).dtype == dtype


def test_a_resize_between_equal_bounds_draws_nothing(program: Program) -> None:
    resize = program("transforms", NAMED.format(name="RandomResize")).RandomResize(min_size=20, max_size=20)
    ours = Compose.from_torchvision(resize, batch="list")
    assert (ours.transforms, ours.random) == ((T.Resize(20),), False)


def test_a_preset_is_the_compose_that_it_holds(program: Program) -> None:
    assert Compose.from_torchvision(program("presets", PRESETS).Preset(v1.Compose([CROP]))).transforms == tuple(OUR_ONE)


MEAN = (123.0, 117.0, 104.0)
SCALES = tuple(range(480, 801, 32))
SHORTEST = T.RandomShortestSize(SCALES, 1333)
OUR_FLIP = T.RandomHorizontalFlip()
OF_SSD = [T.RandomZoomOut(MEAN), T.RandomIoUCrop(), OUR_FLIP]
NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OF_PRESETS: dict[str, list[Transform]] = {
    "hflip": [OUR_FLIP],
    "lsj": [T.ScaleJitter((1024, 1024)), T.FixedSizeCrop(1024, MEAN), OUR_FLIP],
    "multiscale": [SHORTEST, OUR_FLIP],
    "ssd": [*OF_SSD, T.RandomPhotometricDistort()],  # the warning says that it comes behind the geometry
    "ssdlite": [T.RandomIoUCrop(), OUR_FLIP],
    "segmentation": [T.RandomResize(260, 1040), OUR_FLIP, T.PadIfSmaller(480), T.RandomCrop(480), NORMALIZE],
}
OF_BOTH = [*OF_DETECTION, "ToDtype", "RandomCrop", "RandomResize", "PadIfSmaller"]


def preset_of_v1(module: ModuleType, name: str) -> list[Any]:
    """What references/detection and references/segmentation do without --use-v2, with their classes' attributes."""
    jitters = {key: v1.ColorJitter(**{key: getattr(T.RandomPhotometricDistort(), key)}) for key in
               ("brightness", "contrast", "saturation", "hue")}  # fmt: skip
    zoom = module.RandomZoomOut(fill=[*MEAN], side_range=(1.0, 4.0), p=0.5)
    options = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    crop = module.RandomIoUCrop(min_scale=0.3, max_scale=1.0, min_aspect_ratio=0.5, max_aspect_ratio=2.0,
                                options=options, trials=40)  # fmt: skip
    fixed = module.FixedSizeCrop(crop_height=1024, crop_width=1024, fill=MEAN, padding_mode="constant")
    bilinear, flip = v1.InterpolationMode.BILINEAR, module.RandomHorizontalFlip(p=0.5)
    distort = module.RandomPhotometricDistort(p=0.5, **{f"_{key}": jitter for key, jitter in jitters.items()})
    made = {
        "hflip": [flip],
        "lsj": [module.ScaleJitter(target_size=(1024, 1024), interpolation=bilinear), fixed, flip],
        "multiscale": [module.RandomShortestSize(min_size=[*SCALES], max_size=1333, interpolation=bilinear), flip],
        "ssd": [distort, zoom, crop, flip],
        "ssdlite": [crop, flip],
        "segmentation": [module.RandomResize(min_size=260, max_size=1040), flip, module.RandomCrop(size=480)],
    }[name]
    return [*made, module.PILToTensor(), module.ToDtype(dtype=torch.float32, scale=True)]


def preset_of_v2(module: ModuleType, name: str) -> list[Any]:
    """The same with --use-v2."""
    boxes = [v2.ConvertBoundingBoxFormat("XYXY"), v2.SanitizeBoundingBoxes(labels_getter=None), v2.ToPureTensor()]
    flip, fill = v2.RandomHorizontalFlip(0.5), defaultdict(lambda: MEAN, {tv_tensors.Mask: 0})
    fixed = module.FixedSizeCrop(crop_height=1024, crop_width=1024, fill=MEAN, padding_mode="constant")
    pad = module.PadIfSmaller(size=480, fill={tv_tensors.Mask: 255, "others": 0})
    to_dtype = v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True)
    made: list[Any] = {
        "hflip": [flip],
        "lsj": [v2.ScaleJitter((1024, 1024)), fixed, flip],
        "multiscale": [v2.RandomShortestSize(SCALES, 1333), flip],
        "ssd": [v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill), v2.RandomIoUCrop(), flip],
        "ssdlite": [v2.RandomIoUCrop(), flip],
        "segmentation": [v2.RandomResize(260, 1040), flip, pad, v2.RandomCrop(480), to_dtype],
    }[name]
    return [v2.ToImage(), *made, *([] if name == "segmentation" else [v2.ToDtype(torch.float32, scale=True), *boxes])]


@pytest.mark.parametrize("preset_of", [preset_of_v1, preset_of_v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", OF_PRESETS)
def test_a_preset_of_the_references_is_translated_whole(
    program: Program, name: str, preset_of: Callable[[ModuleType, str], list[Any]]
) -> None:
    module = program("transforms", PRESETS + "".join(NAMED.format(name=each) for each in OF_BOTH))
    leaves = preset_of(module, name) + ([v1.Normalize(NORMALIZE.mean, NORMALIZE.std)] if name == "segmentation" else [])
    batch = "dense" if name in ("lsj", "segmentation") else "list"
    made = Compose.from_torchvision(module.Preset(v2.Compose(leaves)), batch=batch)
    ours = OF_PRESETS[name]
    if preset_of is preset_of_v1 and name == "segmentation":
        ours = [T.RandomResize(260, 1041), *ours[1:]]  # there `max_size` is drawn, too
    if preset_of is preset_of_v2 and name != "segmentation":
        place = 3 if name == "ssd" else len(ours)
        ours = [*ours[:place], T.SanitizeBoundingBoxes(), *ours[place:]]
    assert (made.transforms, made.dtype, made.batch) == (tuple(ours), "float32", batch)


def test_anybodys_preset_may_do_more_so_the_error_shows_what_to_translate(program: Program) -> None:
    module = program("presets", PRESETS, known=False)
    advice = "to convert only this attribute: Compose.from_torchvision(dataset.transform.transforms)"
    assert error_of(module.Preset(v1.Compose([CROP]))).splitlines()[0].endswith(advice)
    assert error_of(module.Other([CROP])).splitlines()[0].endswith("presets.Other is not a transform of torchvision")
