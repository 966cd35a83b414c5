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

from gpuloader import BadImages, Boxes, Compose, Decoder, GPULoader, Stage, World
from gpuloader.errors import BadImageError, DataError
from gpuloader.loading.mipmaps import warn_of_oversampling
from gpuloader.loading.parts import Parts, cut
from gpuloader.pack.packing import pack
from gpuloader.shards import ShardSet
from gpuloader.transforms import Apply, CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize, View

COUNT = 16
TRAIN = [RandomResizedCrop(24), RandomHorizontalFlip()]
RECIPES: dict[str, dict[str, Any]] = {
    "training": {"transforms": TRAIN},
    "evaluation": {"transforms": [Resize(32), CenterCrop(32)]},
    "turned": {"transforms": TRAIN, "orientation": "apply"},
    "views": {"views": [View([RandomResizedCrop(32, (0.4, 1))], 2), View([RandomResizedCrop(16)], 2)]},
    "list": {"transforms": [Resize(32, max_size=48), RandomHorizontalFlip()], "batch": "list"},
    "letterbox": {"transforms": [Resize((40, 40), pad=114)]},
    "own code behind": {"transforms": [*TRAIN, Apply(np.flipud)]},
    "own code before": {"transforms": [Apply(np.flipud), *TRAIN]},
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


@pytest.mark.parametrize("name", RECIPES)
def test_a_call_and_a_stage_make_the_same_pixels(tar: Path, name: str) -> None:
    preset, found = recipe(name), load(tar, recipe(name), shuffle="none")
    for sample, data in enumerate(FILES):
        made = preset([data], seed=3, epoch=1, sample=sample)
        assert equal(found[sample, 1], [view[0] for view in (made if preset.views != 1 else [made])])
    with Stage(preset, None, seed=3, decoder=Decoder(2, processes=0)) as stage:
        for images, ids in stage([(FILES[:7], range(7)), (FILES[7:], range(7, COUNT))], epoch=1):
            views = images if preset.views != 1 else [images]
            for row, sample in enumerate(ids):
                assert equal(found[sample, 1], [view[row] for view in views])


def test_no_batch_rank_part_or_thread_changes_a_pixel(tar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load(tar, recipe("views"))
    for rows, ranks, batch_size, decoder in (
        (COUNT, 2, 3, Decoder(1)),
        (1, 1, 5, Decoder(3, prefetch=1)),
        (2, 3, 4, Decoder(2, region=False)),
    ):
        by = lambda _, ids, *at, rows=rows: cut(np.ones(len(ids)), rows, 1, rows)  # noqa: E731
        monkeypatch.setattr(Parts, "of_step", by)
        found: Images = {}
        for rank in range(ranks):
            found |= load(tar, recipe("views"), batch_size, decoder=decoder, world=World(rank, ranks))
        assert found.keys() == expected.keys()
        assert all(equal(views, expected[place]) for place, views in found.items())


def test_a_run_resumes_with_the_same_pixels(tar: Path) -> None:
    given: dict[str, Any] = {"preset": recipe("training"), "output": "dict", "seed": 3}
    with GPULoader(tar, 4, None, **given) as loader:
        batches = [(batch["image"].clone(), loader.state_dict()) for batch in loader]
    state = batches[1][1]
    with GPULoader(tar, 4, None, **given) as loader:
        loader.load_state_dict(state)
        again = [batch["image"].clone() for batch in loader]
    assert equal(again, [image for image, _ in batches[2:]])


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


@pytest.fixture
def with_bad(tmp_path: Path) -> Path:
    """Samples of which the second, a large one, passes validation and cannot be decoded at any size."""
    data = bytearray(encoded(picture(300, 300), "JPEG"))
    table = data.index(b"\xff\xc4")
    data[table + 5 : table + 21] = bytes([255] * 16)
    images = [FILES[0], bytes(data), FILES[2], FILES[3], FILES[4], damaged_jpeg()]
    return write_shard(
        tmp_path / "a.tar", [{"__key__": f"{n}", "jpg": image, "cls": b"%d" % n} for n, image in enumerate(images)]
    )


@pytest.mark.parametrize("rows", [1, 6])
def test_bad_images_among_them_are_named_and_replaced(
    with_bad: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Parts, "of_step", lambda _, ids, *at: cut(np.ones(len(ids)), rows, 1, rows))
    given: dict[str, Any] = {"preset": recipe("evaluation"), "output": "dict", "shuffle": "none", "seed": 3}
    with pytest.raises(BadImageError) as raised, GPULoader(with_bad, 6, None, **given) as loader:
        list(loader)
    assert raised.value.key in ("1", "5")
    with GPULoader(with_bad, 6, None, on_error=BadImages(replace=True, max_share=0.5), **given) as loader:
        [batch] = list(loader)
        assert batch["valid"].tolist() == [True, False, True, True, True, False]
        assert [sample for sample, _ in loader.state_dict()["quarantine"]] == [1, 5]
        found = dict(zip(batch["index"].tolist(), batch["image"]))
    good = load(with_bad, recipe("evaluation"), 6, on_error=BadImages(replace=True, max_share=0.5), shuffle="none")
    for sample, image in found.items():
        assert torch.equal(image, good[sample, 0][0])
    with GPULoader(with_bad, 6, None, on_error=BadImages(skip=True, max_share=0.5), **given) as loader:
        [batch] = list(loader)
        assert batch["index"].tolist() == [0, 2, 3, 4]


def test_a_call_and_a_stage_name_a_bad_image(with_bad: Path) -> None:
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
    crops = [RandomResizedCrop(64)]
    [line] = said(large, Compose(crops))
    assert "oversampling: 1.5" in line
    for oversampling in (1.5, "off"):
        assert said(large, Compose(crops, oversampling=oversampling)) == []
    assert said(large, Compose([CenterCrop(64)])) == []  # which needs all pixels
    assert said(large, Compose([Resize((64, 64), antialias=False)])) == []
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
