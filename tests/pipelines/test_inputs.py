"""The numbers that the operators of a GPU's graph take: those of what was drawn, and those that change nothing.

tests/pipelines/test_steps.py and test_graph.py have the pixels that come of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuloader import transforms as T
from gpuloader.pipelines.inputs import make_inputs
from gpuloader.plan import Draws
from gpuloader.recipe import Recipe, load_preset, preset_names

AFFINE, PERSPECTIVE = [2, 3, 4, 5, 6, 7, 0, 0, 1], [2, 3, 4, 5, 6, 7, 0.5, 0, 1]


def inputs_of(preset: Recipe, device: Any, last_step: Any = "all", whole: bool = False) -> dict[str, Any]:  # noqa: ANN401
    params = preset.draw(Draws(0, 0, np.arange(3)), np.array([[10, 20]] * 3))
    return make_inputs(preset.each_view, params, device, last_step, whole)


RESIZE = ["resize_size", "resize_start", "resize_end"]


@pytest.mark.parametrize(
    ("last_step", "on_cpu", "on_gpu"),
    [
        ("decode", [], []),
        ("resize", ["roi", "placed", "like_output"], [*RESIZE, "horizontal"]),
        (
            "all",
            ["roi", "placed", "like_output", "ops", "parameters", "erase"],
            [*RESIZE, "horizontal", "0.erase_start", "0.erase_shape", "0/threshold"],
        ),
    ],
)
def test_a_graph_takes_what_it_needs_up_to_its_last_step(last_step: str, on_cpu: list[str], on_gpu: list[str]) -> None:
    preset = Recipe([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.RandomInvert(), T.RandomErasing()])
    for device, expected in (("cpu", on_cpu), ("gpu", on_gpu)):
        inputs = inputs_of(preset, device, last_step)
        assert [*inputs] == ["region_start", "region_shape", *(f"0/{name}" for name in expected)]
        assert all(len(array) == 3 for array in inputs.values())


@pytest.mark.slow(kept=8)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("name", preset_names())
def test_the_draw_of_no_samples_has_the_names_and_types_of_every_draw(name: str, device: str) -> None:
    preset = load_preset(name)
    inputs, none = (
        make_inputs(preset.each_view, params, device)  # type: ignore[arg-type]
        for params in (preset.draw(Draws(7, 2, np.arange(5)), np.array([[300, 400]] * 5)), preset.params_for_none)
    )
    kinds, kinds_of_none = ([(name, *kind_of(rows)) for name, rows in each.items()] for each in (inputs, none))
    assert kinds == kinds_of_none


def kind_of(rows: Any) -> tuple[np.dtype[Any], int]:  # noqa: ANN401
    """The type and number of dimensions of rows, which are a list if their shapes differ."""
    return (rows[0].dtype, 1 + rows[0].ndim) if isinstance(rows, list) else (rows.dtype, rows.ndim)


def test_only_what_the_output_shows_is_resized() -> None:
    """Of an image of 10 x 20 pixels at 20 x 40, rows -2 to 22 and columns -2 to 42 are shown, and all of it repeats."""
    for mode, row in [("constant", -2), ("symmetric", 0), ("reflect", 0)]:
        preset = Recipe([T.Resize((20, 40)), T.Pad(2, padding_mode=mode)])
        numbers = inputs_of(preset, "gpu")
        assert numbers["0/resize_size"][0].tolist() == [20, 40]
        assert numbers["0/resize_end"][0].tolist() == [10, 20]
        assert numbers["0/crop_start"][0, 0] == row
        assert numbers["0/crop_shape"][0].tolist() == [24, 44]
