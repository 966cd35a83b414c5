"""`batch: list` and `batch: {pad: N}`: each image of a batch is what a dense batch of it alone would be."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_graph import GPU, gpu_graph, load_on
from making import damaged_jpeg, encoded, jpeg, picture, write_shard
from oracle import transforms
from PIL import Image
from torch.nn.functional import pad

from gpuloader import BadImages, Boxes, Compose, GPULoader, Keypoints, Mask, Sampling
from gpuloader import transforms as T
from gpuloader.errors import BadImageError, ConfigError, PresetError
from gpuloader.loading.loader import run_of
from gpuloader.loading.memory import estimate_memory
from gpuloader.recipe import load_preset
from gpuloader.recipe.augment_params import Batching
from gpuloader.recipe.model import Transform
from gpuloader.targets import to_detection, to_detr, to_tv_tensors
from gpuloader.tools.show import show

pytestmark = pytest.mark.slow(kept=9, of="sizes")

v2 = transforms.v2
SIZES = [(60, 80), (80, 60), (64, 64), (40, 130), (33, 51), (70, 71), (50, 96), (90, 40), (35, 36)]
COUNT = len(SIZES)
SMALL, LONG = 40, 64
RESIZE = T.Resize(SMALL, max_size=LONG)
NORMALIZE = T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
CHANGES = [
    T.RandomHorizontalFlip(),
    T.RandomAffine(20, fill=90),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.RandomVerticalFlip(),
    T.RandAugment(),
    NORMALIZE,
    T.RandomErasing(1.0, value="random"),
]
FIELDS = {
    "boxes": Boxes("json:annotations", format="xywh", labels="category_id"),
    "points": Keypoints("json:annotations"),
    "mask": Mask("mask.png", fill=255),
    "objects": Mask("json:annotations"),
}
BATCHES: list[Batching] = ["list", {"pad": 32}]


def file_of(number: int) -> bytes:
    height, width = SIZES[number]
    return jpeg(height, width, number) if number % 2 else encoded(picture(height, width, number), "PNG")


def sample_of(number: int) -> dict[str, bytes | str]:
    """A picture with up to three objects, and a mask of classes."""
    height, width = SIZES[number]
    annotations, mask = [], np.zeros((height, width), np.uint8)
    for label in range(number % 4):
        x, y, w, h = 3 + 8 * label, 2 + number, 7, height // 2
        outline = [[x, y, x + w, y, x + w, y + h, x, y + h]]
        annotations.append(
            {"bbox": [x, y, w, h], "category_id": label, "keypoints": [x, y, 2], "segmentation": outline}
        )
        mask[y : y + h, x : x + w] = 1 + label
    return {
        "__key__": f"{number:03d}",
        "jpg" if number % 2 else "png": file_of(number),
        "json": json.dumps({"annotations": annotations}).encode(),
        "mask.png": encoded(Image.fromarray(mask), "PNG"),
    }


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("differ")
    return write_shard(folder / "a.tar", map(sample_of, range(COUNT)))


def recipe(batch: Batching, *changes: Transform, **options: Any) -> Compose:  # noqa: ANN401
    return Compose([RESIZE, *changes], batch=batch, **options)


def load(tar: Path, batch: Batching, *changes: Transform, size: int = 4, **options: Any) -> Any:  # noqa: ANN401
    given = {"output": "dict", "label_from": None, "last_batch": "partial", "seed": 5, **options}
    return GPULoader(tar, size, "cpu", **{"preset": recipe(batch, *changes), **given})


def by_sample(batches: Iterable[dict[str, Any]], *names: str) -> dict[int, list[Any]]:
    """The entries of each sample by its number."""
    return {
        int(number): [batch[name][row] for name in names or ("image",)]
        for batch in batches
        for row, number in enumerate(batch["index"])
    }


def resized(number: int) -> tuple[int, int]:
    """(height, width) after torchvision's Resize."""
    height, width = v2.Resize(SMALL, max_size=LONG)(torch.zeros(3, *SIZES[number])).shape[-2:]
    return int(height), int(width)


# --- the images


