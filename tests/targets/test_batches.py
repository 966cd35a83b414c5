"""Boxes, masks and key points in a loader's batches: coloured rectangles are where their targets say."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_graph import no_reads
from making import encoded, saved, write_shard
from PIL import Image
from scenes import (
    COUNT,
    CROP,
    EVAL,
    FIELDS,
    FLIPS,
    HALF,
    RANDOM,
    annotations_of,
    by_sample,
    loader,
    sample_of,
    shard,
    size_of,
    train,
)

from gpuloader import BadImages, Boxes, Field, Keypoints, Mask
from gpuloader.errors import BadImageError, ConfigError, DataError
from gpuloader.plan import Draws, Stream
from gpuloader.recipe import Mix
from gpuloader.targets import to_detection, to_detr, to_tv_tensors

pytestmark = pytest.mark.slow(kept=15, of="targets")


def colored(image: torch.Tensor, color: int) -> torch.Tensor:
    """Where an image has a rectangle's colour."""
    others = [channel for channel in range(3) if channel != color]
    return (image[color] > 0.6) & (image[others] < 0.4).all(0)


def assert_covers(colored: torch.Tensor, shown: torch.Tensor) -> None:
    """The coloured pixels are those of the mask, but for two at its border: their filters differ."""
    around = torch.nn.functional.max_pool2d(shown[None].float(), 5, 1, 2)[0].bool()
    within = ~torch.nn.functional.max_pool2d((~shown)[None].float(), 5, 1, 2)[0].bool()
    assert not (colored & ~around).any()
    assert not (within & ~colored).any()


# --- what a batch has


def test_a_batch_has_the_targets_in_pixels_of_its_images(tar: Path) -> None:
    batch = next(iter(loader(tar)))
    assert batch["original_size"].tolist() == [list(size_of(number)) for number in range(4)]
    assert batch["size"].tolist() == [[40, 60]] * 4
    for number in range(4):
        height, width = size_of(number)
        scale = np.array([60 / width, 40 / height])
        expected = annotations_of(number)
        count = len(expected)
        corners = np.array([each["bbox"] for each in expected]).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        np.testing.assert_allclose(batch["boxes"][number], corners * np.tile(scale, 2), atol=1e-3)
        assert batch["boxes_labels"][number].tolist() == [each["category_id"] for each in expected]
        assert batch["boxes_iscrowd"][number].tolist() == [each["iscrowd"] for each in expected]
        areas = [each["area"] * scale.prod() for each in expected]
        np.testing.assert_allclose(batch["boxes_area"][number], areas, rtol=1e-5)
        assert batch["boxes_number"][number].tolist() == list(range(count))
        points = np.array([each["keypoints"] for each in expected]).reshape(count, -1 if count else 0, 3)
        np.testing.assert_allclose(batch["points"][number], points[..., :2] * scale, atol=1e-3)
        np.testing.assert_array_equal(batch["points_visibility"][number], points[..., 2])
        assert batch["objects"][number].shape == (count, 40, 60)
    kinds = {name: (value if isinstance(value, torch.Tensor) else value[0]).dtype for name, value in batch.items()
             if name not in ("key", "label")}  # fmt: skip
    integers = "index original_size size boxes_labels boxes_iscrowd boxes_number points_visibility mask"
    assert kinds == {
        **dict.fromkeys(("image", "boxes", "boxes_area", "points"), torch.float32),
        **dict.fromkeys(integers.split(), torch.int64),
        **{"valid": torch.bool, "objects": torch.uint8},
    }


SQUARE = {"Resize": {"size": [48, 64], "interpolation": "nearest"}}
BY_BOXES: list[dict[str, Any]] = [{"RandomZoomOut": {}}, {"RandomIoUCrop": {}}, FLIPS[0], SQUARE]
WARPS = {
    "resized": [{"Resize": {"size": [50, 90], "interpolation": "nearest"}}],
    "cropped and flipped": [CROP, *FLIPS],
    "warped": [CROP, {"RandomAffine": {"degrees": 10, "translate": [0.1, 0.1], "scale": [0.8, 1.2], "shear": 8}}],
    "in perspective": [CROP, {"RandomPerspective": {"interpolation": "nearest"}}],
    "as SSD's": BY_BOXES,
    "as DETR's": [
        {"RandomSizeCrop": {"min_size": 40, "max_size": 70, "sizes": [60, 90], "interpolation": "nearest"}},
        {"RandomShortestSize": {"min_size": [50, 60, 70], "max_size": 90, "interpolation": "nearest"}},
        {"CenterCrop": {"size": 60}},
    ],
    "by a policy": [CROP, {"TrivialAugmentWide": {}}],
}


