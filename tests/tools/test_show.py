"""Samples to look at: what is shown is what training gets; labels, keys, bad images, and the picture of them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_images import turned
from making import damaged_jpeg, encoded, jpeg, picture, write_decoded, write_shard
from PIL import Image, ImageOps

from gpuloader import Compose, GPULoader
from gpuloader import transforms as T
from gpuloader.base.text import printable
from gpuloader.errors import BadImageError, ConfigError, LabelError, ShardNotFoundError
from gpuloader.pack.packing import pack
from gpuloader.recipe import Recipe, load_preset
from gpuloader.tools.show import Gallery, show

CHANGES = [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.RandAugment(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]
NORMAL = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
COLOURS = Compose([*CHANGES, NORMAL, T.RandomErasing(0.5, value="random")])


def small(name: str, **overrides: object) -> Recipe:
    return load_preset(name, {"RandomResizedCrop": {"size": 32}, **overrides})


def original(gallery: Gallery, sample: int, side: int, orientation: Any = "off") -> Image.Image:  # noqa: ANN401
    [picture] = gallery.versions(gallery.whole(sample, side, orientation), sample, 0, 0)
    return picture


# --- what is shown is what training gets


@pytest.mark.parametrize(
    ("preset", "seed"),
    [
        (COLOURS, 0),
        (COLOURS, 2**64 - 1),
        (Compose(COLOURS.transforms, layout="channels_last", dtype="float16"), 1),
        (small("dino"), 7),
        (load_preset("cifar10"), 3),
        (Compose([T.RandomResizedCrop({0: 32, 1: 48})]), 0),
    ],
    ids=["colours", "seed", "channels_last", "dino", "cifar10", "sizes"],
)
def test_a_version_is_bit_for_bit_what_the_loader_delivers_in_that_epoch(
    shards: list[Path], preset: Recipe, seed: int
) -> None:
    gallery = Gallery(shards, device_id=None)
    compose = Compose.load(preset)
    with GPULoader(shards, 8, None, preset=preset, seed=seed, output="dict") as loader:
        for epoch in range(3):
            batch = next(iter(loader))
            views = batch["image"] if isinstance(batch["image"], list) else [batch["image"]]
            for row, sample in enumerate(batch["index"].tolist()):
                shown = gallery.tensors(compose, sample, seed, epoch)
                assert len(shown) == len(views)
                for tensor, images in zip(shown, views):
                    assert torch.equal(tensor, images[row])


def test_decoded_images_are_shown_as_the_encoded_ones(shards: list[Path], tmp_path: Path) -> None:
    encoded, decoded = Gallery(shards, device_id=None), Gallery(write_decoded(tmp_path, shards), device_id=None)
    compose = Compose.load(COLOURS)
    for sample in (0, 7):
        assert decoded.size(sample) == encoded.size(sample)
        assert original(decoded, sample, 512).tobytes() == original(encoded, sample, 512).tobytes()
        [one], [other] = (each.tensors(compose, sample, seed=3, epoch=1) for each in (encoded, decoded))
        assert torch.equal(one, other)


def test_mixing_is_left_out(shards: list[Path]) -> None:
    mixing, plain = (small("deit", **more) for more in ({}, {"mix": None}))
    assert mixing.mix is not None
    with GPULoader(shards, 8, None, preset=plain, output="dict") as loader:
        batch = next(iter(loader))
    gallery = Gallery(shards, device_id=None)
    for row, sample in enumerate(batch["index"].tolist()):
        [tensor] = gallery.tensors(Compose.load(mixing), sample, 0, 0)
        assert torch.equal(tensor, batch["image"][row])


def test_a_picture_of_a_version_is_in_levels_again(shards: list[Path]) -> None:
    gallery = Gallery(shards, device_id=None)
    levels = Compose(COLOURS.transforms[:-2], dtype="uint8")
    normalised = Compose(COLOURS.transforms[:-1])
    for sample in range(5):
        [made] = gallery.versions(normalised, sample, 0, 0)
        [tensor] = gallery.tensors(levels, sample, 0, 0)
        assert (np.asarray(made) == tensor.permute(1, 2, 0).numpy()).all()


def test_an_original_is_pillows_and_only_made_smaller(tmp_path: Path) -> None:
    image = picture(60, 80)
    samples = [{"__key__": "a", "png": encoded(image, "PNG"), "cls": b"0"}]
    gallery = Gallery(write_shard(tmp_path / "a.tar", samples), device_id=None)
    assert (np.asarray(original(gallery, 0, 500)) == np.asarray(image)).all()
    smaller = np.asarray(original(gallery, 0, 40), int)
    assert smaller.shape == (30, 40, 3)
    assert np.abs(smaller - np.asarray(image.resize((40, 30), Image.Resampling.BILINEAR), int)).max() <= 1


def test_a_mixture_has_the_samples_of_its_sources(shards: list[Path]) -> None:
    sources = [{"tar": str(shards[1]), "weight": {0: 1, 3: 2}}, {"tar": [str(shards[0])]}]
    gallery = Gallery(sources, device_id=None)
    assert (len(gallery), gallery.sample(0).shard, gallery.sample(20).shard) == (40, *map(str, reversed(shards)))
    with pytest.raises(ShardNotFoundError, match=r"no such file: nowhere\.tar"):
        Gallery([{"tar": shards[0]}, {"tar": "nowhere.tar"}], device_id=None)


def test_the_samples_drawn_are_the_first_of_a_shuffled_training(shards: list[Path]) -> None:
    with GPULoader(shards, 8, None, preset=COLOURS, seed=5, output="dict") as loader:
        first = next(iter(loader))["index"].tolist()
    gallery = Gallery(shards, device_id=None)
    assert gallery.drawn(8, 5) == first
    assert sorted(gallery.drawn(1000, 5)) == list(range(40))


# --- samples, keys and classes


@pytest.mark.parametrize("fields", [None, ["txt"]])
def test_data_without_labels_needs_no_option(tmp_path: Path, fields: list[str] | None) -> None:
    tar = write_shard(tmp_path / "a.tar", [{"__key__": "a", "jpg": jpeg(40, 40), "txt": b"text"}])
    gallery = Gallery(tar, device_id=None, fields=fields)
    assert (gallery.labels(), gallery.sample(0).label) == (None, None)
    for labelled in ({"__key__": "cat/a"}, {"__key__": "b", "cls": b"3"}):
        rows = [{"__key__": "a", "jpg": jpeg(40, 40)}, {"jpg": jpeg(40, 40), **labelled}]
        some = write_shard(tmp_path / "b.tar", rows)
        with pytest.raises(LabelError, match="of 2 samples lack a label"):
            Gallery(some, device_id=None, fields=fields)


def test_a_sample_says_where_it_is(shards: list[Path]) -> None:
    sample = Gallery(shards, device_id=None).sample(25)
    with tarfile.open(shards[1]) as tar:
        offset = tar.getmember("000025.jpg").offset_data
    assert (sample.id, sample.key, sample.label, sample.class_name) == (25, "000025", 5, None)
    assert (sample.shard, sample.offset) == (str(shards[1]), offset)


@pytest.mark.parametrize(
    ("text", "exact", "expected"),
    [
        ("00001", False, [1, *range(10, 20)]),
        ("000017", True, [17]),
        ("00017", True, []),
        ("0001", True, []),
        ("1000", False, []),  # stands where one key ends and the next begins
        ("", False, list(range(40))),
    ],
)
def test_keys_are_found(shards: list[Path], text: str, exact: bool, expected: list[int]) -> None:
    assert Gallery(shards, device_id=None).find(text, exact).tolist() == expected


@pytest.mark.parametrize(
    ("keys", "text", "expected"), [(["ab", "abab", "b"], "ab", [0]), (["aab"], "ab", []), (["a", "aa"], "aa", [1])]
)
def test_a_whole_key_is_no_part_of_another(tmp_path: Path, keys: list[str], text: str, expected: list[int]) -> None:
    path = write_shard(tmp_path / "a.tar", [{"__key__": key, "jpg": jpeg(40, 40), "cls": b"0"} for key in keys])
    assert Gallery(path, device_id=None).find(text, exact=True).tolist() == expected


# --- the picture


def tile(image: Image.Image, row: int, column: int, side: int, lines: int = 3) -> np.ndarray:
    """A tile of a picture whose heading has so many lines."""
    top = 2 * 10 + 18 + (lines - 1) * 16 + row * (side + 2 * 16 + 10)
    left = 10 + column * (side + 10)
    return np.asarray(image.crop((left, top, left + side, top + side)))


def test_the_picture_has_originals_and_their_versions(shards: list[Path], tmp_path: Path) -> None:
    preset = {"preset": "imagenet_randaugment", "overrides": {"RandomResizedCrop": {"size": 160}}}
    shown = show(shards, tmp_path / "grid.png", samples=[3, "000025"], versions=3, device_id=None, seed=9, **preset)
    gallery, compose = Gallery(shards, device_id=None), Compose.load(preset["preset"], **preset["overrides"])
    image = Image.open(shown.picture)
    for row, sample in enumerate((3, 25)):
        whole = np.asarray(original(gallery, sample, 160))
        height, width, _ = whole.shape
        if max(height, width) * 2 > 128:  # smaller ones are enlarged
            drawn = (tile(image, row, 0, 160)[160 - height :, :width] != whole).any(axis=2)
            assert 0 < drawn.mean() < 0.5  # the windows
        for epoch in range(3):
            [version] = gallery.versions(compose, sample, 9, epoch)
            assert (tile(image, row, 1 + epoch, 160) == np.asarray(version)).all()
    assert [sample.id for sample in shown.samples] == [3, 25]
    assert (shown.mix_left_out, shown.bad) == (False, {})


def colour(image: Image.Image, row: int, column: int, side: int) -> tuple[int, int, int]:
    """Of the frame around a tile: a pixel to the left of its lower left corner."""
    return image.getpixel((10 + column * (side + 10) - 2, 70 + row * (side + 42) + side - 1))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "preset",
    [
        small("imagenet_train"),
        Compose([T.Resize(40), T.CenterCrop(32)]),
        Compose([T.Resize((40, 40)), T.RandomCrop(40, padding=12)]),  # windows that reach beyond the image
    ],
    ids=["resized crop", "eval", "padded"],
)
def test_the_window_of_a_version_is_on_the_original(tmp_path: Path, preset: Recipe, seed: int) -> None:
    path = write_shard(tmp_path / "a.tar", [{"__key__": "a", "jpg": jpeg(128, 96), "cls": b"0"}])
    show(path, tmp_path / "a.png", preset=preset, samples=[0], versions=1, seed=seed, device_id=None)
    image = Image.open(tmp_path / "a.png")
    [view] = Gallery(path, device_id=None).explain(preset, 0, seed, 0)
    top, left, bottom, right = view.window
    found = np.argwhere((tile(image, 0, 0, 128) == colour(image, 0, 1, 128)).all(axis=2))
    expected = [max(0, round(top)), max(0, round(left)), min(128, round(bottom)) - 1, min(96, round(right)) - 1]
    assert [*found.min(axis=0), *found.max(axis=0)] == expected


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_turned_pictures_are_shown_upright_with_their_windows(tmp_path: Path, orientation: int) -> None:
    image = Image.open(io.BytesIO(encoded(picture(60, 80), "PNG", exif=turned(orientation))))
    upright = ImageOps.exif_transpose(image)
    for name, each in (("turned", image), ("plain", upright)):
        rows = [{"__key__": "a", "png": encoded(each, "PNG", exif=each.getexif()), "cls": b"0"}]
        write_shard(tmp_path / f"{name}.tar", rows)
    plain, same = (Gallery(tmp_path / f"{name}.tar", device_id=None) for name in ("plain", "turned"))
    off = Compose([T.RandomResizedCrop((32, 40)), T.RandomHorizontalFlip()])
    on = Compose(off.transforms, orientation="apply")
    assert same.size(0) == (60, 80)
    assert same.size(0, "apply") == (upright.height, upright.width)
    assert (np.asarray(original(same, 0, 80)) == np.asarray(image)).all()
    assert (np.asarray(original(same, 0, 80, "apply")) == np.asarray(upright)).all()
    assert same.explain(on, 0, 7, 0) == plain.explain(off, 0, 7, 0)
    [ours], [theirs] = same.tensors(on, 0, 7, 0), plain.tensors(off, 0, 7, 0)
    torch.testing.assert_close(ours, theirs, atol=1 / 255, rtol=0)


@pytest.mark.parametrize(("columns", "expected"), [(None, (11, 2)), (6, (6, 4))])
def test_views_and_versions_are_set_in_rows(
    shards: list[Path], tmp_path: Path, columns: int | None, expected: tuple[int, int]
) -> None:
    given = {"samples": [0], "versions": 2, "columns": columns, "device_id": None}
    shown = show(shards, tmp_path / "a.jpg", preset=small("dino"), **given)
    with Image.open(shown.picture) as image:
        assert ((image.width - 10) // 138, (image.height - 70) // 170) == expected


@pytest.mark.parametrize(
    ("name", "data", "cause"),
    [
        ("cut", jpeg(60, 80)[:-300], "a JPEG that is cut: it has no end-of-image marker"),
        ("damaged", damaged_jpeg(), "DALI's decoder fails on it"),
    ],
)
def test_a_bad_image_is_a_box_with_the_cause(tmp_path: Path, name: str, data: bytes, cause: str) -> None:
    samples = [{"__key__": name, "jpg": data, "cls": b"1"}, {"__key__": "good", "jpg": jpeg(60, 80), "cls": b"0"}]
    path = write_shard(tmp_path / "a.tar", samples)
    shown = show(path, tmp_path / "a.png", preset=COLOURS, samples=[0, 1], versions=2, device_id=None)
    assert list(shown.bad) == [0]
    assert shown.bad[0].startswith(cause)
    image = Image.open(shown.picture)
    for column in range(3):
        assert tile(image, 0, column, 128)[0, 0].tolist() == [0xB3, 0x26, 0x1E]
    assert tile(image, 1, 1, 128)[0, 0].tolist() != [0xB3, 0x26, 0x1E]
    with pytest.raises(BadImageError, match="bad image"):
        Gallery(path, device_id=None).tensors(COLOURS, 0, 0, 0)


def test_a_picture_that_one_recipe_takes_may_be_too_large_for_another(shards: list[Path]) -> None:
    gallery, least = Gallery(shards, device_id=None), Compose(COLOURS.transforms, max_pixels=1)
    for _ in range(2):
        assert original(gallery, 0, 512).size == gallery.size(0)[::-1]
        with pytest.raises(BadImageError, match="more than the recipe's 1"):
            gallery.tensors(least, 0, 0, 0)


def test_own_code_that_fails_is_a_box_with_the_cause(shards: list[Path], tmp_path: Path) -> None:
    def fails(image: np.ndarray) -> np.ndarray:
        raise ValueError(f"no such {image.ndim}")

    failing = Compose([T.Resize((40, 40)), T.Apply(fails)])
    shown = show(shards, tmp_path / "a.png", preset=failing, samples=[3], versions=1, device_id=None)
    assert shown.bad[3].startswith("ValueError: no such 3")


def test_keys_of_any_bytes_and_length_can_be_drawn(tmp_path: Path) -> None:
    keys = ["a" * 90, "<script>", "new\nline", "日本語", "bytes\udcff"]
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
        for key in keys:
            for extension, data in (("jpg", jpeg(40, 40)), ("cls", b"0")):
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    shown = show(path, tmp_path / "a.png", preset=COLOURS, samples=5, versions=1, device_id=None)
    assert sorted(sample.key for sample in shown.samples) == sorted(keys)
    [(tag, attributes)] = tags(shown._repr_html_())
    assert tag == "img"
    assert attributes.keys() == {"style", "alt", "src"}
    assert sorted(attributes["alt"].split(", ")) == sorted(printable(key) for key in keys)


def tags(html: str) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(html)
    return found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, "samples=0: allowed is a number above 0"),
        ({"samples": [40]}, "sample 40: allowed is an id from 0 to 39"),
        ({"samples": ["nobody"]}, "no sample of these shards has the key 'nobody'"),
        ({"versions": 1000}, "pixels: allowed are 50,000,000 in all and 65,000 on a side; show fewer"),
    ],
)
def test_a_mistake_is_named(shards: list[Path], tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    given = {"picture": tmp_path / "a.png", "preset": COLOURS, "device_id": None, **arguments}
    with pytest.raises(ConfigError, match=message):
        show(shards, **given)
    assert not (tmp_path / "a.png").exists()


# --- smaller copies


@pytest.fixture(scope="module")
def with_mipmaps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight pictures that have copies, turned in each way, and a ninth that is too small."""
    folder = tmp_path_factory.mktemp("copies")
    images = [encoded(picture(300, 420, number), "JPEG", exif=turned(1 + number)) for number in range(8)]
    samples = [{"__key__": f"{n}", "jpg": image, "cls": b"0"} for n, image in enumerate([*images, jpeg(90, 110)])]
    write_shard(folder / "plain.tar", samples)
    pack(folder / "plain.tar", folder / "packed", mipmaps=(96, 48), shuffle=False, workers=1)
    [packed] = (folder / "packed").glob("*.tar")
    return packed