@pytest.mark.parametrize(
    ("options", "device_id"),
    [
        ({}, None),
        ({"dtype": "bfloat16"}, None),
        ({"dtype": "float16", "layout": "channels_last"}, None),
        ({"dtype": "float16", "layout": "channels_last"}, GPU),
    ],
)
def test_an_image_of_a_list_is_that_of_a_dense_batch_of_it_alone(
    tar: Path, options: Mapping[str, Any], device_id: int | None
) -> None:
    listed = recipe("list", *CHANGES, **options)
    with load_on(device_id, tar, 4, preset=listed, label_from=None, seed=5) as loader:
        found = by_sample(loader)
    assert sorted(found) == list(range(COUNT))
    with gpu_graph() if device_id == GPU else nullcontext():
        for number in found if device_id is None else (1, 3):
            [ours] = found[number]
            alone = Compose([T.Resize(resized(number)), *CHANGES], **options)
            theirs = alone(file_of(number), seed=5, sample=number, device_id=device_id)
            assert torch.equal(ours, theirs)
            assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())


def test_the_images_are_torchvisions(tar: Path) -> None:
    resize = v2.Compose([v2.Resize(SMALL, max_size=LONG), v2.PILToTensor()])
    for number, [ours] in by_sample(load(tar, "list", preset=recipe("list", dtype="uint8"))).items():
        theirs = resize(Image.open(io.BytesIO(file_of(number))))
        assert (ours.int() - theirs.int()).abs().max() <= 1


