"""Targets on the pictures of `show`: they are where a loader delivers them, and drawn where Pillow draws them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_images import turned
from making import encoded, picture, write_shard
from PIL import Image, ImageDraw, ImageOps

from gpuloader import Boxes, Compose, GPULoader, Keypoints, Mask
from gpuloader import transforms as T
from gpuloader.errors import BadImageError
from gpuloader.recipe import load_preset
from gpuloader.tools.overlay import Overlay, draw_targets, find_targets
from gpuloader.tools.show import Gallery, show

FIELDS = {
    "boxes": Boxes("json:annotations", format="xywh", labels="category_id"),
    "points": Keypoints("json:annotations", flip_pairs=[(0, 1)]),
    "outlines": Mask("json:annotations"),
    "mask": Mask("mask.png", fill=255),
}
RANDOM = Compose([T.RandomResizedCrop(128, scale=(0.4, 1)), T.RandomHorizontalFlip(), T.RandomRotation(20)])
BY_BOXES = Compose([T.RandomZoomOut(), T.RandomIoUCrop(), T.Resize((128, 128))])
HEIGHT, WIDTH = 130, 200
FLIP = Compose([T.CenterCrop((HEIGHT, WIDTH)), T.RandomHorizontalFlip(1)], dtype="uint8")


def annotation(x: float, y: float, w: float, h: float, label: int) -> dict[str, Any]:
    outline = [[x, y, x + w, y, x + w, y + h, x, y + h]]
    points = [x, y, 2, x + w - 1, y + h - 1, 2]
    return {"bbox": [x, y, w, h], "category_id": label, "segmentation": outline, "keypoints": points}


ANNOTATIONS = [annotation(20, 60, 50, 40, 1), annotation(100, 30, 60, 70, 0)]


def sample(key: str, annotations: list[Any], **more: bytes) -> dict[str, Any]:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[60:100, 20:70] = 3
    mask[:2] = 255
    components = {"png": encoded(picture(HEIGHT, WIDTH), "PNG"), "mask.png": encoded(Image.fromarray(mask), "PNG")}
    return {"__key__": key, **components, "json": json.dumps({"annotations": annotations}).encode(), **more}


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    (folder / "classes.json").write_text('{"names": ["cat", "dog"], "ids": [3, 18]}')
    return write_shard(folder / "a.tar", [sample("a", ANNOTATIONS), sample("b", ANNOTATIONS[:1]), sample("c", [])])


def changed(with_targets: Image.Image, without: Image.Image) -> set[tuple[int, int]]:
    """The x and y of the pixels that differ."""
    rows, columns = (np.asarray(with_targets) != np.asarray(without)).any(2).nonzero()
    return {*zip(columns.tolist(), rows.tolist())}


def by_hand(size: tuple[int, int], *corners: float, shape: str = "rectangle") -> set[tuple[int, int]]:
    """Those that Pillow draws of a shape."""
    blank = Image.new("RGB", size)
    drawn = blank.copy()
    if shape == "rectangle":
        ImageDraw.Draw(drawn).rectangle(corners, outline="white", width=2)
    else:
        ImageDraw.Draw(drawn).ellipse(corners, fill="white")
    return changed(drawn, blank)


# --- where they are


def upside_down(image: np.ndarray, targets: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    x1, y1, x2, y2 = targets["boxes"].T
    return image[::-1], {**targets, "boxes": np.stack([x1, len(image) - y2, x2, len(image) - y1], 1)}


CUT = T.RandomResizedCrop(128, scale=(0.4, 1))
OWN_CODE = Compose([CUT, T.Apply(upside_down, targets=True), *RANDOM.transforms[1:]])
UNCHANGED = Compose([CUT, T.Apply(np.copy), T.RandomHorizontalFlip()])


@pytest.mark.parametrize(
    "recipe", [RANDOM, BY_BOXES, OWN_CODE, UNCHANGED], ids=["random", "by boxes", "own code", "no targets"]
)
def test_targets_are_those_that_the_loader_delivers_in_that_epoch(tar: Path, recipe: Compose) -> None:
    gallery = Gallery(tar, label_from=None, device_id=None, fields=FIELDS)
    options = {"label_from": None, "output": "dict", "decoder": {"processes": 0}}
    with GPULoader(tar, 3, None, preset=recipe, seed=5, fields=FIELDS, **options) as loader:
        for epoch in range(3):
            batch = next(iter(loader))
            for row, number in enumerate(batch["index"].tolist()):
                [overlay] = gallery.targets(recipe, number, 5, epoch)
                assert torch.equal(gallery.tensors(recipe, number, 5, epoch)[0], batch["image"][row])
                assert [list(box) for box, *_ in overlay.boxes] == batch["boxes"][row].tolist()
                assert [label for _, label, _ in overlay.boxes] == batch["boxes_labels"][row].tolist()
                seen = batch["points_visibility"][row] > 0
                assert [[x, y] for x, y, _ in overlay.points] == batch["points"][row][seen].tolist()
                assert [point for *_, point in overlay.points] == seen.nonzero()[:, 1].tolist()
                outlines, mask = overlay.areas
                numbers = 1 + np.arange(len(batch["outlines"][row]))[:, None, None]
                assert (outlines == (batch["outlines"][row].numpy() * numbers).max(0, initial=0)).all()
                assert (mask == np.where(batch["mask"][row] == 255, 0, batch["mask"][row])).all()


def test_each_view_has_its_own(tar: Path) -> None:
    views = {"views": [{"transforms": list(each)} for each in ([T.Resize((65, 100))], FLIP.transforms)]}
    halved, flipped = Gallery(tar, device_id=None, fields=FIELDS).targets(load_preset(views), 1, 0, 0)
    assert [box for box, *_ in halved.boxes] == [(10, 30, 35, 50)]
    assert [box for box, *_ in flipped.boxes] == [(130, 60, 180, 100)]


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_targets_of_a_turned_picture_are_on_the_upright_one(tmp_path: Path, orientation: int) -> None:
    image = Image.open(io.BytesIO(encoded(picture(60, 80), "PNG", exif=turned(orientation))))
    upright = ImageOps.exif_transpose(image)
    content = json.dumps({"annotations": [{"bbox": [10, 20, 30, 25]}]}).encode()
    galleries = []
    for name, each in (("turned", image), ("plain", upright)):
        row = {"__key__": "a", "png": encoded(each, "PNG", exif=each.getexif()), "json": content}
        galleries.append(Gallery(write_shard(tmp_path / f"{name}.tar", [row]), device_id=None))
    ours, plain = galleries
    on = Compose(RANDOM.transforms, orientation="apply")
    assert ours.targets(on, 0, 7, 0)[0].boxes == plain.targets(RANDOM, 0, 7, 0)[0].boxes != []
    whole = ours.whole(0, 500, "apply")
    assert whole.shapes == [(upright.height, upright.width)]
    assert [box for box, *_ in ours.targets(whole, 0, 0, 0)[0].boxes] == [(10, 20, 40, 45)]


# --- how they are drawn


@pytest.mark.parametrize("times", [1, 2, 0.5])
def test_boxes_points_and_masks_are_drawn_where_pillow_draws_them(times: float) -> None:
    plain = Image.new("RGB", (100, 60), (90, 90, 90))
    size = round(100 * times), round(60 * times)
    areas = np.zeros((60, 100), np.int64)
    areas[10:30, 40:80] = 7

    def drawn(overlay: Overlay) -> set[tuple[int, int]]:
        fitted = draw_targets(plain, overlay, lambda image: image.resize(size, Image.Resampling.NEAREST))
        return changed(fitted, plain.resize(size))

    x1, y1, x2, y2 = (round(times * side) for side in (10, 20, 50, 44))
    assert drawn(Overlay([], [((10, 20, 50, 44), 3, "")], [])) == by_hand(size, x1, y1, x2 - 1, y2 - 1)
    x, y = times * 30.5, times * 40.5  # the middle of the pixel
    assert drawn(Overlay([], [], [(30, 40, 0)])) == by_hand(size, x - 3, y - 3, x + 3, y + 3, shape="ellipse")
    inside = np.zeros(size[::-1], bool)
    inside[round(10 * times) : round(30 * times), round(40 * times) : round(80 * times)] = True
    assert drawn(Overlay([areas], [], [])) == {*zip(*(each.tolist() for each in inside.nonzero()[::-1]))}
    assert drawn(Overlay([], [], [])) == set()


def test_a_class_is_named_at_its_box_and_has_a_colour_of_its_own(tar: Path) -> None:
    gallery = Gallery(tar, device_id=None)
    [overlay] = gallery.targets(FLIP, 0, 0, 0)
    assert [(label, text) for _, label, text in overlay.boxes] == [(1, "dog"), (0, "cat")]
    [made] = gallery.versions(FLIP, 0, 0, 0)
    boxes = Overlay([], overlay.boxes, [])
    image = draw_targets(made, boxes, lambda image: image)
    without_names = Overlay([], [(box, label, "") for box, label, _ in boxes.boxes], [])
    unnamed = draw_targets(made, without_names, lambda image: image)
    above = changed(image, unnamed)
    assert above
    assert all((130 <= x < 160 and 45 <= y < 60) or (40 <= x < 70 and 15 <= y < 30) for x, y in above)
    assert image.getpixel((150, 99)) != image.getpixel((60, 99))


def test_the_picture_has_them_on_originals_and_versions(tar: Path, tmp_path: Path) -> None:
    common = {"preset": FLIP, "samples": [1], "versions": 1, "device_id": None, "label_from": None}
    only = {"boxes": Boxes("json:annotations", format="xywh")}
    shown, plain = (
        Image.open(show(tar, tmp_path / f"{name}.png", fields=fields, **common).picture)
        for name, fields in (("with", only), ("without", {}))
    )
    left, top, step = 10, 2 * 10 + 18 + 2 * 16 + 200 - HEIGHT, 200 + 10  # of the original; the version is beside it
    boxes = ((start, top, start + 200, top + HEIGHT) for start in (left, left + step))
    original, version = (changed(shown.crop(box), plain.crop(box)) for box in boxes)
    assert original == by_hand((200, HEIGHT), 20, 60, 69, 99)
    assert version == by_hand((200, HEIGHT), 130, 60, 179, 99)


# --- which are drawn


@pytest.mark.parametrize(
    ("extensions", "content", "expected"),
    [
        (["jpg"], None, []),
        (["jpg", "cls", "json"], b'{"captions": ["a"]}', []),
        (["jpg", "json"], b'{"annotations": ["a caption"]}', []),
        (["jpg", "json"], b"[" * 100_000, []),
        (["jpg", "json"], b"\xff", []),
        (["jpg", "json"], b'{"annotations": []}', ["boxes"]),
        (["jpg", "json", "mask.png"], b'{"annotations": [{"caption": "a"}]}', ["mask.png"]),
        (["jpg", "json"], json.dumps({"annotations": ANNOTATIONS}).encode(), ["boxes", "outlines", "points"]),
        (["jpg", "json"], json.dumps({"annotations": [*ANNOTATIONS, {"bbox": []}]}).encode(), ["boxes", "points"]),
    ],
)
def test_what_pack_writes_is_found(extensions: list[str], content: bytes | None, expected: list[str]) -> None:
    assert sorted(find_targets(extensions, content)) == expected


def test_what_pack_writes_is_drawn_as_the_fields_that_name_it(tar: Path) -> None:
    found, named = Gallery(tar, device_id=None), Gallery(tar, device_id=None, label_from=None, fields=FIELDS)
    for number in range(3):
        [ours], [theirs] = (gallery.targets(FLIP, number, 0, 0) for gallery in (found, named))
        assert ours.boxes == theirs.boxes
        assert sorted(place for *place, _ in ours.points) == sorted(place for *place, _ in theirs.points)
        assert found.sample(number).label is None
    assert found.has_targets


def crowded(folder: Path, crowd: object) -> Path:
    """A sample with an object at the right, and a large crowd at the left."""
    right = {**annotation(150, 80, 40, 40, 1), "iscrowd": type(crowd)(0)}
    left = {**annotation(0, 0, 90, 120, 0), "iscrowd": crowd}
    (folder / "classes.json").write_text('["cat", "dog"]')
    return write_shard(folder / "a.tar", [sample("a", [left, right])])


@pytest.mark.parametrize("crowd", [1, True])
def test_crowds_are_marked_and_do_not_decide_the_crops_as_in_training(tmp_path: Path, crowd: object) -> None:
    tar = crowded(tmp_path, crowd)
    gallery = Gallery(tar, device_id=None, label_from=None)
    [whole] = gallery.targets(FLIP, 0, 0, 0)
    (_, first, marked), (_, second, plain) = whole.boxes
    assert (first, second, plain) == (0, 1, "dog")
    assert marked.startswith("cat")
    assert "crowd" in marked
    fields = {"boxes": Boxes("json:annotations", "xywh", labels="category_id", leave_out="iscrowd")}
    recipe = Compose([T.RandomIoUCrop(), T.Resize((128, 128))])
    with GPULoader(tar, 1, None, preset=recipe, seed=2, label_from=None, fields=fields) as loader:
        for epoch in range(8):
            [batch] = list(loader)
            assert torch.equal(gallery.tensors(recipe, 0, 2, epoch)[0], batch["image"][0])
            shown = [box for box, *_, name in gallery.targets(recipe, 0, 2, epoch)[0].boxes if "crowd" not in name]
            assert [list(box) for box in shown] == batch["boxes"][0].tolist()


def test_named_fields_decide_the_crops_as_they_are(tmp_path: Path) -> None:
    tar = crowded(tmp_path, 1)
    fields = {"boxes": Boxes("json:annotations", "xywh", labels="category_id", keys=["iscrowd"])}
    gallery = Gallery(tar, device_id=None, label_from=None, fields=fields)
    recipe = Compose([T.RandomIoUCrop(), T.Resize((128, 128))])
    with GPULoader(tar, 1, None, preset=recipe, seed=2, label_from=None, fields=fields) as loader:
        for epoch in range(8):
            [batch] = list(loader)
            assert torch.equal(gallery.tensors(recipe, 0, 2, epoch)[0], batch["image"][0])
    assert "crowd" in gallery.targets(FLIP, 0, 0, 0)[0].boxes[0][2]


def test_targets_that_cannot_follow_the_recipe_are_left_out_and_named(tar: Path, tmp_path: Path) -> None:
    blended = Compose([T.Resize((64, 64)), T.AugMix()])
    shown = show(tar, tmp_path / "a.png", preset=blended, samples=[0], versions=1, device_id=None, fields=FIELDS)
    assert shown.targets_left_out.keys() == FIELDS.keys()
    assert shown.targets_left_out["boxes"].startswith("AugMix blends")
    assert shown.bad == {}
    mixed = Compose(RANDOM.transforms, mix=T.Mix(num_classes=2, mixup_alpha=1.0))
    gallery = Gallery(tar, device_id=None, fields=FIELDS)
    assert gallery.targets_left_out(mixed, 0) == {}
    assert gallery.targets(mixed, 0, 5, 1)[0].boxes == gallery.targets(RANDOM, 0, 5, 1)[0].boxes


@pytest.mark.parametrize(
    ("components", "cause"),
    [
        ({"json": b'{"annotations": [{"bbox": [0, 0, 1]}]}'}, "allowed are 4 numbers"),
        ({"mask.png": encoded(picture(4, 4).convert("L"), "PNG")}, r"the mask's shape is \(4, 4\)"),
        ({"json": None}, "it has no .json component"),
    ],
)
def test_a_sample_with_a_bad_target_is_bad(tmp_path: Path, components: dict[str, Any], cause: str) -> None:
    row = {key: value for key, value in {**sample("a", ANNOTATIONS), **components}.items() if value is not None}
    path = write_shard(tmp_path / "a.tar", [row])
    shown = show(path, tmp_path / "a.png", preset=FLIP, samples=1, versions=1, device_id=None, fields=FIELDS)
    assert list(shown.bad) == [0]
    with pytest.raises(BadImageError, match=cause):
        Gallery(path, device_id=None, fields=FIELDS).targets(FLIP, 0, 0, 0)