COPIED = [T.RandomResizedCrop({0: 24, 1: 32}, scale=(0.2, 1.0)), T.RandomHorizontalFlip(), T.RandAugment()]


@pytest.mark.parametrize("orientation", ["off", "apply"])
@pytest.mark.parametrize(
    "keys",
    [
        {"transforms": COPIED},
        {"views": [T.View([*COPIED]), T.View([T.RandomResizedCrop(16)], 2)]},
        {"transforms": [T.Resize(32, max_size=48)], "batch": "list"},
        {"transforms": [*COPIED[:2], T.Apply(np.flipud)]},
    ],
    ids=["crops", "views", "list", "own code"],
)
def test_a_version_is_decoded_from_the_mipmap_that_the_loader_takes(
    with_mipmaps: Path,
    keys: dict[str, Any],
    orientation: Any,  # noqa: ANN401
) -> None:
    compose = Compose(oversampling=1.5, orientation=orientation, **keys)
    gallery, decoded = Gallery(with_mipmaps, device_id=None), set()
    with GPULoader(with_mipmaps, 3, None, preset=compose, seed=4, output="dict") as loader:
        for epoch in range(2):
            for batch in loader:
                views = batch["image"] if len(compose.each_view) > 1 else [batch["image"]]
                for row, sample in enumerate(batch["index"].tolist()):
                    shown = gallery.tensors(compose, sample, 4, epoch)
                    assert all(torch.equal(tensor, images[row]) for tensor, images in zip(shown, views, strict=True))
                    decoded.add(gallery.copy_side(compose, sample, 4, epoch))
    assert 0 in decoded
    assert decoded & {48, 96}


