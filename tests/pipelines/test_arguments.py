"""The numbers that the operators of a GPU's graph take: those of what was drawn, and those that change nothing.

tests/pipelines/test_steps.py and test_graph.py have the pixels that come of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuloader.pipelines.arguments import GRAY, arguments, needed, step_arguments, warps_of
from gpuloader.plan import Draws
from gpuloader.recipe import Preset
from gpuloader.recipe.program import BICUBIC, BILINEAR, NEAREST, PARAMETERS, Op
from gpuloader.transforms import (
    AugMix,
    GaussianBlur,
    Pad,
    RandAugment,
    RandomApply,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    Resize,
)

EVERY_WARP = frozenset({"affine_nearest", "affine_linear", "perspective_nearest", "perspective_linear", "fill"})
EYE = np.eye(3).tolist()
NOTHING = {
    "affine_nearest": EYE[:2],
    "affine_linear": EYE[:2],
    "perspective_nearest": EYE,
    "perspective_linear": EYE,
    "fill": [0, 0, 0],
    "linear": EYE,
    "mean": 0,
    "gray": 0,
    "added": 0,
    "power": 1,
    "threshold": 256,
    "sigma": np.float32(0.01),
    "window": 3,
    "edges": 0,
    "share": 0,
    **{f"is_{name}": False for name in ("HUE", "SHARPNESS", "AUTOCONTRAST", "EQUALIZE", "MIX_ADD", "MIX_END")},
}
AFFINE, PERSPECTIVE = [2, 3, 4, 5, 6, 7, 0, 0, 1], [2, 3, 4, 5, 6, 7, 0.5, 0, 1]
SHARED = (np.eye(3) * 0.25).tolist()


@pytest.mark.parametrize(
    ("op", "parameters", "changing"),
    [
        (Op.IDENTITY, [], {}),
        (Op.WARP, [*AFFINE, NEAREST, 0, 0, 0, 1], {"affine_nearest": [[2, 3, 4], [5, 6, 7]]}),
        (Op.WARP, [*AFFINE, BICUBIC, 7, 8, 9, 1], {"affine_linear": [[2, 3, 4], [5, 6, 7]], "fill": [7, 8, 9]}),
        (Op.WARP, [*PERSPECTIVE, NEAREST, 0, 0, 0], {"perspective_nearest": [[2, 3, 4], [5, 6, 7], [0.5, 0, 1]]}),
        (Op.WARP, [*PERSPECTIVE, BILINEAR, 0, 0, 0], {"perspective_linear": [[2, 3, 4], [5, 6, 7], [0.5, 0, 1]]}),
        (Op.BRIGHTNESS, [0.25], {"linear": SHARED}),
        (Op.CONTRAST, [0.25], {"linear": SHARED, "mean": 0.75}),
        (Op.SATURATION, [0.25], {"linear": SHARED, "gray": 0.75}),
        (Op.HUE, [0.25], {"is_HUE": True, "turn": 1.5}),
        (Op.SHARPNESS, [0.25], {"is_SHARPNESS": True, "edges": 0.75}),
        (Op.POSTERIZE, [6], {"linear": SHARED, "power": 4}),
        (Op.SOLARIZE, [127.5], {"threshold": 127.5}),
        (Op.SOLARIZE_ADD, [30], {"added": 30}),
        (Op.INVERT, [], {"threshold": 0}),
        (Op.AUTOCONTRAST, [], {"is_AUTOCONTRAST": True}),
        (Op.EQUALIZE, [], {"is_EQUALIZE": True}),
        (Op.GRAYSCALE, [], {"linear": [list(map(np.float32, GRAY))] * 3}),
        (Op.BLUR, [1.5, 9], {"sigma": 1.5, "window": 9}),
        (Op.MIX_BEGIN, [], {}),
        (Op.MIX_ADD, [0.25], {"is_MIX_ADD": True, "share": 0.25}),
        (Op.MIX_END, [], {"is_MIX_END": True}),
    ],
)
def test_a_step_gets_the_numbers_of_its_operation_and_of_no_other(
    op: Op, parameters: list[float], changing: dict[str, Any]
) -> None:
    drawn = np.full((1, 1, PARAMETERS), 1e30, np.float32)  # no operation reads what is not its own
    drawn[0, 0, : len(parameters)] = parameters
    [numbers] = step_arguments(np.full((1, 1), op, np.int32), drawn, [needed(frozenset(Op), EVERY_WARP)])
    turn = numbers.pop("turn")[0]  # only read where is_HUE
    assert {name: array[0].tolist() for name, array in numbers.items()} == NOTHING | {
        name: value for name, value in changing.items() if name != "turn"
    }
    assert turn == changing.get("turn", turn)


def test_a_step_takes_only_what_its_operations_need() -> None:
    warps = frozenset({"affine_linear"})
    for possible, names in [
        ({Op.IDENTITY}, set()),
        ({Op.WARP}, {"affine_linear"}),
        ({Op.CONTRAST, Op.BRIGHTNESS}, {"linear", "mean"}),
        ({Op.EQUALIZE}, set()),  # all samples are equalized
        ({Op.EQUALIZE, Op.IDENTITY}, {"is_EQUALIZE"}),
        ({Op.MIX_ADD}, {"share"}),
    ]:
        assert set(needed(frozenset(possible), warps)) == names


@pytest.mark.parametrize(
    ("transforms", "warps"),
    [
        ([RandomInvert(), GaussianBlur(3)], set()),
        ([RandAugment()], {"affine_nearest"}),
        ([AugMix()], {"affine_linear"}),
        ([RandomRotation(9, fill=(0, 0, 9))], {"affine_nearest", "fill"}),
        ([RandomInvert(), RandomHorizontalFlip()], {"affine_nearest"}),
        ([RandomApply([RandomPerspective()])], {"affine_linear", "perspective_linear"}),
    ],
)
def test_warps_have_the_kinds_that_a_view_may_draw(transforms: list[Any], warps: set[str]) -> None:
    [view] = Preset([Resize((32, 32)), *transforms]).each_view
    assert warps_of(view) == warps


def names_of(preset: Preset, device: Any, last_step: Any) -> set[str]:  # noqa: ANN401
    one = np.ones(1, np.int64)
    return set(arguments(preset.each_view, preset.arrays(Draws(0, 0, one), one, one), device, last_step))


REGION = {"region_start", "region_shape"}
RESIZE = {"resize_size.0", "resize_start.0", "resize_end.0"}


@pytest.mark.parametrize(
    ("last_step", "on_cpu", "on_gpu"),
    [
        ("decode", set(), set()),
        ("resize", {"roi.0", "placed.0", "like_output.0"}, {*RESIZE, "horizontal.0"}),
        (
            "all",
            {"roi.0", "placed.0", "like_output.0", "ops.0", "parameters.0", "erase.0"},
            {*RESIZE, "horizontal.0", "threshold.0.0", "erase_start.0", "erase_shape.0"},
        ),
    ],
)
def test_a_graph_takes_what_it_needs_up_to_its_last_step(last_step: str, on_cpu: set[str], on_gpu: set[str]) -> None:
    preset = Preset([RandomResizedCrop(32), RandomHorizontalFlip(), RandomInvert(), RandomErasing()])
    assert names_of(preset, "cpu", last_step) == REGION | on_cpu
    assert names_of(preset, "gpu", last_step) == REGION | on_gpu


def test_only_what_the_output_shows_is_resized() -> None:
    """Of an image of 10 x 20 pixels at 20 x 40, rows -2 to 22 and columns -2 to 42 are shown, and all of it repeats."""
    sizes = np.array([10]), np.array([20])
    for mode, row in [("constant", -2), ("symmetric", 18), ("reflect", 17)]:
        preset = Preset([Resize((20, 40)), Pad(2, padding_mode=mode)])
        numbers = arguments(preset.each_view, preset.arrays(Draws(0, 0, np.ones(1, np.int64)), *sizes), "gpu")
        assert numbers["resize_size.0"].tolist() == [[20, 40]]
        assert numbers["resize_end.0"].tolist() == [[10, 20]]
        assert numbers["crop_start.0"][0, 0] == row
        assert numbers["crop_shape.0"].tolist() == [[24, 44]]