@pytest.mark.parametrize("transforms", WARPS.values(), ids=WARPS.keys())
def test_the_targets_are_where_the_pixels_are(tar: Path, transforms: list[dict[str, Any]]) -> None:
    fields = {**FIELDS, "boxes": Boxes("json:annotations", format="xywh", labels="category_id", min_size=1e-3)}
    seen = 0
    for sample in by_sample(loader(tar, preset=train(*transforms), fields=fields, last_batch="partial")).values():
        objects, by_mask = sample["objects"], sample["mask"]
        for number, box, label in zip(sample["boxes_number"], sample["boxes"], sample["boxes_labels"]):
            shown = objects[number].bool()
            assert torch.equal(by_mask == 1 + label, shown)
            if "TrivialAugmentWide" not in str(transforms):  # which changes colours, too
                assert_covers(colored(sample["image"], int(label)), shown)
            if not shown.any():
                continue
            rows, columns = torch.nonzero(shown, as_tuple=True)
            around = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert (box[:2] <= around[:2] + 2).all()
            assert (box[2:] >= around[2:] - 2).all()
            seen += 1
    assert seen >= 8


def test_boxes_whose_centre_the_drawn_window_does_not_hold_are_left_out(tar: Path) -> None:
    crop = {"RandomIoUCrop": {"sampler_options": [0.0], "max_scale": 0.6}}
    seen_without_box = 0
    made = loader(tar, preset=train(crop, SQUARE))
    for sample in [each for _ in range(6) for each in by_sample(made).values()]:
        shown = {int(number) for number, each in enumerate(sample["objects"]) if each.any()}
        assert set(sample["boxes_number"].tolist()) <= shown
        assert len(sample["boxes"]) >= 1 or len(sample["objects"]) == 0
        seen_without_box += len(shown) - len(sample["boxes_number"])
    assert seen_without_box >= 3


WITHOUT_CROWDS = Boxes("json:annotations", "xywh", labels="category_id", keys=["area"], leave_out="iscrowd")


@pytest.mark.parametrize("labels", ["category_id", "json:labels"])
@pytest.mark.parametrize("crowd", [1, 7, True])  # which JSON has as true
def test_annotations_are_left_out_whose_key_is_not_0(tmp_path: Path, labels: str, crowd: int) -> None:
    """Every second is a crowd; the columns, masks and points are those of the others, by their numbers."""
    changed = {}
    for number in range(COUNT):
        annotations = [{**each, "iscrowd": type(crowd)(each["iscrowd"] and crowd)} for each in annotations_of(number)]
        document = {"annotations": annotations, "labels": [each["category_id"] for each in annotations]}
        changed[number] = {"json": json.dumps(document).encode()}
    boxes = replace(WITHOUT_CROWDS, labels=labels)
    batch = next(iter(loader(shard(tmp_path, changed), fields={**FIELDS, "boxes": boxes})))
    _, targets = to_detection(batch, masks="objects", points="points")
    for number, target in enumerate(targets):
        stay = [place for place in range(number) if place % 2 == 0]
        assert batch["boxes_number"][number].tolist() == target["labels"].tolist() == stay
        assert torch.equal(target["masks"], batch["objects"][number][stay])
        assert torch.equal(target["keypoints"][..., :2], batch["points"][number][stay])
        scale = 60 * 40 / np.prod(size_of(number))
        areas = [annotations_of(number)[place]["area"] * scale for place in stay]
        np.testing.assert_allclose(target["area"], areas, rtol=1e-5)


def test_a_recipe_does_not_draw_by_what_is_left_out(tmp_path: Path) -> None:
    """Windows hold the centre of a box that stays; if crowds counted, some would hold only theirs."""
    crop = {"RandomIoUCrop": {"sampler_options": [0.0], "max_scale": 0.6}}
    tar = shard(tmp_path)
    some_left = {True: 0, False: 0}
    for without in some_left:
        fields = {"boxes": WITHOUT_CROWDS if without else FIELDS["boxes"]}
        made = loader(tar, preset=train(crop, SQUARE), fields=fields)
        for sample in [each for _ in range(6) for each in by_sample(made).values()]:
            counts = sample["boxes_number"].tolist()
            some_left[without] += bool(counts) and all(number % 2 for number in counts)
    assert some_left[True] == 0
    assert some_left[False] > 0