def test_the_file_that_is_decoded_is_said(with_mipmaps: Path, tmp_path: Path) -> None:
    gallery = Gallery(with_mipmaps, device_id=None)
    small, large, largest = (Compose([T.Resize(side), T.CenterCrop(side)], oversampling=1.5) for side in (24, 48, 70))
    halves, whole = Compose(largest.transforms, oversampling=2), Compose(largest.transforms, oversampling=16)
    for compose, sample, expected in (
        (small, 0, {"file": "mip48"}),
        (large, 0, {"file": "mip96"}),
        (largest, 0, {"scale": "1/2"}),  # 150 >= 1.5 * 70
        (small, 8, {"scale": "1/2"}),  # 45 >= 1.5 * 24
        (Compose(small.transforms, oversampling=1), 0, {"file": "mip48", "scale": "1/2"}),
        (halves, 0, {"scale": "1/2"}),
        (whole, 0, None),
    ):
        [view] = gallery.explain(compose, sample, 0, 0)
        plain = gallery.explain(Compose(compose.transforms), sample, 0, 0)[0]
        first = [] if expected is None else [("oversampling", "decode", expected)]
        assert [(step.transform, step.operation, step.parameters) for step in view.steps][: len(first)] == first
        assert (view.window, view.shape, view.steps[len(first) :]) == (plain.window, plain.shape, plain.steps)
    captions = []
    for mipmaps in (1.5, "off"):
        recipe = Compose(small.transforms, oversampling=mipmaps)
        drawn = show(with_mipmaps, tmp_path / "a.png", preset=recipe, samples=[0], versions=1, device_id=None)
        with Image.open(drawn.picture) as image:
            captions.append(np.asarray(image.crop((148, 70 + 128, 276, 70 + 128 + 16))))
    assert (captions[0] != captions[1]).any()  # one has "mip48"


