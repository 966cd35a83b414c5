"""Transforms of albumentations and functions of OpenCV and Pillow in a recipe: what they make alone, pixels and boxes.

albumentations comes with scripts/test_integrations; elsewhere these tests skip.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scenes
import torch
from making import encoded, picture, write_shard
from numpy.typing import NDArray
from PIL import Image, ImageOps
from scenes import COLORS, annotations_of, by_sample, shard, size_of
from torchvision.transforms import v2

from gpuloader import Compose, Decoder, GPULoader
from gpuloader import transforms as T
from gpuloader.errors import DataError, PresetError
from gpuloader.plan import Draws, Stream

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # its import would ask a server for newer versions
pytest.importorskip("albumentations")

import albumentations as A
import cv2

Levels = NDArray[np.uint8]
ROOT = Path(__file__).resolve().parents[2]
PAGE, EXAMPLE = ROOT / "docs" / "own-code.md", ROOT / "scripts" / "examples" / "albumentations_train.py"
CROP, NORMAL = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()], T.Normalize([0.5] * 3, [0.25] * 3)
PICTURES = [np.asarray(picture(60 + 7 * number, 90 - 5 * number, number)) for number in range(5)]
COLOURS = A.Compose([A.HorizontalFlip(p=0.5), A.RandomBrightnessContrast(p=0.8), A.CLAHE(p=0.5)])
NOISE = A.Compose(
    [A.OneOf([A.GaussNoise(p=1), A.ISONoise(p=1)], p=0.7), A.ElasticTransform(p=0.5), A.CoarseDropout(p=1)]
)
IN_PIXELS = A.BboxParams("pascal_voc", label_fields=["rows"])


def levels(transforms: Sequence[Any], seed: int = 3, sample: int = 0) -> list[Levels]:
    made = Compose(transforms, dtype="uint8")(list(PICTURES), seed=seed, sample=sample)
    return list(made.permute(0, 2, 3, 1).numpy())


def seed_of(sample: int, seed: int = 3, epoch: int = 0) -> int:
    """With what albumentations is seeded: 32 bits of the key of a sample's own stream."""
    return int(Draws(seed, epoch, np.array([sample])).of(Stream.OWN, view=0).keys()[0][0]) & 0xFFFFFFFF


@pytest.mark.parametrize("transform", [COLOURS, NOISE, A.RandomGamma(p=0.9)], ids=["colours", "noise", "one"])
def test_albumentations_makes_the_pixels_that_it_makes_alone(transform: Any) -> None:  # noqa: ANN401
    found = levels([*CROP, T.Apply(transform)])
    for sample, before in enumerate(levels(CROP)):
        transform.set_random_seed(seed_of(sample))
        np.testing.assert_array_equal(found[sample], transform(image=before)["image"])


def hue(image: Levels) -> Levels:
    turned = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    turned[..., 0] = (turned[..., 0].astype(int) + 30) % 180
    return cv2.cvtColor(turned, cv2.COLOR_HSV2RGB)


def posterize(image: Levels) -> Levels:
    return np.asarray(ImageOps.posterize(Image.fromarray(image), 3))


def mirrored_view(image: Levels) -> Levels:
    return cv2.flip(image, 1)[::-1]  # an array whose rows go backwards


@pytest.mark.parametrize("function", [hue, posterize, mirrored_view])
def test_functions_of_opencv_and_pillow_get_rgb(function: Callable[[Levels], Levels]) -> None:
    for found, before in zip(levels([*CROP, T.Apply(function)]), levels(CROP)):
        np.testing.assert_array_equal(found, function(before.copy()))


