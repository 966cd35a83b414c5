"""A loader takes smaller copies of large pictures where they are sharp enough, and all else stays the picture's."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import encoded, picture, write_shard
from PIL import Image

from gpuloader import BadImages, Boxes, Compose, GPULoader
from gpuloader import transforms as T
from gpuloader.errors import BadImageError
from gpuloader.loading.drawing import Choose
from gpuloader.loading.loader import run_of
from gpuloader.pack.packing import pack
from gpuloader.plan import Cursor

SIDES = (96, 48)
COUNT = 12
TRAIN = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
EVALUATION = [T.Resize(24), T.CenterCrop(24)]
DETECTION = [T.Resize(32, max_size=48), T.RandomHorizontalFlip()]


def photograph(number: int) -> Image.Image:
    """A smooth picture, as photographs are at their full size."""
    small = picture(12, 16, number)
    size = (400, 300) if number % 2 else (300, 424)
    return small.resize(size, Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with copies; every third is too small to have any, every fourth lies on its side."""
    folder = tmp_path_factory.mktemp("mipmaps")
    samples = []
    for number in range(COUNT):
        turned = Image.Exif()
        turned[274] = 6 if number % 4 == 1 else 1
        image = photograph(number) if number % 3 else photograph(number).resize((110, 80))
        boxes = b'{"annotations": [{"bbox": [10, 20, 30, 40], "category_id": %d}]}' % number
        samples.append(
            {
                "__key__": f"{number:02d}",
                "jpg": encoded(image, "JPEG", quality=95, exif=turned),
                "cls": b"%d" % number,
                "json": boxes,
            }
        )
    write_shard(folder / "plain.tar", samples)
    pack(folder / "plain.tar", folder / "packed", mipmaps=SIDES, shuffle=False, workers=1)
    [packed] = (folder / "packed").glob("*.tar")
    return packed


def recipe(transforms: list[Any], mipmaps: Any = 1.5, **keys: Any) -> Compose:  # noqa: ANN401
    return Compose(transforms, oversampling=mipmaps, **keys)


Batches = list[tuple[int, dict[str, Any]]]


def load(tar: Path, preset: Compose, batch_size: int = 4, **options: Any) -> Batches:  # noqa: ANN401
    """The batches of two epochs, with the epoch."""
    given: dict[str, Any] = {"output": "dict", "seed": 3, "last_batch": "partial", **options}
    with GPULoader(tar, batch_size, None, preset=preset, **given) as loader:
        return [(epoch, batch) for epoch in range(2) for batch in loader]


def images_by_sample(batches: Batches) -> dict[tuple[int, int], torch.Tensor]:
    """The image of each sample and epoch."""
    return {
        (sample, epoch): image
        for epoch, batch in batches
        for sample, image in zip(batch["index"].tolist(), batch["image"])
    }


def decibels(one: torch.Tensor, other: torch.Tensor) -> float:
    """The peak signal-to-noise ratio of images in levels."""
    return float(10 * torch.log10(255**2 / (one - other).double().pow(2).mean()))


@pytest.mark.parametrize("transforms", [TRAIN, EVALUATION], ids=["training", "evaluation"])
@pytest.mark.parametrize("orientation", ["off", "apply"])
def test_the_pixels_are_nearly_those_of_the_pictures(tar: Path, transforms: list[Any], orientation: str) -> None:
    with_mipmaps, plain = (
        images_by_sample(load(tar, recipe(transforms, mipmaps, orientation=orientation))) for mipmaps in (1.5, "off")
    )
    assert with_mipmaps.keys() == plain.keys()
    for place, image in with_mipmaps.items():  # those without copies may be decoded at 1/2
        assert decibels(image, plain[place]) > 40
    assert not any(
        torch.equal(image, plain[sample, epoch]) for (sample, epoch), image in with_mipmaps.items() if sample % 3
    )


def chosen(tar: Path, preset: Compose) -> list[int]:
    """The shorter side of the file that each sample is decoded from in the first step, 0 for the picture."""
    with GPULoader(tar, COUNT, None, preset=preset, shuffle="none", label_from=None) as loader:
        run = run_of(loader)
        return Choose(run)(run.plan.batch(Cursor())).sides.tolist()