def change_members(tar: Path, destination: Path, changes: Mapping[str, Callable[[bytes], bytes]]) -> None:
    with tarfile.open(tar) as opened, tarfile.open(destination, "w") as made:
        for member in opened.getmembers():
            content = changes.get(member.name, bytes)(opened.extractfile(member).read())  # type: ignore[union-attr]
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))


def without_codes(data: bytes) -> bytes:
    table = data.index(b"\xff\xc4")
    return data[: table + 5] + bytes([255] * 16) + data[table + 21 :]


@pytest.mark.parametrize("damage", [lambda data: data[:-40], without_codes], ids=["gate", "decoder"])
def test_a_damaged_picture_is_shown_by_its_mipmap_where_the_recipe_takes_it(
    with_mipmaps: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    change_members(with_mipmaps, tmp_path / "a.tar", {"5.jpg": damage})
    shown: dict[str, Any] = {"samples": [5], "versions": 2, "device_id": None}
    for side, sees_it in (24, False), (200, True):  # the second needs more pixels than the copies have
        compose = Compose([T.Resize(side), T.CenterCrop(side)], oversampling=1.5, orientation="apply")
        drawn = show(tmp_path / "a.tar", tmp_path / "a.png", preset=compose, **shown)
        assert (set(drawn.bad) == {5}) == sees_it
        good = show(with_mipmaps, tmp_path / "b.png", preset=compose, **shown)
        with Image.open(drawn.picture) as one, Image.open(good.picture) as other:
            sheets = [np.asarray(each.convert("L"), np.float64)[70:190, 5:300] for each in (one, other)]
        assert (np.abs(sheets[0] - sheets[1]).mean() > 10) == sees_it


def test_a_bad_mipmap_is_named_where_it_is_decoded(with_mipmaps: Path, tmp_path: Path) -> None:
    damages = {"0.mip48": lambda data: data[:-40], "1.mip48": lambda _: jpeg(48, 48), "2.mip48": without_codes}
    change_members(with_mipmaps, tmp_path / "a.tar", damages)
    gallery = Gallery(tmp_path / "a.tar", device_id=None)
    small, large = (Compose([T.Resize(side), T.CenterCrop(side)], oversampling=1.5) for side in (24, 48))
    for sample, cause in enumerate(("a JPEG that is cut", "it has 48x48 pixels, a copy 67x48", "DALI's decoder fails")):
        with tarfile.open(tmp_path / "a.tar") as tar:
            offset = tar.getmember(f"{sample}.mip48").offset_data
        with pytest.raises(BadImageError) as caught:
            gallery.tensors(small, sample, 0, 0)
        assert caught.value.cause.startswith(f"the .mip48 component beside it: {cause}")
        assert caught.value.offset == offset
        assert gallery.tensors(large, sample, 0, 0)  # of the other copy
