"""The numbers that the operators of a GPU's graph take: those of what was drawn, and those that change nothing.

tests/pipelines/test_steps.py and test_graph.py have the pixels that come of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuloader.pipelines.inputs import GRAY, Inputs, make_inputs, needed, step_inputs, warps_of
from gpuloader.plan import Draws
from gpuloader.recipe import Recipe, load_preset, preset_names
from gpuloader.recipe.placement import PaddingMode
from gpuloader.recipe.program import BICUBIC, BILINEAR, NEAREST, PARAMETERS, Op
from gpuloader.transforms import (
    AugMix,
    CenterCrop,
    GaussianBlur,
    Pad,
    RandAugment,
    RandomApply,
    RandomCrop,
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
    [numbers] = step_inputs(np.full((1, 1), op, np.int32), drawn, [needed(frozenset(Op), EVERY_WARP)])
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
        ([RandomInvert(), GaussianBlur(3)], [set()]),
        ([RandAugment()], [{"affine_nearest"}]),
        ([AugMix()], [{"affine_linear"}]),
        ([RandomRotation(9, fill=(0, 0, 9))], [{"affine_nearest", "fill"}]),
        ([RandomInvert(), RandomHorizontalFlip()], [set(), {"affine_nearest"}]),
        ([RandomApply([RandomPerspective()])], [{"affine_linear", "perspective_linear"}]),
        ([RandomPerspective(fill=9), RandomHorizontalFlip(), RandomRotation(9, "bilinear")],
         [{"affine_linear", "perspective_linear", "fill"}, {"affine_nearest"}, {"affine_linear"}]),
    ],
)  # fmt: skip
def test_warps_have_the_kinds_that_their_step_may_draw(transforms: list[Any], warps: list[set[str]]) -> None:
    [view] = Recipe([Resize((32, 32)), *transforms]).each_view
    assert len(warps_of(view)) == view.steps
    assert [*dict.fromkeys(warps_of(view))] == warps


def inputs_of(preset: Recipe, device: Any, last_step: Any = "all", whole: bool = False) -> Inputs[np.ndarray]:  # noqa: ANN401
    drawn = preset.draw(Draws(0, 0, np.arange(3)), np.array([[10, 20]] * 3))
    return make_inputs(preset.each_view, drawn, device, last_step, whole)


RESIZE = ["resize_size", "resize_start", "resize_end"]


@pytest.mark.parametrize(
    ("last_step", "on_cpu", "on_gpu"),
    [
        ("decode", [], []),
        ("resize", ["roi", "placed", "like_output"], [*RESIZE, "horizontal"]),
        (
            "all",
            ["roi", "placed", "like_output", "ops", "parameters", "erase"],
            [*RESIZE, "horizontal", "0.erase_start", "0.erase_shape", "threshold of step 0"],
        ),
    ],
)
def test_a_graph_takes_what_it_needs_up_to_its_last_step(last_step: str, on_cpu: list[str], on_gpu: list[str]) -> None:
    preset = Recipe([RandomResizedCrop(32), RandomHorizontalFlip(), RandomInvert(), RandomErasing()])
    for device, expected in (("cpu", on_cpu), ("gpu", on_gpu)):
        inputs = inputs_of(preset, device, last_step)
        [view] = inputs.views
        names = [*view.named, *(f"{name} of step {n}" for n, step in enumerate(view.steps) for name in step)]
        assert names == expected
        assert list(inputs.region) == ["region_start", "region_shape"]
        assert all(len(array) == 3 for array in inputs.values())


@pytest.mark.slow(kept=19)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("name", preset_names())
def test_the_draw_of_no_samples_has_the_names_and_types_of_every_draw(name: str, device: str) -> None:
    preset = load_preset(name)
    inputs, none = (
        make_inputs(preset.each_view, drawn, device)  # type: ignore[arg-type]
        for drawn in (preset.draw(Draws(7, 2, np.arange(5)), np.array([[300, 400]] * 5)), preset.drawn_for_none)
    )
    kinds, kinds_of_none = (each.replaced_by(map(kind_of, each.values())) for each in (inputs, none))
    assert kinds == kinds_of_none


def kind_of(rows: Any) -> tuple[np.dtype[Any], int]:  # noqa: ANN401
    """The type and number of dimensions of rows, which are a list if their shapes differ."""
    return (rows[0].dtype, 1 + rows[0].ndim) if isinstance(rows, list) else (rows.dtype, rows.ndim)


def test_values_take_the_places_of_others() -> None:
    inputs = inputs_of(Recipe([Resize((4, 4)), RandomInvert(), RandomErasing()], views=2), "gpu")
    numbered = inputs.replaced_by(range(99))
    assert numbered.values() == list(range(len(inputs.values())))
    assert list(numbered.region.values()) == [0, 1]
    assert [list(view.named) for view in numbered.views] == [list(view.named) for view in inputs.views]


def test_images_that_are_not_cut_have_no_region() -> None:
    preset = Recipe([CenterCrop(4)])
    cut, whole = inputs_of(preset, "cpu"), inputs_of(preset, "cpu", whole=True)
    assert not whole.region
    of_whole, of_cut = (inputs.views[0].named for inputs in (whole, cut))
    np.testing.assert_array_equal(of_whole["roi"], of_cut["roi"])
    np.testing.assert_array_equal(of_whole["placed"][:, :-2], of_cut["placed"][:, :-2])
    np.testing.assert_array_equal(of_whole["placed"][:, -2:], 0)
    np.testing.assert_array_equal(of_cut["placed"][:, -2:], cut.region["region_start"])


def test_only_what_the_output_shows_is_resized() -> None:
    """Of an image of 10 x 20 pixels at 20 x 40, rows -2 to 22 and columns -2 to 42 are shown, and all of it repeats."""
    for mode, row in [("constant", -2), ("symmetric", 0), ("reflect", 0)]:
        preset = Recipe([Resize((20, 40)), Pad(2, padding_mode=mode)])
        numbers = inputs_of(preset, "gpu").views[0].named
        assert numbers["resize_size"][0].tolist() == [20, 40]
        assert numbers["resize_end"][0].tolist() == [10, 20]
        assert numbers["crop_start"][0, 0] == row
        assert numbers["crop_shape"][0].tolist() == [24, 44]


@pytest.mark.parametrize(
    ("padding", "mode", "before", "behind", "last", "start"),
    [
        ((3, 2, 5, 4), "symmetric", (2, 3), (4, 5), (16, 35), (0, 0)),
        ((3, 2, 5, 4), "reflect", (2, 3), (4, 5), (15, 34), (0, 0)),
        (0, "symmetric", (1, 1), (1, 1), (19, 39), (1, 1)),  # a strip is not empty
        ((60, 9), "reflect", (9, 39), (9, 39), (10, 0), (0, -21)),  # or wider than the image
    ],
)
def test_only_strips_as_wide_as_the_padding_are_mirrored(
    padding: int | tuple[int, ...],
    mode: PaddingMode,
    before: tuple[int, int],
    behind: tuple[int, int],
    last: tuple[int, int],
    start: tuple[int, int],
) -> None:
    numbers = inputs_of(Recipe([Resize((20, 40)), Pad(padding, padding_mode=mode)]), "gpu").views[0].named
    assert tuple(numbers["crop_start"][0]) == start
    for strip, sides in (("before", before), ("behind", behind), ("last", last)):
        assert tuple(int(numbers[f"crop_{strip}_{axis}"][0, 0]) for axis in (0, 1)) == sides


def test_the_kernels_are_given_rows_of_one_layout() -> None:
    preset = Recipe([RandomResizedCrop((5, 7)), RandomHorizontalFlip(1), RandomCrop((4, 3), 2)])
    drawn = preset.draw(Draws(7, 0, np.arange(3)), np.array([[30, 60], [40, 50], [50, 40]]))
    at, inputs = drawn.views[0].placement, make_inputs(preset.each_view, drawn, "cpu")
    arrays = inputs.views[0].named
    assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
        "roi": (np.float64, (3, 8)),
        "placed": (np.int32, (3, 14)),
        "like_output": (np.uint8, (3, 0, 4, 3)),
    }
    np.testing.assert_array_equal(arrays["roi"], np.concatenate([at.window, at.part], 1))
    np.testing.assert_array_equal(arrays["placed"][:, :2], [[5, 7]] * 3)
    np.testing.assert_array_equal(arrays["placed"][:, 2:4], at.corner)
    np.testing.assert_array_equal(arrays["placed"][:, 4:11], [[0, 1, 0, 0, 5, 7, 0]] * 3)
    np.testing.assert_array_equal(arrays["placed"][:, 12:], drawn.region[:, :2])
    np.testing.assert_array_equal(inputs.region["region_start"], drawn.region[:, :2])
    np.testing.assert_array_equal(inputs.region["region_shape"], drawn.region[:, 2:] - drawn.region[:, :2])
