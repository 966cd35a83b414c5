"""`orientation: apply`: the pixels of turned pictures are those of the pictures that Pillow turned before."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_graph import GPU, load_on
from loaders import first_part
from making import damaged_jpeg, encoded, picture, saved, unpack, write_shard
from oracle import transforms
from PIL import Image, ImageOps

from gpuloader import BadImages, Compose, GPULoader
from gpuloader import transforms as T
from gpuloader.loading.loader import run_of

v2 = transforms.v2
EVAL = [T.Resize(40), T.CenterCrop((32, 36))]
BY_TORCHVISION = v2.Compose([v2.Resize(40), v2.CenterCrop((32, 36)), v2.PILToTensor()])
TRAIN = [T.RandomResizedCrop((24, 30), scale=(0.05, 0.5)), T.RandomHorizontalFlip()]
TURNED: Mapping[str, Any] = {"dtype": "uint8", "orientation": "apply"}
ORIENTATIONS = (None, *range(1, 9))
FORMATS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "jpg": ("JPEG", {}),
    "jpeg": ("JPEG", {"restart_marker_blocks": 1}),  # seekable
    "png": ("PNG", {}),
    "webp": ("WEBP", {}),
}


def with_orientation(number: int, extension: str, orientation: int | None) -> bytes:
    """A picture of its own for each number; those of different orientations differ in size, too."""
    exif, (image_format, options) = Image.Exif(), FORMATS[extension]
    if orientation is not None:
        exif[0x0112] = orientation
    image = picture(96 + 8 * (number % 3), 64 + 16 * (number % 5), number)
    return encoded(image, image_format, exif=exif, **options)


FILES = [
    (extension, with_orientation(number, extension, orientation))
    for number, (extension, orientation) in enumerate((each, way) for each in FORMATS for way in ORIENTATIONS)
]


def upright(data: bytes) -> Image.Image:
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")


def shard(path: Path, files: list[tuple[str, bytes]]) -> Path:
    return write_shard(path, [{"__key__": f"{n:03}", extension: data} for n, (extension, data) in enumerate(files)])


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shard(tmp_path_factory.mktemp("turned") / "a.tar", FILES)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pictures, stored upright."""
    files = [("png", encoded(upright(data), "PNG")) for _, data in FILES]
    return shard(tmp_path_factory.mktemp("plain") / "a.tar", files)


@contextmanager
def loading(tar: Path, device_id: int | None = None, **options: Any) -> Iterator[GPULoader]:  # noqa: ANN401
    options = {"label_from": None, "output": "dict", "last_batch": "partial", **options}
    with load_on(device_id, tar, 8, **options) as loader:
        yield loader


def by_sample(batches: Any) -> dict[int, list[torch.Tensor]]:  # noqa: ANN401
    """The views of each sample."""
    found = {}
    for batch in batches:
        views = batch["image"] if isinstance(batch["image"], list) else [batch["image"]]
        found |= {int(sample): [view[row] for view in views] for row, sample in enumerate(batch["index"])}
    return found


def largest_difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> int:
    return max(int((one.int() - other.int()).abs().max()) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("form", ["tar", "folder"])
@pytest.mark.parametrize("device_id", [None, GPU])
def test_pictures_are_torchvisions_of_those_that_pillow_turned(
    turned: Path, tmp_path: Path, form: str, device_id: int | None
) -> None:
    tar = turned if form == "tar" else unpack([turned], tmp_path)
    recipe = Compose(EVAL, **TURNED)
    with loading(tar, device_id, preset=recipe) as loader:
        found = by_sample(loader)
    assert len(found) == len(FILES) == 36
    for sample, (_, data) in enumerate(FILES):
        [ours], theirs = found[sample], BY_TORCHVISION(upright(data))
        if device_id is None:
            assert largest_difference([ours], [theirs]) <= 1
        else:  # whose filter repeats the border, where that of Pillow is cut off
            assert (ours.float() - theirs.float()).abs().mean() <= 0.6


@pytest.mark.parametrize("device_id", [None, GPU])
def test_seekable_pictures_are_cut_to_the_part_that_the_upright_window_shows(
    tmp_path: Path, device_id: int | None
) -> None:
    seekable = [each for each in FILES if each[0] == "jpeg"]
    stored = [("png", encoded(upright(data), "PNG")) for _, data in seekable]
    ours, theirs = Compose(TRAIN, **TURNED), Compose(TRAIN, dtype="uint8")
    with loading(shard(tmp_path / "ours.tar", seekable), device_id, preset=ours) as loader:
        found, run = by_sample(loader), run_of(loader)
        assert run.decoder.region is False
        assert (first_part(run).params.origin > 0).any(0).all()
    with loading(shard(tmp_path / "theirs.tar", stored), device_id, preset=theirs) as loader:
        expected = by_sample(loader)
    for sample, views in expected.items():
        assert largest_difference(found[sample], views) <= 1


@pytest.mark.parametrize("bad", [b"no image", damaged_jpeg()], ids=["refused", "undecodable"])
def test_a_replacement_is_turned_as_its_own_orientation_says(
    turned: Path, plain: Path, tmp_path: Path, bad: bytes
) -> None:
    damaged = [("jpg", bad) if number % 3 == 2 else each for number, each in enumerate(FILES[:27])]
    stored = [(extension, bad if data == bad else encoded(upright(data), "PNG")) for extension, data in damaged]
    delivered = []
    for name, files, orientation in (("ours", damaged, "apply"), ("theirs", stored, "off")):
        recipe = Compose(TRAIN, dtype="uint8", orientation=orientation)
        path = shard(tmp_path / f"{name}.tar", files)
        with loading(path, preset=recipe, shuffle="none", on_error=BadImages(True, 1.0)) as loader:
            batches = list(loader)
        delivered.append(torch.cat([batch["image"] for batch in batches]))
        valid = torch.cat([batch["valid"] for batch in batches])
        assert valid.tolist() == [number % 3 != 2 for number in range(27)]
    assert largest_difference([delivered[0]], [delivered[1]]) <= 1


def test_compose_turns_files_and_pillows_images_and_leaves_arrays(turned: Path) -> None:
    recipe = Compose(EVAL, **TURNED)
    files = [data for _, data in FILES]
    expected = [BY_TORCHVISION(upright(data)) for data in files]
    for images in (files, list(map(bytearray, files)), [Image.open(io.BytesIO(data)) for data in files]):
        assert largest_difference(list(recipe(images)), expected) <= 1
    arrays = [np.asarray(upright(data)) for data in files]
    assert largest_difference(list(recipe(arrays)), expected) <= 1


def test_arrays_in_shards_have_no_orientation(tmp_path: Path) -> None:
    arrays = [("npy", saved(upright(data))) for _, data in FILES[:9]]
    with loading(shard(tmp_path / "a.tar", arrays), preset=Compose(EVAL, **TURNED)) as loader:
        found = by_sample(loader)
    for sample, (_, data) in enumerate(FILES[:9]):
        assert largest_difference(found[sample], [BY_TORCHVISION(upright(data))]) <= 1