@pytest.mark.parametrize(
    ("side", "scale", "expected"),
    [
        (24, 1.5, 48),  # 48 >= 1.5 * 24
        (33, 1.5, 96),
        (64, 1.5, 96),
        (65, 1.5, 0),  # 97.5 pixels are asked for
        (24, 2, 48),
        (25, 2, 96),
        (24, 8, 0),
        (40, 1, 48),
    ],
)
def test_the_smallest_mipmap_that_is_sharp_enough_is_taken(tar: Path, side: int, scale: float, expected: int) -> None:
    taken = chosen(tar, recipe([T.Resize(side), T.CenterCrop(side)], scale))
    assert taken == [0 if number % 3 == 0 else expected for number in range(COUNT)]
    assert not any(chosen(tar, recipe([T.Resize(side), T.CenterCrop(side)], "off")))


def test_targets_and_sizes_are_those_of_the_pictures(tar: Path) -> None:
    fields = {"boxes": Boxes("json:annotations", format="xywh", labels="category_id")}
    for batching in ("list", {"pad": 16}):
        one, other = (
            load(tar, recipe(DETECTION, mipmaps, batch=batching, orientation="apply"), fields=fields)
            for mipmaps in (1.5, None)
        )
        for (_, batch), (_, plain) in zip(one, other, strict=True):
            assert batch.keys() == plain.keys()
            for name in batch.keys() - {"image"}:
                for value, its in zip(batch[name], plain[name], strict=True):
                    assert np.array_equal(value, its), name


def test_an_untarred_shard_has_mipmaps_like_the_shard(tar: Path, tmp_path: Path) -> None:
    with tarfile.open(tar) as file:
        file.extractall(tmp_path / "folder", filter="data")
    expected = images_by_sample(load(tar, recipe(EVALUATION), label_from=None))
    found = images_by_sample(load(tmp_path / "folder", recipe(EVALUATION), label_from=None))
    assert all(torch.equal(image, expected[key]) for key, image in found.items())


def rewritten(tar: Path, path: Path, change: Callable[[str, bytes], bytes]) -> Path:
    with tarfile.open(tar) as file, tarfile.open(path, "w") as made:
        for member in file.getmembers():
            data = change(member.name, file.extractfile(member).read())  # type: ignore[union-attr]
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return path


def of_another_size(data: bytes) -> bytes:
    return encoded(picture(48, 48, 1), "JPEG")


def cut_off(data: bytes) -> bytes:
    return data[:-40]


def damaged(data: bytes) -> bytes:
    """The gate lets it pass, and the decoder does not: its table of Huffman codes is impossible."""
    table = data.index(b"\xff\xc4")
    return data[: table + 5] + bytes([255] * 16) + data[table + 21 :]


def nothing(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (of_another_size, "it has 48x48 pixels, a copy"),
        (cut_off, "a JPEG that is cut: it has no end-of-image marker"),
        (nothing, "the file is empty"),
        (damaged, "DALI's decoder fails on it"),
    ],
)
def test_a_bad_mipmap_is_a_bad_image_where_it_is_taken(
    tar: Path, tmp_path: Path, spoil: Callable[[bytes], bytes], cause: str
) -> None:
    bad = rewritten(tar, tmp_path / "bad.tar", lambda name, data: spoil(data) if name == "04.mip48" else data)
    small, large = (recipe([T.Resize(side), T.CenterCrop(side)]) for side in (24, 48))
    with pytest.raises(BadImageError, match="04") as error, GPULoader(bad, 4, None, preset=small) as loader:
        list(loader)
    assert f"the .mip48 component beside it: {cause}" in str(error.value)
    with tarfile.open(bad) as file:
        assert f"offset {file.getmember('04.mip48').offset_data}" in str(error.value)
    with GPULoader(bad, 4, None, preset=large) as loader:  # it takes the other copy
        assert sum(len(images) for images, _ in loader) == COUNT
    options: dict[str, Any] = {"output": "dict", "on_error": BadImages(replace=True, max_share=1)}
    with GPULoader(bad, 4, None, preset=small, **options) as loader:
        for _ in range(2):
            assert not any(4 in batch["index"].tolist() for batch in loader)
        assert [*loader.stats().bad] == [4]


def test_a_picture_that_is_too_large_is_bad_whatever_its_mipmaps_are(tar: Path) -> None:
    allowed = recipe(EVALUATION, max_pixels=350 * 350)
    options: dict[str, Any] = {"output": "dict", "on_error": BadImages(skip=True, max_share=1)}
    with GPULoader(tar, 4, None, preset=allowed, **options) as loader:
        for _ in range(2):
            indices = [sample for batch in loader for sample in batch["index"].tolist()]
            assert indices == [number for number in range(COUNT) if number % 3 == 0 or number % 2]