def test_an_annotation_without_the_key_makes_its_sample_bad(tmp_path: Path) -> None:
    lacking = [{key: value for key, value in each.items() if key != "iscrowd"} for each in annotations_of(3)]
    tar = shard(tmp_path, {3: {"json": json.dumps({"annotations": lacking}).encode()}})
    with pytest.raises(BadImageError, match=r"annotations\[0\] is .*: allowed is an object with the key 'iscrowd'"):
        next(iter(loader(tar, fields={"boxes": WITHOUT_CROWDS})))


@pytest.mark.parametrize(
    ("fields", "found"),
    [({"mask": Mask("mask.png")}, "0 fields"), ({**FIELDS, "others": FIELDS["boxes"]}, "2 fields")],
    ids=["none", "two"],
)
def test_a_recipe_that_draws_by_boxes_needs_one_field_of_them(tar: Path, fields: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=f"RandomIoUCrop, which needs the boxes.*has {found} of boxes: allowed is"):
        loader(tar, preset=train(*BY_BOXES), fields=fields)


def test_points_of_a_flipped_image_change_places(tar: Path, delivered: dict[int, dict[str, Any]]) -> None:
    flipped = by_sample(loader(tar, preset=train(EVAL["transforms"][0], {"RandomHorizontalFlip": {"p": 1}})))
    for number, sample in delivered.items():
        if number not in flipped or not len(sample["points"]):
            continue
        left, right = sample["points"].unbind(1)
        expected = torch.stack([right, left], 1)
        expected[..., 0] = 60 - 1 - expected[..., 0]
        np.testing.assert_allclose(flipped[number]["points"], expected, atol=1e-4)
        assert flipped[number]["points_visibility"].tolist() == sample["points_visibility"].flip(1).tolist()


def test_targets_do_not_change_the_images(tar: Path) -> None:
    options = {"preset": train(CROP, *FLIPS, {"RandAugment": {}}), "last_batch": "partial"}
    without = by_sample(loader(tar, fields={}, **options))
    for number, sample in by_sample(loader(tar, **options)).items():
        assert torch.equal(sample["image"], without[number]["image"])


def test_cutmix_pastes_masks_as_it_pastes_images(tar: Path) -> None:
    options: dict[str, Any] = {"fields": {"mask": FIELDS["mask"]}, "shuffle": "full", "last_batch": "drop"}
    recipe = train(CROP, *FLIPS)
    mixed = loader(tar, preset={**recipe, "mix": {**CUTMIX, "per": "sample"}}, **options)
    differing = 0
    for batch, before in zip(mixed, loader(tar, preset=recipe, **options), strict=True):
        drawn = Mix(**CUTMIX, per="sample").draw(Draws(3, 0, before["index"].numpy()).of(Stream.MIX), 48, 64)
        for row, (top, left, bottom, right) in enumerate(drawn.box.tolist()):
            for name in ("mask", "image"):
                expected = before[name][row].clone()
                expected[..., top:bottom, left:right] = before[name][row ^ 1][..., top:bottom, left:right]
                assert torch.equal(batch[name][row], expected)
            differing += int(not torch.equal(batch["mask"][row], before["mask"][row]))
        assert batch["label"] is None
    assert differing >= 6


# --- options


def test_boxes_that_a_crop_leaves_too_little_of_are_left_out_with_their_columns(tar: Path) -> None:
    preset = train({"CenterCrop": {"size": [30, 40]}})
    options = {"format": "xywh", "labels": "category_id"}
    everything = by_sample(
        loader(tar, preset=preset, fields={"boxes": Boxes("json:annotations", min_size=1e-6, **options)})
    )
    for least in ({"min_size": 28}, {"min_visibility": 0.7}):
        kept = by_sample(loader(tar, preset=preset, fields={"boxes": Boxes("json:annotations", **options, **least)}))
        dropped = 0
        for number, sample in kept.items():
            all_boxes = everything[number]["boxes"]
            sides = all_boxes[:, 2:] - all_boxes[:, :2]
            of = everything[number]["boxes_number"]
            whole = torch.tensor([each["bbox"][2] * each["bbox"][3] for each in annotations_of(number)])[of]
            good = (sides >= 28).all(1) if "min_size" in least else (sides.prod(1) >= 0.7 * whole) & (sides >= 1).all(1)
            assert torch.equal(sample["boxes"], all_boxes[good])
            assert torch.equal(sample["boxes_labels"], everything[number]["boxes_labels"][good])
            assert torch.equal(sample["boxes_number"], of[good])
            dropped += int((~good).sum())
        assert dropped