@pytest.mark.parametrize(
    "transform", [NOISE, v2.Compose([v2.RandomPosterize(3), v2.RandomAffine(20)])], ids=["A", "v2"]
)
def test_a_run_is_the_same_for_any_number_of_processes_and_after_a_resume(shards: list[Path], transform: Any) -> None:  # noqa: ANN401
    def load(processes: int, stop: int | None = None, state: Any = None) -> tuple[list[torch.Tensor], Any]:  # noqa: ANN401
        options = {"preset": Compose([*CROP, T.Apply(transform), NORMAL]), "seed": 5}
        with GPULoader(shards, 4, "cpu", decoder=Decoder(2, processes=processes), **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            made = [images for _, (images, _) in zip(range(10 if stop is None else stop), loader)]
            return made, loader.state_dict()

    runs = [1, 3] if isinstance(transform, v2.Compose) else [0, 1, 3]  # torchvision draws from the process's generators
    whole, *others = (torch.cat(load(processes)[0]) for processes in runs)
    assert all(torch.equal(whole, other) for other in others)
    first, state = load(3, stop=4)
    rest, _ = load(1, stop=6, state=state)
    assert torch.equal(torch.cat([*first, *rest]), whole)


# Targets.

MOVING = [A.HorizontalFlip(p=0.5), A.Affine(scale=(0.8, 1.2), translate_percent=0.2, p=1), A.RandomCrop(64, 96, p=1)]


@pytest.mark.parametrize("processes", [0, 2])
def test_boxes_of_a_loader_follow_the_pixels_and_all_columns_the_boxes(tmp_path: Path, processes: int) -> None:
    own = A.Compose(MOVING, bbox_params=A.BboxParams("pascal_voc", label_fields=["rows"], min_visibility=0.5))
    transforms = [T.Apply(own, targets=True, same_size=False), T.Resize((64, 96)), T.Normalize([0.0] * 3, [1.0] * 3)]
    fields = {name: scenes.FIELDS[name] for name in ("boxes", "mask")}
    decoder = Decoder(2, processes=processes)
    left_out = 0
    with scenes.loader(shard(tmp_path), preset=Compose(transforms), fields=fields, decoder=decoder) as loader:
        samples = by_sample(loader)
    assert len(samples) == scenes.COUNT
    for number, sample in samples.items():
        rows, boxes = sample["boxes_number"].numpy(), sample["boxes"].numpy()
        annotations = annotations_of(number)
        left_out += len(annotations) - len(rows)
        assert sample["boxes_labels"].tolist() == [annotations[row]["category_id"] for row in rows]
        assert sample["boxes_iscrowd"].tolist() == [annotations[row]["iscrowd"] for row in rows]
        own.set_random_seed(seed_of(number))
        corners = np.array([each["bbox"] for each in annotations], float).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        alone = own(
            image=np.zeros((*size_of(number), 3), np.uint8), bboxes=corners, rows=np.arange(len(corners)),
            mask=np.zeros(size_of(number), np.uint8),
        )  # fmt: skip
        np.testing.assert_array_equal(rows, np.asarray(alone["rows"], int))
        np.testing.assert_allclose(boxes, np.reshape(alone["bboxes"], (-1, 4)), atol=1e-4)
        for label, (x1, y1, x2, y2) in zip(sample["boxes_labels"], boxes.round().astype(int)):
            colour = torch.from_numpy(COLORS[label] / 255)[:, None, None]
            inside = sample["image"][:, y1 + 2 : y2 - 2, x1 + 2 : x2 - 2]
            assert inside.numel() == 0 or (inside - colour).abs().max() < 0.01
            assert (sample["mask"][y1 + 2 : y2 - 2, x1 + 2 : x2 - 2] == 1 + label).all()
    assert left_out > 0


TARGET = {
    "boxes": np.array([[1.0, 2, 30, 40], [70, 60, 90, 79], [40, 30, 60, 50]]),
    "labels": torch.tensor([4, 5, 6]),
    "area": np.array([1000.0, 300, 400]),
    "names": ["a", "b", "c"],
    "masks": np.stack([np.full((80, 100), number, np.uint8) for number in (0, 1, 1)]),
    "image_id": 7,
}


def called(transform: Any, target: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    recipe = Compose([T.Apply(transform, targets=True, same_size=False), T.Resize((40, 50))])
    return recipe(np.zeros((80, 100, 3), np.uint8), target)[1]


def test_all_rows_of_a_dictionary_follow_its_boxes() -> None:
    """The left half is cut off, and the first box with it; half of the third box is left."""
    made = called(A.Compose([A.Crop(50, 0, 100, 80)], bbox_params=IN_PIXELS), TARGET)
    expected = [[20, 30, 40, 39.5], [0, 15, 10, 25]]  # of 50 x 80, resized to 50 x 40
    np.testing.assert_allclose(made["boxes"].numpy(), expected, atol=1e-4)
    assert made["labels"].tolist() == [5, 6]
    assert made["names"] == ["b", "c"]
    np.testing.assert_allclose(
        made["area"].numpy(), [150, 100], rtol=1e-4
    )  # half of the rows, and of the third also half of the columns
    assert made["masks"].shape == (2, 40, 50)
    assert made["masks"].all()
    assert made["image_id"] == 7


def test_a_picture_without_objects_stays_one() -> None:
    empty = {"boxes": np.zeros((0, 4)), "labels": np.zeros(0, int), "masks": np.zeros((0, 80, 100), np.uint8)}
    made = called(A.Compose([A.Crop(50, 0, 100, 80)], bbox_params=IN_PIXELS), empty)
    assert {name: tuple(value.shape) for name, value in made.items()} == {
        "boxes": (0, 4),
        "labels": (0,),
        "masks": (0, 40, 50),
    }


def test_a_recipe_with_boxes_can_be_called_without() -> None:
    own = T.Apply(A.Compose([A.HorizontalFlip(p=1)], bbox_params=IN_PIXELS), targets=True)
    image = PICTURES[0]
    made = Compose([own, T.Resize(image.shape[:2])], dtype="uint8")(image)
    np.testing.assert_array_equal(made.permute(1, 2, 0).numpy(), image[:, ::-1])


FLIP = [A.HorizontalFlip(p=1)]


@pytest.mark.parametrize(
    ("transform", "more", "message"),
    [
        # Each of these would move boxes as if they were something else, without an error.
        (A.Compose(FLIP), {}, "boxes need albumentations.Compose"),
        (A.HorizontalFlip(p=1), {}, "boxes need albumentations.Compose"),
        (A.Compose(FLIP, bbox_params=A.BboxParams("coco", label_fields=["rows"])), {}, 'BboxParams("pascal_voc"'),
        (A.Compose(FLIP, bbox_params=A.BboxParams("pascal_voc")), {}, 'label_fields=["rows"]'),
        (A.Compose(FLIP, bbox_params=IN_PIXELS), {"keypoints": np.ones((3, 2, 3))}, "does not move key points"),
        (A.Compose([*FLIP, A.ToTensorV2()], bbox_params=IN_PIXELS), {}, "put Normalize after Apply"),
    ],
)
def test_what_would_go_wrong_is_an_error(transform: Any, more: dict[str, Any], message: str) -> None:  # noqa: ANN401
    with pytest.raises(DataError) as caught:
        called(transform, TARGET | more)
    assert message in str(caught.value)


def test_the_fingerprint_has_what_a_transform_says_of_itself() -> None:
    one, same, other = (Compose([*CROP, T.Apply(A.Compose([A.GaussNoise(p=p)]))]).fingerprint for p in (0.5, 0.5, 0.7))
    assert one == same != other


# The page, and the example.


def test_the_recipes_of_the_page_run(tmp_path: Path) -> None:
    [block] = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    made: dict[str, Any] = {}
    exec(block, made)
    tar = shard(tmp_path)
    for recipe, fields in ((made["recipe"], {}), (made["with_boxes"], made["fields"])):
        with scenes.loader(tar, preset=recipe, fields=fields) as loader:
            batch = next(iter(loader))
        assert batch["image"].shape == (4, 3, 160, 160)
    assert [len(labels) for labels in batch["boxes_labels"]] == [len(boxes) for boxes in batch["boxes"]]


def test_the_example_trains(tmp_path: Path) -> None:
    colours = [encoded(Image.new("RGB", (40, 40), colour), "JPEG") for colour in ("navy", "orange")]
    samples = [{"__key__": f"{n}", "jpg": colours[n % 2], "cls": b"%d" % (n % 2)} for n in range(64)]
    tar = write_shard(tmp_path / "a.tar", samples)
    options = {"--shards": tar, "--classes": 2, "--batch-size": 16, "--size": 32, "--epochs": 6}
    command = [sys.executable, str(EXAMPLE), *(str(each) for pair in options.items() for each in pair)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    losses = [float(each) for each in re.findall(r"epoch \d: loss (\S+)", result.stdout)]
    assert len(losses) == 6
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Compose.load(A.Compose([A.HorizontalFlip()])),
        lambda: Compose([T.RandomResizedCrop(8), A.HorizontalFlip()]),
        lambda: GPULoader("a.tar", 8, preset=A.HorizontalFlip()),
    ],
)
def test_albumentations_in_the_place_of_a_recipe_names_apply(make: Callable[[], object]) -> None:
    with pytest.raises(PresetError, match=r"run as own code, by Apply\(transform\)"):
        make()
