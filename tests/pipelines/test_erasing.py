"""Erasing, against numpy, on DALI's backend for the CPU; a GPU's is meant to be the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.pipeline import Pipeline
from scipy import stats

from gpuloader.pipelines.erasing import erase
from gpuloader.pipelines.inputs import erasing

BOXES = np.array([[2, 3, 10, 20], [0, 0, 0, 0], [16, 0, 1, 9], [0, 0, 24, 30], [23, 29, 1, 1]], np.int32)
SIZES = [(24, 30), (24, 30), (17, 9), (24, 30), (24, 30)]
KEYS = np.array([[0, 0], [1, 2], [2**32 - 1, 2**32 - 1], [123456789, 987654321], [2**31, 7]], np.uint32)


def build(images: Sequence[np.ndarray], boxes: np.ndarray, value: object, layout: str) -> Pipeline:
    keys = KEYS[: len(images)].view(np.int32)
    boxes_and_keys = np.concatenate(
        [part for box in np.split(boxes, boxes.shape[1] // 4, 1) for part in (box, keys)], 1
    )
    first = layout.index("H")
    sizes = np.array([image.shape[first : first + 2] for image in images], np.int32)
    numbers = {
        name: np.ascontiguousarray(array)
        for name, array in erasing(boxes_and_keys, sizes, noise=isinstance(value, str)).items()
    }

    @pipeline_def(batch_size=len(images), num_threads=2, device_id=None)
    def graph() -> object:
        image, *given = fn.external_source(
            source=lambda: (list(images), *numbers.values()),
            num_outputs=1 + len(numbers),
            ndim=[3, *(array.ndim - 1 for array in numbers.values())],
            dtype=[types.FLOAT, *(types.to_dali_type(array.dtype) for array in numbers.values())],
            layout=[layout, *("" for _ in numbers)],
        )
        return erase(image, dict(zip(numbers, given)), value, layout)

    return graph()


def erased(images: Sequence[np.ndarray], boxes: np.ndarray, value: object, layout: str) -> list[np.ndarray]:
    """HWC in and out."""
    to, back = {"HWC": ((0, 1, 2), (0, 1, 2)), "CHW": ((2, 0, 1), (1, 2, 0))}[layout]
    inputs = [np.ascontiguousarray(image.transpose(to)) for image in images]
    (output,) = build(inputs, boxes, value, layout).run()
    return [np.array(output.at(row)).transpose(back) for row in range(len(images))]


def images() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(*size, 3)).astype(np.float32) for size in SIZES]


def lowbias32(x: int) -> int:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ x >> shift) * factor % 2**32
    return x ^ x >> 16


def noise(row: int, column: int, channel: int, width: int, key: Sequence[int]) -> float:
    """The formula in exact integers."""
    index = (row * width + column) * 3 + channel
    a, b = lowbias32(index ^ key[0]), lowbias32((index + key[1]) % 2**32)
    return float(np.sqrt(-2 * np.log((a + 1) / 2**32)) * np.cos(2 * np.pi * b / 2**32))


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_a_colour_fills_the_box(layout: str) -> None:
    colour = (0.5, -1.25, 2.0)
    for image, (top, left, height, width), output in zip(
        images(), BOXES, erased(images(), BOXES, colour, layout), strict=True
    ):
        image[top : top + height, left : left + width] = colour
        assert np.array_equal(output, image)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_noise_fills_the_box_and_is_the_formula(layout: str) -> None:
    for image, (top, left, height, width), key, output in zip(
        images(), BOXES, KEYS.tolist(), erased(images(), BOXES, "random", layout), strict=True
    ):
        for row in range(top, top + height):
            for column in range(left, left + width):
                image[row, column] = [noise(row, column, channel, image.shape[1], key) for channel in range(3)]
        np.testing.assert_allclose(output, image, atol=1e-6, rtol=0)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_a_random_colour_is_the_formula_for_each_channel(layout: str) -> None:
    for image, (top, left, height, width), key, output in zip(
        images(), BOXES, KEYS.tolist(), erased(images(), BOXES, "random_color", layout), strict=True
    ):
        image[top : top + height, left : left + width] = [noise(0, 0, channel, 0, key) for channel in range(3)]
        np.testing.assert_allclose(output, image, atol=1e-6, rtol=0)


@pytest.mark.parametrize("value", [(0.5, -1.25, 2.0), "random", "random_color"], ids=str)
def test_several_boxes_are_filled_one_after_the_other(value: object) -> None:
    others = np.array([[1, 1, 12, 5], [2, 2, 3, 3], [0, 0, 17, 9], [0, 0, 0, 0], [0, 0, 9, 9]], np.int32)
    both = erased(images(), np.concatenate([BOXES, others], 1), value, "HWC")
    one_by_one = erased(erased(images(), BOXES, value, "HWC"), others, value, "HWC")
    for output, expected in zip(both, one_by_one, strict=True):
        assert np.array_equal(output, expected)


def test_noise_is_normal_and_independent_of_its_neighbours() -> None:
    blank, whole = np.zeros((300, 300, 3), np.float32), [0, 0, 300, 300]
    values = erased([blank] * 4, np.array([whole] * 4, np.int32), "random", "HWC")[3]  # a key such as is drawn
    assert stats.kstest(values.ravel(), "norm").pvalue > 0.01
    shifted = np.concatenate([values[:-1, :-1], values[1:, :-1], values[:-1, 1:]], axis=2).reshape(-1, 9)
    assert np.abs(np.corrcoef(shifted.T) - np.eye(9)).max() < 0.02