def test_padded_boxes_are_one_tensor(tar: Path, delivered: dict[int, dict[str, Any]]) -> None:
    fields = {"boxes": Boxes("json:annotations", format="xywh", labels="category_id", pad_to=3)}
    for number, sample in by_sample(loader(tar, fields=fields)).items():
        count = number % 4
        assert sample["boxes"].shape == (3, 4)
        assert sample["boxes_count"] == count
        assert torch.equal(sample["boxes"][:count], delivered[number]["boxes"])
        assert sample["boxes_labels"].tolist() == [*delivered[number]["boxes_labels"].tolist(), *[-1] * (3 - count)]
        assert not sample["boxes"][count:].any()
    with pytest.raises(DataError, match="3 boxes are left of a sample: Boxes"):
        list(loader(tar, fields={"boxes": Boxes("json:annotations", format="xywh", pad_to=2)}))


def test_several_views_have_their_own_targets(tar: Path) -> None:
    preset = {**train(CROP, *FLIPS), "views": 2}
    batch = next(iter(loader(tar, preset=preset, shuffle="none")))
    for view in range(2):
        for row in range(4):
            for number, label in zip(batch["boxes_number"][view][row], batch["boxes_labels"][view][row]):
                shown = batch["objects"][view][row][number].bool()
                assert_covers(colored(batch["image"][view][row], int(label)), shown)
    assert not torch.equal(batch["mask"][0], batch["mask"][1])
    assert [size.tolist() for size in batch["size"]] == [[[48, 64]] * 4] * 2


def test_targets_under_a_shared_crop_are_the_same_in_all_views(tar: Path) -> None:
    preset = {
        "transforms": [CROP, *FLIPS],
        "views": [{"transforms": []}, {"transforms": [{"ColorJitter": {"hue": 0.1}}]}],
    }
    batch = next(iter(loader(tar, preset=preset, shuffle="none")))
    for name in ("boxes", "points", "mask", "objects"):
        for one, other in zip(*batch[name], strict=True):
            assert torch.equal(one, other), name
    assert_covers(colored(batch["image"][0][1], 0), batch["objects"][1][1][0].bool())


