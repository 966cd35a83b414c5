"""`Compose` called on images and targets: the numbers of a loader's fields, row by row, and what is refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scenes import COUNT, RANDOM, annotations_of, loader, sample_of, size_of, train
from torchvision import tv_tensors

from gpuloader import Boxes, Compose, Keypoints, Mask
from gpuloader.errors import ConfigError
from gpuloader.recipe import load_preset
from gpuloader.targets import to_detection
from gpuloader.transforms import Apply, RandomIoUCrop, Resize

BLACK = np.zeros((40, 60, 3), np.uint8)
BOXES = np.array([[10.0, 10, 30, 30], [0, 0, 5, 5], [40, 20, 60, 40]])
LEFT = train({"CenterCrop": {"size": [40, 30]}})
"""A crop to columns 15 to 45, which leaves nothing of the second box."""


def compose_of(preset: dict[str, Any]) -> Compose:
    return Compose.load(load_preset(preset))


def target_of(number: int) -> dict[str, Any]:
    annotations, (height, width) = annotations_of(number), size_of(number)
    corners = np.array([each["bbox"] for each in annotations], np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    columns = np.arange(width), np.arange(height)[:, None]
    outlines = [
        (x0 <= columns[0]) & (columns[0] < x1) & (y0 <= columns[1]) & (columns[1] < y1) for x0, y0, x1, y1 in corners
    ]
    return {
        "boxes": corners,
        "labels": np.array([each["category_id"] for each in annotations], np.int64),
        "area": torch.tensor([float(each["area"]) for each in annotations]),
        "iscrowd": torch.tensor([each["iscrowd"] for each in annotations], dtype=torch.int64),
        "masks": np.array(outlines, bool).reshape(-1, height, width),
        "mask": np.asarray(Image.open(io.BytesIO(sample_of(number)["mask.png"]))),  # type: ignore[arg-type]
        "keypoints": np.array([each["keypoints"] for each in annotations], np.float64).reshape(-1, 2, 3),
        "image_id": torch.tensor([number]),
        "file": f"{number}.jpg",
    }  # fmt: skip


def test_targets_have_the_numbers_of_a_loaders_fields(tar: Path) -> None:
    fields = {
        "boxes": Boxes("json:annotations", format="xywh", labels="category_id", keys=("iscrowd", "area")),
        "points": Keypoints("json:annotations"),
        "mask": Mask("mask.png"),
        "objects": Mask("json:annotations"),
    }
    batches = loader(tar, fields=fields, shuffle="none", seed=5, **RANDOM)
    batches.set_epoch(2)
    compose = compose_of(RANDOM["preset"])
    dropped = 0
    for first, batch in zip(range(0, COUNT, 4), batches):
        numbers = range(first, first + 4)
        pictures = [sample_of(number)["png"] for number in numbers]
        images, targets = compose(pictures, [target_of(number) for number in numbers], seed=5, epoch=2, sample=first)
        assert torch.equal(images, batch["image"])
        _, expected = to_detection(batch, masks="objects", points="points")
        for row, target in enumerate(targets):
            for name, value in {**expected[row], "mask": batch["mask"][row]}.items():
                assert (value.dtype, value.shape[1:]) == (target[name].dtype, target[name].shape[1:]) or not len(value)
                assert torch.equal(value.flatten(), target[name].flatten()), name
            assert target["file"] == f"{numbers[row]}.jpg"
            dropped += len(annotations_of(numbers[row])) - len(target["labels"])
        alone = compose(pictures[3], target_of(first + 3), seed=5, epoch=2, sample=first + 3)
        assert torch.equal(alone[0], images[3])
        assert all(torch.equal(alone[1][name], targets[3][name]) for name in targets[3] if name != "file")
    assert dropped


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"labels": torch.tensor([7, 8, 9])}, torch.tensor([7, 9])),
        ({"scores": np.array([[1, 2], [3, 4], [5, 6]])}, torch.tensor([[1, 2], [5, 6]])),
        ({"names": ["a", "b", "c"]}, ["a", "c"]),
        ({"area": [400, 25, 400]}, torch.tensor([300.0, 100.0])),
        ({"keypoints": torch.tensor([[[15.0, 2]], [[1, 1]], [[50, 3]]])}, torch.tensor([[[0.0, 2]], [[35, 3]]])),
        ({"image_id": torch.tensor([1, 2, 3])}, torch.tensor([1, 2, 3])),  # no rows of the boxes
        ({"size": np.array([40, 60])}, torch.tensor([40, 60])),
        ({"weight": np.array(2.0)}, torch.tensor(2.0, dtype=torch.float64)),
    ],
)
def test_entries_with_a_row_for_each_box_are_filtered_with_the_boxes(entry: dict[str, Any], expected: object) -> None:
    _, target = compose_of(LEFT)(BLACK, {"boxes": BOXES, **entry})
    assert target["boxes"].tolist() == [[0, 10, 15, 30], [25, 20, 30, 40]]
    [found] = [target[name] for name in entry]
    if isinstance(expected, torch.Tensor):
        assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
    else:
        assert list(found) == list(expected)  # type: ignore[call-overload]


def test_a_background_has_no_rows() -> None:
    empty = {"masks": np.zeros((0, 40, 60)) > 0, "keypoints": np.zeros((0, 5, 3)), "labels": []}
    for boxes in (torch.zeros(0, 4), [], torch.tensor([])):
        _, target = compose_of(LEFT)(BLACK, {**empty, "boxes": boxes})
        shapes = {name: tuple(target[name].shape) for name in ("boxes", "masks", "keypoints")}
        assert shapes == {"boxes": (0, 4), "masks": (0, 40, 30), "keypoints": (0, 5, 3)}
    assert compose_of(LEFT)(BLACK, {})[1] == {}


def test_a_recipe_draws_by_the_boxes(tar: Path) -> None:
    recipe = train({"RandomZoomOut": {}}, {"RandomIoUCrop": {}}, {"Resize": {"size": [48, 64]}})
    batches = loader(tar, preset=recipe, shuffle="none", seed=5)
    compose, batch = compose_of(recipe), next(iter(batches))
    images, targets = compose(
        [sample_of(each)["png"] for each in range(4)], [target_of(each) for each in range(4)], seed=5
    )
    assert torch.equal(images, batch["image"])
    assert all(torch.equal(target["boxes"], boxes) for target, boxes in zip(targets, batch["boxes"], strict=True))


def test_without_boxes_all_objects_stay() -> None:
    masks = np.zeros((2, 40, 60), np.uint8)
    masks[1, :, 20] = 1
    _, target = compose_of(LEFT)(BLACK, {"masks": masks, "labels": torch.tensor([1, 2]), "area": [0, 40]})
    assert target["masks"].flatten(1).sum(1).tolist() == [0, 40]
    assert target["labels"].tolist() == [1, 2]
    assert target["area"] == [0, 40]


def test_torchvisions_own_tensors_are_tensors() -> None:
    boxes = tv_tensors.BoundingBoxes(BOXES, format="XYXY", canvas_size=(40, 60))
    _, target = compose_of(LEFT)(BLACK, {"boxes": boxes, "masks": tv_tensors.Mask(np.ones((3, 40, 60), np.uint8))})
    assert target["boxes"].tolist() == [[0, 10, 15, 30], [25, 20, 30, 40]]
    assert target["masks"].shape == (2, 40, 30)
    other = tv_tensors.BoundingBoxes(BOXES, format="XYWH", canvas_size=(40, 60))
    with pytest.raises(ConfigError, match='target 0: boxes of the format XYWH: allowed is "XYXY"'):
        compose_of(LEFT)(BLACK, {"boxes": other})


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([{}, {"boxes": [[1, 2, 3]]}], r"target 1: annotations\[0\] is \[1, 2, 3\]: allowed are 4 numbers"),
        ([{}, {"masks": np.ones((1, 9, 9), bool)}], r"target 1: masks bool \(1, 9, 9\): allowed are integers"),
        ([{}, {"boxes": BOXES, "masks": np.ones((2, 40, 60), bool)}], "target 1: masks has 2 rows beside 3 boxes"),
        ([{}, {"keypoints": [[[1, 2, 7]]]}], "target 1: .* has 7 as a visibility"),
        ([{}], "targets: found .*: allowed is a dictionary for each of 2 images"),
        ([{}, 3], "targets: found .*: allowed is a dictionary for each of 2 images"),
    ],
)  # fmt: skip
def test_what_is_no_target_is_an_error(targets: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        compose_of(LEFT)([BLACK, BLACK], targets)


def test_bfloat16_is_converted() -> None:
    given = {"boxes": torch.tensor(BOXES), "keypoints": torch.tensor(BOXES).reshape(3, 2, 2), "area": torch.ones(3)}
    _, expected = compose_of(LEFT)(BLACK, given)
    _, target = compose_of(LEFT)(BLACK, {name: value.bfloat16() for name, value in given.items()})
    assert target.keys() == expected.keys()
    assert all(torch.equal(target[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", ["boxes", "labels"])  # one that moves, and one of which rows are taken
@pytest.mark.parametrize(
    ("convert", "found"),
    [
        (lambda values: values.to(torch.float8_e4m3fn), "torch.float8_e4m3fn, torch.strided, on cpu"),
        (torch.Tensor.to_sparse, "torch.float32, torch.sparse_coo, on cpu"),
        (lambda values: values.to("meta"), "torch.float32, torch.strided, on meta"),
    ],
    ids=["float8", "sparse", "meta"],
)
def test_a_tensor_without_numbers_is_refused(convert: Any, found: str, name: str) -> None:  # noqa: ANN401
    target = {"boxes": torch.tensor(BOXES, dtype=torch.float32), "labels": torch.ones(3)}
    with pytest.raises(ConfigError, match=f"target 0: '{name}' is a tensor of {found}: allowed are dense tensors"):
        compose_of(LEFT)(BLACK, {**target, name: convert(target[name])})


def test_a_recipe_that_draws_by_boxes_needs_them() -> None:
    compose, image = Compose([RandomIoUCrop(), Resize((8, 9))]), np.zeros((20, 30, 3), np.uint8)
    assert compose(image, {"boxes": np.zeros((0, 4))})[0].shape == (3, 8, 9)
    for targets in ((), ({"mask": np.zeros((20, 30), np.int64)},)):
        with pytest.raises(ConfigError, match='RandomIoUCrop draws by boxes: give each image a target with "boxes"'):
            compose(image, *targets)


def test_key_points_go_through_own_code_that_comes_first() -> None:
    target = {"boxes": np.array([[8.0, 6, 40, 30]]), "keypoints": np.array([[[10.0, 20, 2], [30, 10, 1]]])}
    own = Apply(lambda image, targets: (image, targets), "nothing", targets=True)
    [(_, found), (_, expected)] = (
        Compose([*first, Resize((30, 50))])(np.zeros((60, 100, 3), np.uint8), target) for first in ([own], [])
    )
    assert torch.allclose(found["keypoints"], expected["keypoints"])
