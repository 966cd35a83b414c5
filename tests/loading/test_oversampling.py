"""A loader decodes JPEGs at 1/2, 1/4 or 1/8 where a crop has enough pixels, and all else stays as it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import damaged_jpeg, encoded, picture, write_shard
from PIL import Image

from gpuloader import Boxes, Compose, Decoder, GPULoader, Stage
from gpuloader import transforms as T
from gpuloader.chain.link import cut
from gpuloader.errors import DataError
from gpuloader.loading.loader import run_of
from gpuloader.loading.loader_chain import make_chain
from gpuloader.loading.mipmaps import warn_of_oversampling
from gpuloader.loading.opening import Prepare
from gpuloader.pack.packing import pack
from gpuloader.plan import Cursor
from gpuloader.shards import ShardSet

COUNT = 16
TRAIN = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
RECIPES: dict[str, dict[str, Any]] = {
    "training": {"transforms": TRAIN},
    "evaluation": {"transforms": [T.Resize(32), T.CenterCrop(32)]},
    "turned": {"transforms": TRAIN, "orientation": "apply"},
    "views": {"views": [T.View([T.RandomResizedCrop(32, (0.4, 1))], 2), T.View([T.RandomResizedCrop(16)], 2)]},
    "list": {"transforms": [T.Resize(32, max_size=48), T.RandomHorizontalFlip()], "batch": "list"},
    "letterbox": {"transforms": [T.Resize((40, 40), pad=114)]},
    "own code behind": {"transforms": [*TRAIN, T.Apply(np.flipud)]},
    "own code before": {"transforms": [T.Apply(np.flipud), *TRAIN]},
}
WHOLE = (3, 7, 11, 15)
"""The samples that are decoded as a whole, and one that has too few pixels."""


def files() -> list[bytes]:
    """JPEGs of odd sizes, turned in each way; in between PNG, CMYK, a JPEG that simplejpeg refuses, and a small one."""
    made = []
    for number in range(COUNT):
        turned = Image.Exif()
        turned[274] = 1 + number % 8
        size = ((301, 427), (203, 150), (260, 260))[number % 3]
        image = picture(20, 30, number).resize(size, Image.Resampling.BICUBIC)
        options = {"quality": 95, "exif": turned, "subsampling": ("4:2:0", "4:4:4")[number % 2]}
        made.append(encoded(image, "JPEG", progressive=number % 5 == 0, **options))
    large = picture(20, 30).resize((300, 200), Image.Resampling.BICUBIC)
    made[3], made[7] = encoded(large, "PNG"), encoded(large.convert("CMYK"), "JPEG")
    plain = encoded(large, "JPEG")
    made[11] = plain[:2] + b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\x07" + plain[20:]  # an unknown transform
    made[15] = encoded(picture(40, 50), "JPEG")
    return made


FILES = files()


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    boxes = b'{"annotations": [{"bbox": [10, 20, 30, 40], "category_id": 1}]}'
    samples = [{"__key__": f"{n:02d}", "jpg": data, "cls": b"%d" % n, "json": boxes} for n, data in enumerate(FILES)]
    return write_shard(tmp_path_factory.mktemp("oversampling") / "a.tar", samples)


def recipe(name: str, oversampling: Any = 1.5) -> Compose:  # noqa: ANN401
    return Compose(**RECIPES[name], oversampling=oversampling, dtype="uint8")


Images = dict[tuple[int, int], list[torch.Tensor]]


def load(tar: Any, preset: Compose, batch_size: int = 4, **options: Any) -> Images:  # noqa: ANN401
    """The views of each sample in two epochs, by sample and epoch."""
    given = {"output": "dict", "seed": 3, "last_batch": "partial", "decoder": Decoder(2, processes=0), **options}
    with GPULoader(tar, batch_size, None, preset=preset, **given) as loader:
        found: Images = {}
        for epoch in range(2):
            for batch in loader:
                views = batch["image"] if preset.views != 1 else [batch["image"]]
                for row, sample in enumerate(batch["index"].tolist()):
                    found[sample, epoch] = [view[row].clone() for view in views]
        return found


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@pytest.mark.parametrize("name", RECIPES)
def test_the_pixels_are_nearly_those_of_the_whole_and_equal_where_it_is_decoded(tar: Path, name: str) -> None:
    found, whole = load(tar, recipe(name)), load(tar, recipe(name, "off"))
    assert found.keys() == whole.keys()
    for place, views in found.items():
        for image, expected in zip(views, whole[place], strict=True):
            levels = (image.double() - expected.double()).pow(2).mean().sqrt()
            assert levels < 3  # 38 dB
    same = {place for place, views in found.items() if equal(views, whole[place])}
    assert {place for place in found if place[0] in WHOLE} <= same
    assert (len(same) == len(found)) == (name == "own code before")  # which sees all pixels


@pytest.mark.needs_program("jpegtran")
def test_seekable_jpegs_have_the_pixels_of_plain_ones(tar: Path, tmp_path: Path) -> None:
    pack(tar, tmp_path / "seekable", seekable=True, shuffle=False, workers=1)
    [seekable] = (tmp_path / "seekable").glob("*.tar")
    for name in ("training", "views"):
        plain, cut_first = load(tar, recipe(name)), load(seekable, recipe(name))
        assert all(equal(views, plain[place]) for place, views in cut_first.items())


def test_copies_are_chosen_first_and_then_the_size(tar: Path, tmp_path: Path) -> None:
    pack(tar, tmp_path / "copies", mipmaps=(96,), shuffle=False, workers=1)
    [copies] = (tmp_path / "copies").glob("*.tar")
    found, whole = load(copies, recipe("training", 1)), load(copies, recipe("training", "off"))
    for place, views in found.items():
        assert (views[0].double() - whole[place][0].double()).pow(2).mean().sqrt() < 4


def test_targets_and_sizes_are_those_of_the_picture(tar: Path) -> None:
    fields = {"boxes": Boxes("json:annotations", format="xywh", labels="category_id")}
    loaded = []
    for oversampling in (1.5, "off"):
        given: dict[str, Any] = {"preset": recipe("list", oversampling), "fields": fields, "output": "dict", "seed": 3}
        with GPULoader(tar, COUNT, None, **given) as loader:
            [batch] = list(loader)
            loaded.append({name: str(each) for name, each in batch.items() if name != "image"})
    assert loaded[0] == loaded[1]


@pytest.mark.parametrize(("rows", "has_files"), [(3, False), (4, True)])  # the fourth is decoded as a whole
def test_a_batch_keeps_the_memory_of_files_only_while_it_has_files(tar: Path, rows: int, has_files: bool) -> None:
    with GPULoader(tar, rows, None, preset=recipe("evaluation"), shuffle="none") as loader:
        link = cut(make_chain(run_of(loader), set()).end, Prepare)
        assert link is not None
        link.seek(Cursor())
        batch = link.next()
        link.close()
    assert batch is not None
    assert {image.ndim for image in batch.images[0]} == ({1, 3} if has_files else {3})
    assert (batch.memory is not None) == has_files


def test_a_call_and_a_stage_name_a_bad_image() -> None:
    data = damaged_jpeg()
    with pytest.raises(DataError, match="image 1"):
        recipe("evaluation")([FILES[0], data], seed=3)
    with Stage(recipe("evaluation"), None, on_error="skip") as stage:
        [(images, ids)] = stage([([FILES[0], data, FILES[2]], [4, 5, 6])])
        assert (len(images), ids, list(stage.bad)) == (2, [4, 6], [5])


# What is said.


def test_many_large_pictures_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def shard(name: str, size: tuple[int, int], image_format: str = "JPEG") -> Path:
        extension = image_format.lower().replace("jpeg", "jpg")
        image = encoded(Image.new("RGB", size, "red"), image_format)
        return write_shard(tmp_path / name, [{"__key__": f"{n}", extension: image, "cls": b"0"} for n in range(3)])

    def said(tars: Any, preset: Compose) -> list[str]:  # noqa: ANN401
        caplog.clear()
        with GPULoader(tars, 2, None, preset=preset) as loader:
            next(iter(loader))
        return [message for message in caplog.messages if "oversampling" in message]

    large, small, png = shard("a.tar", (1400, 1300)), shard("b.tar", (1200, 900)), shard("c.tar", (1400, 1300), "PNG")
    crops = [T.RandomResizedCrop(64)]
    [line] = said(large, Compose(crops))
    assert "oversampling: 1.5" in line
    for oversampling in (1.5, "off"):
        assert said(large, Compose(crops, oversampling=oversampling)) == []
    assert said(large, Compose([T.CenterCrop(64)])) == []  # which needs all pixels
    assert said(large, Compose([T.Resize((64, 64), antialias=False)])) == []
    assert said(small, Compose(crops)) == said(png, Compose(crops)) == []
    caplog.clear()
    warn_of_oversampling(Compose(crops), ShardSet.open([large]), on_cpu=False)
    assert caplog.messages == []


def test_simplejpeg_is_imported_only_with_the_key(tar: Path) -> None:
    script = (
        "import sys; from gpuloader import GPULoader\n"
        "for oversampling in (None, 1.5):\n"
        "    sides = {'Resize': {'size': 32}, 'CenterCrop': {'size': 32}}\n"
        "    preset = {'imagenet_eval': {**sides, 'oversampling': oversampling}}\n"
        f"    next(iter(GPULoader({str(tar)!r}, 2, None, preset=preset)))\n"
        "    assert ('simplejpeg' in sys.modules) == (oversampling is not None)\n"
    )
    assert os.spawnlp(os.P_WAIT, "python", "python", "-c", script) == 0