@pytest.mark.parametrize("device_id", [None, GPU])
@pytest.mark.parametrize(("multiple", "layout"), [(1, "nchw"), (32, "nchw"), (24, "channels_last")])
def test_padded_images_are_those_of_the_list_with_zeros_behind_them(
    tar: Path, multiple: int, layout: str, device_id: int | None
) -> None:
    options: dict[str, Any] = {"layout": layout}
    loaders = [
        load_on(device_id, tar, 4, preset=recipe(batch, *CHANGES, **options), label_from=None, seed=5)
        for batch in ("list", {"pad": multiple})
    ]
    with loaders[0] as listing, loaders[1] as padding:
        for listed, padded in zip(listing, padding, strict=True):
            largest = torch.tensor([image.shape[1:] for image in listed["image"]]).amax(0)
            height, width = (-(-largest // multiple) * multiple).tolist()
            assert padded["image"].shape == (len(listed["image"]), 3, height, width)
            assert (padded["pixel_mask"].dtype, padded["size"].dtype) == (torch.bool, torch.int64)
            assert torch.equal(padded["size"], listed["size"])
            for row, image in enumerate(listed["image"]):
                assert padded["size"][row].tolist() == list(image.shape[1:])
                behind = (0, width - image.shape[2], 0, height - image.shape[1])
                assert torch.equal(padded["image"][row], pad(image, behind))
                assert torch.equal(
                    padded["pixel_mask"][row], pad(torch.ones(image.shape[1:], dtype=torch.bool), behind)
                )
            if layout == "channels_last":
                assert padded["image"].is_contiguous(memory_format=torch.channels_last)


def test_each_view_has_its_own_sizes(tar: Path) -> None:
    views = [T.View([T.Resize(24)]), T.View([T.Resize((20, 30))], 2)]
    for batch, kind in ({"pad": 16}, torch.Tensor), ("list", list):
        made = Compose(views=views, batch=batch)
        [first, *_] = GPULoader(tar, COUNT, "cpu", preset=made, label_from=None, output="dict")
        assert [type(images) for images in first["image"]] == [kind] * 3
        assert first["image"][1][0].shape == ((3, 20, 30) if kind is list else (3, 32, 32))
        assert torch.equal(first["size"][1], torch.tensor([[20, 30]] * COUNT))
        assert {tuple(size) for size in first["size"][0].tolist()} == {
            tuple(v2.Resize(24)(torch.zeros(3, *size)).shape[1:]) for size in SIZES
        }
        if kind is torch.Tensor:
            assert [mask.sum((1, 2)).tolist() for mask in first["pixel_mask"]] == [
                size.prod(1).tolist() for size in first["size"]
            ]


def test_a_compose_pads_too(tar: Path) -> None:
    files = [file_of(number) for number in range(COUNT)]
    [whole] = load(tar, {"pad": 8}, *CHANGES, size=COUNT, shuffle="none")
    assert torch.equal(recipe({"pad": 8}, *CHANGES)(files, seed=5), whole["image"])


# --- targets


def test_targets_are_those_of_each_image(tar: Path) -> None:
    changes = (T.RandomHorizontalFlip(), T.RandomAffine(20))
    listed = by_sample(load(tar, "list", *changes, fields=FIELDS), "image", *FIELDS, "boxes_labels", "size")
    for number, [image, boxes, points, mask, objects, labels, size] in listed.items():
        alone = GPULoader(
            tar, 1, "cpu", preset=Compose([T.Resize(resized(number)), *changes]), label_from=None, output="dict",
            fields=FIELDS, seed=5, sampling=Sampling(subset=[number]), last_batch="partial", shuffle="none",
        )  # fmt: skip
        [batch] = alone
        ours = {"image": image, "boxes": boxes, "points": points, "mask": mask, "objects": objects}
        for name, value in {**ours, "boxes_labels": labels, "size": size}.items():
            assert torch.equal(value, batch[name][0]), name
            assert value.dtype == batch[name][0].dtype
    for batch in load(tar, {"pad": 32}, *changes, fields=FIELDS):
        for row, number in enumerate(batch["index"].tolist()):
            image, boxes, points, mask, objects, labels, size = listed[number]
            behind = (0, batch["image"].shape[3] - image.shape[2], 0, batch["image"].shape[2] - image.shape[1])
            assert torch.equal(batch["mask"][row], pad(mask, behind, value=255))
            assert torch.equal(batch["objects"][row], pad(objects, behind))
            for name, value in {"boxes": boxes, "points": points, "boxes_labels": labels, "size": size}.items():
                assert torch.equal(batch[name][row], value)


def test_other_libraries_get_images_without_padding_or_with_its_mask(tar: Path) -> None:
    changes = (T.RandomHorizontalFlip(),)
    listed, padded = (next(iter(load(tar, batch, *changes, fields=FIELDS))) for batch in ("list", {"pad": 32}))
    for batch in (listed, padded):
        images, targets = to_detection(batch, masks="objects", points="points")
        for row, (image, target) in enumerate(zip(images, targets, strict=True)):
            assert torch.equal(image, listed["image"][row])
            assert target["masks"].shape == (len(target["boxes"]), *image.shape[1:])
            assert torch.equal(target["boxes"], listed["boxes"][row])
        with pytest.raises(ConfigError, match="masks='mask' is a mask of classes"):
            to_detection(batch, masks="mask")
    made = to_tv_tensors(listed, FIELDS)
    assert [boxes.canvas_size for boxes in made["boxes"]] == [tuple(image.shape[1:]) for image in listed["image"]]
    assert {type(each).__name__ for name in ("mask", "objects") for each in made[name]} == {"Mask"}
    assert to_tv_tensors(padded, FIELDS)["points"][0].canvas_size == tuple(padded["image"].shape[2:])

    inputs = to_detr(padded)
    assert inputs["pixel_mask"].dtype == torch.int64  # as transformers makes it
    assert torch.equal(inputs["pixel_mask"], padded["pixel_mask"].long())
    for row, labels in enumerate(inputs["labels"]):  # whose numbers are shares of the image, without its padding
        height, width = listed["image"][row].shape[1:]
        sizes = labels["boxes"][:, 2:] * torch.tensor([width, height])
        boxes = listed["boxes"][row]
        np.testing.assert_allclose(sizes, boxes[:, 2:] - boxes[:, :2], atol=1e-3)
    with pytest.raises(ConfigError, match=r"the batch has a list: set the recipe's batch to \{pad: 32\}"):
        to_detr(listed)


# --- what holds for dense batches holds for these


@pytest.fixture(scope="module")
def with_a_strip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture that resizing makes 40 x 10,000 pixels large, one that cannot be decoded, and one that is none."""
    samples = [sample_of(number) for number in range(COUNT)]
    samples[2]["png"] = encoded(picture(4, 1000), "PNG")
    samples[5]["jpg"] = damaged_jpeg()
    samples[6]["png"] = b"no picture"
    return write_shard(tmp_path_factory.mktemp("strip") / "a.tar", samples)


@pytest.mark.parametrize("device_id", [None, GPU])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_an_image_that_would_become_too_large_is_bad(
    with_a_strip: Path, batch: Batching, device_id: int | None
) -> None:
    preset = Compose([T.Resize(SMALL)], batch=batch, dtype="uint8")
    options: dict[str, Any] = {"preset": preset, "label_from": None, "shuffle": "none"}
    replace = BadImages(replace=True, max_share=1)
    with load_on(device_id, with_a_strip, 4, on_error=replace, **options) as loader:
        for _ in range(2):  # the second epoch knows the sizes
            numbers = [number for delivered in loader for number in delivered["index"].tolist()]
            assert len(numbers) == COUNT
            assert not {2, 5, 6} & set(numbers)
        bad = loader.stats().bad
        assert bad[2] == "the recipe makes 10000x40 pixels of it: allowed are sides of up to 8192"
        assert sorted(bad) == [2, 5, 6]
    with (
        load_on(device_id, with_a_strip, 4, **options) as loader,
        pytest.raises(BadImageError, match="10000x40 pixels"),
    ):
        list(loader)


# --- recipes


def test_a_recipe_is_dense_unless_it_says_otherwise() -> None:
    dense = Compose([T.Resize((4, 4))])
    assert len({Compose([T.Resize((4, 4))], batch=batch).fingerprint for batch in ("dense", "list", {"pad": 4})}) == 3
    assert dense.fingerprint == Compose([T.Resize((4, 4))], batch="dense").fingerprint


ALLOWED = r"allowed are dense, list and \{pad: N\}, with N from 1 to 8192"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"batch": "lists"}, rf"`batch`: found 'lists' \(did you mean list\?\); {ALLOWED}"),
        ({"batch": {"padd": 32}}, rf"`batch`: found .*padd.* \(did you mean pad\?\); {ALLOWED}"),
        ({"batch": {"pad": 0}}, ALLOWED),
        ({"batch": {"pad": True}}, ALLOWED),
        ({"batch": {"pad": 8, "fill": 1}}, ALLOWED),
        ({"batch": "list", "mix": {"num_classes": 2, "mixup_alpha": 1.0}}, "`mix` needs images of one size"),
        ({"batch": "dense"}, r"Resize: leaves images of different sizes: .* set the recipe's `batch` to list or "),
    ],
)
def test_wrong_recipes_are_errors_of_theirs(content: dict[str, Any], message: str) -> None:
    with pytest.raises(PresetError, match=message):
        load_preset({"transforms": [{"Resize": {"size": 40}}], **content})


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_a_loader_that_gives_tuples_is_refused(tar: Path, batch: Batching) -> None:
    with pytest.raises(ConfigError, match=r"batch=.* has images of different sizes: use output=\"dict\""):
        load(tar, batch, output="tuple")
    with pytest.raises(ConfigError, match="size is already the name of another entry"):
        load(tar, batch, fields={"size": Boxes("json:annotations")})


# --- tools


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_show_draws_them(with_a_strip: Path, tmp_path: Path, batch: Batching) -> None:
    made = Compose([T.Resize(SMALL), *CHANGES], batch=batch)
    chosen: dict[str, Any] = {"samples": [0, 2, 3], "versions": 2, "label_from": None, "fields": {}}
    shown = show(with_a_strip, tmp_path / "a.png", preset=made, device_id=None, **chosen)
    assert {number: "10000x40 pixels" in cause for number, cause in shown.bad.items()} == {2: True}


def test_the_memory_is_that_of_the_mean_image_or_of_the_largest(tar: Path) -> None:
    shapes = np.array([resized(number) for number in range(COUNT)])
    for batch, size_bytes in ("list", 12 * shapes.prod(1).mean()), ({"pad": 8}, 13 * 64 * 64):  # with `pixel_mask`
        run = run_of(load(tar, batch))
        estimate = estimate_memory(run.shards, run.recipe, "", batch_size=4, decoder=run.decoder, parts=run.parts)
        assert estimate.output_bytes == int((2 + 2) * 4 * size_bytes)