def test_targets_of_a_turned_picture_count_in_the_upright_one(tar: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rows and columns are exchanged
    changed = {}
    for number in range(COUNT):
        upright = Image.open(io.BytesIO(sample_of(number)["png"]))  # type: ignore[arg-type]
        stored = upright.transpose(Image.Transpose.ROTATE_90)
        changed[number] = {"png": encoded(stored, "PNG", exif=exif)}
    preset = train({"Resize": {"size": [40, 60]}})
    upright_samples = by_sample(loader(tar, preset=preset))
    turned = loader(shard(tmp_path, changed), preset={**preset, "orientation": "apply"})
    for number, sample in by_sample(turned).items():
        for name, value in upright_samples[number].items():
            if name == "image":  # two orders of the same sums
                np.testing.assert_allclose(sample[name], value, atol=0.01)
            else:
                assert torch.equal(sample[name], value) if isinstance(value, torch.Tensor) else sample[name] == value


def with_broken_text(mask: np.ndarray[Any, Any]) -> bytes:
    """A PNG with a text whose checksum is wrong, which the gate does not look at."""
    png = encoded(Image.fromarray(mask), "PNG")
    return png[:33] + (4).to_bytes(4, "big") + b"tEXta\0bc" + bytes(4) + png[33:]


MASKS: dict[str, tuple[str, Any]] = {
    "palette": ("mask.png", lambda mask: encoded(palette(mask), "PNG")),
    "16 bits": ("mask.png", lambda mask: encoded(Image.fromarray(mask.astype(np.uint16)), "PNG")),
    "broken text, which nothing reads": ("mask.png", with_broken_text),
    "array": ("mask.npy", lambda mask: saved(mask.astype(np.int32))),
}


def palette(mask: np.ndarray[Any, Any]) -> Image.Image:
    image = Image.fromarray(mask, "P")
    image.putpalette([0, 0, 0, 200, 10, 20, 30, 200, 40, 50, 60, 200])
    return image


def mask_of(number: int) -> np.ndarray[Any, Any]:
    mask = np.zeros(size_of(number), np.uint8)
    for annotation in annotations_of(number):
        x, y, w, h = annotation["bbox"]
        mask[y : y + h, x : x + w] = 1 + annotation["category_id"]
    return mask


@pytest.mark.parametrize(("source", "made"), MASKS.values(), ids=MASKS.keys())
def test_masks_of_all_kinds_give_the_classes(
    delivered: dict[int, dict[str, Any]], tmp_path: Path, source: str, made: Callable[[np.ndarray[Any, Any]], bytes]
) -> None:
    changed = {number: {source: made(mask_of(number))} for number in range(COUNT)}
    found = by_sample(loader(shard(tmp_path, changed), fields={"mask": Mask(source, fill=255)}))
    for number, sample in found.items():
        assert torch.equal(sample["mask"], delivered[number]["mask"])


def test_the_numbers_of_a_mask_are_objects_if_you_say_so(tar: Path) -> None:
    for sample in by_sample(loader(tar, fields={**FIELDS, "numbers": Mask("mask.png", instances=True)})).values():
        assert torch.equal(sample["numbers"], sample["objects"])


def test_a_box_outside_of_its_image_is_left_out_and_one_across_its_border_is_cut(tar: Path, tmp_path: Path) -> None:
    boxes = [[-30, -30, 20, 20], [-10, -10, 20, 20], [10, 10, 0, 20]]
    annotations = {"annotations": [{**HALF, "bbox": box, "category_id": 0, "area": 1} for box in boxes]}
    changed = {number: {"json": json.dumps(annotations).encode()} for number in range(COUNT)}
    fields = {"boxes": Boxes("json:annotations", format="xywh", labels="category_id", keys=("area",))}
    preset = train({"Resize": {"size": [80, 120]}})
    sample = by_sample(loader(shard(tmp_path, changed), preset=preset, fields=fields))[0]
    assert sample["boxes"].tolist() == [[0, 0, 10, 10]]
    assert sample["boxes_number"].tolist() == [1]


def test_the_area_of_a_box_that_was_almost_empty_is_finite(tmp_path: Path) -> None:
    boxes = [[0, 40, 1e-300, 40], [30, 10, 20, 40]]
    annotations = [{"bbox": box, "area": area} for box in boxes for area in (0, 600, -600, 3e38)]
    changed = {number: {"json": json.dumps({"annotations": annotations}).encode()} for number in range(COUNT)}
    fields = {"boxes": Boxes("json:annotations", format="xywh", keys=("area",))}
    preset = train({"Resize": {"size": [160, 240]}}, {"RandomRotation": {"degrees": [30, 30]}})
    sample = by_sample(loader(shard(tmp_path, changed), preset=preset, fields=fields))[0]
    most = float(np.finfo(np.float32).max)
    assert sample["boxes_area"][:4].tolist() == [0, most, -most, most]
    assert sample["boxes_area"][4] == 0
    assert torch.isfinite(sample["boxes_area"]).all()


BROKEN = {
    "a negative width": {"json": b'{"annotations": [{"bbox": [1, 1, -2, 3], "category_id": 1}]}'},
    "no number": {"json": b'{"annotations": [{"bbox": [1, 1, NaN, 3], "category_id": 1}]}'},
    "a mask of another size": {"mask.png": encoded(Image.new("L", (7, 9)), "PNG")},
    "a number with a fraction": {"json": json.dumps({"annotations": [{**HALF, "category_id": 0.5}]}).encode()},
    "a mask that is cut": {"mask.png": sample_of(5)["mask.png"][:60]},  # type: ignore[dict-item]
}


def test_a_broken_array_makes_its_sample_bad(tmp_path: Path) -> None:
    samples = [{**sample_of(number), "mask.npy": saved(mask_of(number))} for number in range(4)]
    samples[2]["mask.npy"] = b"\x93NUMPY\x01\x00\x0a\x00{'descr': ("
    options = {"fields": {"mask": Mask("mask.npy")}, "on_error": BadImages(replace=True, max_share=1)}
    with loader(write_shard(tmp_path / "a.tar", samples), **options) as batches:
        assert all(2 not in batch["index"] for batch in batches)
        assert list(batches.stats().bad) == [2]


@pytest.mark.parametrize("changed", BROKEN.values(), ids=BROKEN.keys())
def test_a_bad_annotation_makes_its_sample_bad(
    delivered: dict[int, dict[str, Any]], tmp_path: Path, changed: dict[str, bytes]
) -> None:
    broken = shard(tmp_path, {5: changed})
    with pytest.raises(BadImageError, match=r"the .* component beside it: "):
        list(loader(broken))
    with loader(broken, on_error=BadImages(replace=True, max_share=1), shuffle="none") as replacing:
        for batch in replacing:
            for row, number in enumerate(batch["index"].tolist()):
                assert number != 5
                for name in ("image", "boxes", "boxes_labels", "mask", "objects", "points"):
                    assert torch.equal(batch[name][row], delivered[number][name])  # the replacement's own
        assert list(replacing.stats().bad) == [5]


def test_a_background_picture_has_no_targets(tmp_path: Path) -> None:
    samples = [sample_of(number) for number in range(4)]
    del samples[3]["json"], samples[3]["mask.png"]
    tar = write_shard(tmp_path / "a.tar", samples)
    with pytest.raises(DataError, match=r"1 of 4 samples lack .json .*1 of 4 samples lack .mask.png"):
        loader(tar)
    boxes = Boxes("json:annotations", format="xywh", labels="category_id", keys=("area",), required=False)
    fields = {"boxes": boxes, "points": Keypoints("json:annotations", required=False),
              "mask": Mask("mask.png", fill=255, required=False),
              "objects": Mask("json:annotations", required=False)}  # fmt: skip
    sample = by_sample(loader(tar, fields=fields))[3]
    assert sample["boxes"].shape == (0, 4)
    assert (sample["boxes_labels"].dtype, sample["boxes_area"].dtype) == (torch.int64, torch.float32)
    assert sample["points"].shape == (0, 0, 2)
    assert sample["objects"].shape == (0, 40, 60)
    assert (sample["mask"] == 255).all()


def without_points(numbers: tuple[int, ...]) -> list[dict[str, Any]]:
    """The samples of these tests; in some of them, as in COCO, objects that are no persons have no points."""
    samples = [sample_of(number) for number in range(4)]
    for number in numbers:
        annotations = annotations_of(number)
        for place, annotation in enumerate(annotations):
            if number == 1 or place:  # all of sample 1
                annotation.pop("keypoints") if place % 2 else annotation.update(keypoints=[])
        samples[number]["json"] = json.dumps({"annotations": annotations}).encode()
    return samples


@pytest.mark.parametrize("count", [None, 2])
def test_objects_without_points_have_points_that_are_not_labelled(tar: Path, tmp_path: Path, count: int | None) -> None:
    mixed = write_shard(tmp_path / "a.tar", without_points((1, 2)))
    points = Keypoints("json:annotations", flip_pairs=[(0, 1)], count=count)
    options = {**RANDOM, "seed": 1, "fields": {**FIELDS, "points": points}}
    expected, found = (by_sample(loader(source, **options)) for source in (tar, mixed))
    flipped = 0
    for sample, of_it in found.items():
        seen, whole = of_it["points_visibility"], expected[sample]["points_visibility"]
        n = len(whole)
        if sample == 1 and count is None:  # none of its annotations has points, so nothing says how many
            assert (of_it["points"].shape, seen.shape) == ((n, 0, 2), (n, 0))
            continue
        labelled = {1: 0, 2: 1}.get(sample, n)
        flipped += labelled
        assert torch.equal(of_it["points"][:labelled], expected[sample]["points"][:labelled])
        assert torch.equal(seen[:labelled], whole[:labelled])
        assert (of_it["points"].shape, seen.shape) == (expected[sample]["points"].shape, whole.shape)
        assert not seen[labelled:].any()
    assert flipped


# --- what is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Boxes("json"), "`Boxes.source`: found 'json': allowed is \"json:NAME\""),
        (lambda: Boxes("json:a", format="yxyx"), "`Boxes.format`: found 'yxyx'.*; allowed are 'xyxy', 'xywh' or 'cxc"),  # type: ignore[arg-type]
        (lambda: Boxes("json:a", keys="iscrowd"), "`Boxes.keys`: found 'iscrowd': allowed is a list"),
        (lambda: Boxes("json:a", labels="id", keys=["id"]), "a key is named twice"),
        (lambda: Keypoints("json:a", flip_pairs=[(1, 2), (2, 3)]), "each point in one pair at most"),
        (lambda: Keypoints("json:a", count=2, flip_pairs=[(0, 2)]), "flip_pairs names point 2, but count is 2"),
        (lambda: Mask("jpg"), 'allowed are "png", "npy"'),
    ],
)
def test_invalid_options_are_errors(make: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        make()


CUTMIX = {"num_classes": 3, "cutmix_alpha": 1.0}


@pytest.mark.parametrize(
    ("field", "mix", "message"),
    [
        (Boxes("json:annotations"), CUTMIX, "Boxes cannot follow `mix`"),
        (Mask("mask.png", instances=True), CUTMIX, "Mask cannot follow `mix`"),
        (Mask("mask.png"), {"num_classes": 3, "mixup_alpha": 0.2}, "Mask cannot follow MixUp, which blends"),
        (Mask("mask.png"), {**CUTMIX, "mixup_alpha": 0.2, "switch_p": 1.0}, ""),
    ],
)
def test_what_cannot_be_mixed_is_refused_when_the_loader_is_made(tar: Path, field: Any, mix: Any, message: str) -> None:  # noqa: ANN401
    options = {"fields": {"target": field}, "preset": {**train(CROP), "mix": mix}}
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        loader(tar, **options)


def test_entries_have_different_names(tar: Path) -> None:
    with pytest.raises(ConfigError, match="boxes_labels is already the name of another entry"):
        loader(tar, fields={**FIELDS, "boxes_labels": Field("json:annotations")})
    with pytest.raises(ConfigError, match="size is already the name of another entry"):
        loader(tar, fields={**FIELDS, "size": Field("json:annotations")})
    batch = next(iter(loader(tar, output={"image": "pixels", "boxes": "b", "boxes_labels": "l"})))
    assert list(batch) == ["pixels", "b", "l"]


# --- what other libraries take


def numbered(tar: Path, folder: Path) -> dict[str, Any]:
    """A batch of all samples of four, which have ids of their own, as COCO's have."""
    samples = [sample_of(number) for number in range(4)]
    for number, sample in enumerate(samples):
        content = {"image_id": 1031 + number, "annotations": annotations_of(number)}
        sample |= {"json": json.dumps(content).encode(), "cls": str(1031 + number).encode()}
    ids = {"image_id": Field("json:image_id"), "number": Field("cls"), "name": Field("json:image_id", str)}
    return next(iter(loader(write_shard(folder / "a.tar", samples), fields={**FIELDS, **ids})))


@pytest.mark.parametrize(
    ("options", "ids", "labels"),
    [
        ({}, [0, 1, 2, 3], [0, 1, 2]),
        ({"image_id": "image_id"}, [1031, 1032, 1033, 1034], [0, 1, 2]),
        ({"first_label": 1}, [0, 1, 2, 3], [1, 2, 3]),
        ({"label_ids": [1, 7, 18]}, [0, 1, 2, 3], [1, 7, 18]),
        ({"label_ids": (90, 2, 44, None), "image_id": "index"}, [0, 1, 2, 3], [90, 2, 44]),
    ],
)
def test_detection_has_the_ids_and_labels_that_are_asked_for(
    tar: Path, tmp_path: Path, options: dict[str, Any], ids: list[int], labels: list[int]
) -> None:
    batch = numbered(tar, tmp_path)
    _, targets = to_detection(batch, **options)
    for number, target in enumerate(targets):
        assert (target["image_id"].shape, target["image_id"].dtype) == ((1,), torch.int64)
        assert target["image_id"].tolist() == [ids[number]]
        assert target["labels"].dtype == torch.int64
        assert target["labels"].tolist() == labels[:number]
        assert batch["boxes_labels"][number].tolist() == [0, 1, 2][:number]  # the batch is as before


def test_detection_leaves_out_crowds_with_all_that_belongs_to_them(tar: Path) -> None:
    batch = next(iter(loader(tar, preset=train(CROP, *FLIPS), shuffle="none")))
    (_, whole), (_, targets) = (to_detection(batch, masks="objects", points="points", crowds=each) for each in (1, 0))
    left_out = 0
    for row, target in enumerate(targets):
        assert whole[row].keys() == target.keys() >= {"boxes", "labels", "area", "iscrowd", "masks", "keypoints"}
        stay = [place for place, crowd in enumerate(whole[row]["iscrowd"].tolist()) if not crowd]
        left_out += len(whole[row]["boxes"]) - len(stay)
        for name, value in target.items():
            assert torch.equal(value, whole[row][name] if name == "image_id" else whole[row][name][stay])
    assert left_out


def shapes(target: dict[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in target.items()}


def test_detection_reads_nothing_from_the_device(tar: Path) -> None:
    preset = train({"Resize": {"size": 40}}, *FLIPS) | {"batch": {"pad": 32}}
    fields = {**FIELDS, "image_id": Field("json:annotations", len)}
    with loader(tar, preset=preset, fields=fields) as batches:
        expected = list(batches)
    with loader(tar, preset=preset, fields=fields) as batches, no_reads(batches):
        found = list(batches)
    more: list[dict[str, Any]] = [
        {"first_label": 1, "image_id": "image_id"},
        {"label_ids": [1, 7, 18]},
        {"crowds": False, "label_ids": [1, 7, 18], "masks": "objects", "points": "points"},
    ]
    for options, (batch, same) in product(more, zip(found, expected, strict=True)):
        (images, targets), (same_images, same_targets) = (to_detection(each, **options) for each in (batch, same))
        assert list(map(shapes, targets)) == list(map(shapes, same_targets))
        assert {value.device.type for target in targets for value in target.values()} == {"meta"}
        assert [image.shape for image in images] == [image.shape for image in same_images]


def test_labels_are_read_again_from_the_device_if_they_were_changed(tar: Path) -> None:
    with loader(tar) as batches, no_reads(batches):
        batch = next(iter(batches))
    with pytest.raises(ConfigError, match=r"label_ids has no id for the labels \[2\]"):
        to_detection(batch, label_ids=[1, 7])
    batch["boxes_labels"][3].add_(1)
    with pytest.raises(NotImplementedError, match="meta"):  # torch's own refusal
        to_detection(batch, label_ids=[1, 7, 18, 90])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_id": "id"}, "image_id='id': the batch has image, label, .*: name the field with the pictures' ids"),
        ({"first_label": 1, "label_ids": [1, 7, 18]}, "first_label=1 and label_ids.*: give one of them"),
        ({"label_ids": [1, None, 18]}, r"label_ids has no id for the labels \[1\]"),
        ({"label_ids": {"ids": [1, 7, 18]}}, "label_ids=.*: allowed is a list of integers"),
        ({"crowds": False, "boxes": "plain"}, r"crowds=False: .*plain_iscrowd.* Boxes\(\.\.\., keys=\[\"iscrowd\"\]\)"),
    ],
)
def test_what_detection_cannot_make_is_an_error(
    tar: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    batch = numbered(tar, tmp_path)
    batch |= {"plain": batch["boxes"], "plain_number": batch["boxes_number"]}
    with pytest.raises(ConfigError, match=message):
        to_detection(batch, **options)


def test_the_forms_of_other_libraries_have_the_same_targets(tar: Path) -> None:
    batch = next(iter(loader(tar, preset=train(CROP, *FLIPS), shuffle="none")))
    made = to_tv_tensors(batch, FIELDS)
    images, targets = to_detection(batch, masks="objects", points="points")
    for row, target in enumerate(targets):
        assert torch.equal(images[row], batch["image"][row])
        assert torch.equal(made["boxes"][row], batch["boxes"][row])
        assert made["boxes"][row].canvas_size == made["points"][row].canvas_size == (48, 64)
        assert len(target["boxes"]) == len(target["labels"]) == len(target["masks"]) == len(target["keypoints"])
        assert target["masks"].shape[1:] == (48, 64)
        assert target["image_id"].tolist() == [row]
    with pytest.raises(ConfigError, match="masks='mask' is a mask of classes"):
        to_detection(batch, masks="mask")
    assert type(made["mask"]).__name__ == type(made["objects"][0]).__name__ == "Mask"
    labels = to_detr(batch)["labels"]
    for row, label in enumerate(labels):
        center, size = label["boxes"][:, :2], label["boxes"][:, 2:]
        corners = torch.cat([center - size / 2, center + size / 2], 1) * torch.tensor([64, 48, 64, 48])
        np.testing.assert_allclose(corners, batch["boxes"][row], atol=1e-3)


def test_a_loader_without_labels_has_the_names_of_the_classes_of_its_boxes(tmp_path: Path) -> None:
    made = loader(shard(tmp_path))
    assert made.classes is None
    (tmp_path / "classes.json").write_text('["red", "green", "blue"]')
    assert made.classes == loader(tmp_path / "a.tar").classes == ("red", "green", "blue")
