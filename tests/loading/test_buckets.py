"""Aspect-ratio buckets of a loader: which image goes where, its pixels, and what batches, states and errors say."""

from __future__ import annotations

import io
import json
import logging
import tarfile
from bisect import bisect_right
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from hypothesis import example, given, settings
from hypothesis import strategies as st
from making import SIZES, damaged_jpeg, encoded, jpeg, picture, write_samples, write_shard
from PIL import Image, ImageOps

from gpuloader import BadImages, Buckets, Compose, GPULoader, Sampling, World
from gpuloader import transforms as T
from gpuloader.errors import ConfigError, PresetError, StateError

SHAPES = [(32, 32), (24, 48), (48, 24)]
COVER = {"transforms": [{"Resize": {"size": "cover"}}, {"RandomCrop": {"size": 8}}, "RandomHorizontalFlip"]}


def loader(tar: Any, batch_size: int = 4, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    given = {"preset": {**COVER, "dtype": "uint8"}, "output": "dict", "sampling": {"buckets": SHAPES}, **kwargs}
    return GPULoader(tar, batch_size, None, **given)


# --- which bucket

sides = st.integers(1, 9000)
sizes = st.tuples(sides, sides)


@settings(max_examples=200, deadline=None)
@example([(64, 128), (128, 64)], [(7, 7)])  # in the middle of both, with the same area: the first
@example([(64, 128), (256, 128)], [(7, 7)])  # the larger
@given(st.lists(sizes.filter(lambda size: max(size) <= 8192), min_size=1, max_size=8), st.lists(sizes, min_size=1))
def test_an_image_goes_to_the_nearest_ratio(buckets: list[tuple[int, int]], images: list[tuple[int, int]]) -> None:
    of = Buckets(sizes=buckets)

    def nearest(height: int, width: int) -> int:
        def distance(number: int) -> tuple[Fraction, int, int]:
            of_height, of_width = of.shapes[number]
            times = Fraction(width, height) / Fraction(of_width, of_height)
            return max(times, 1 / times), -of_height * of_width, number

        return min(range(len(of.shapes)), key=distance)

    near = [*images, *((height, width * 2) for height, width in buckets)]
    assert of.assign(np.array(near)).tolist() == [nearest(*size) for size in near]


@pytest.mark.parametrize(
    ("area", "step", "ratios"), [(1024**2, 64, (1 / 2, 2)), (512**2, 64, (1 / 4, 4)), (300 * 200, 8, (3 / 4, 4 / 3))]
)
def test_the_sizes_of_an_area_are_those_of_kohya(area: int, step: int, ratios: tuple[float, float]) -> None:
    multiples = range(step, 8193, step)
    square = max(side for side in multiples if side * side <= area)
    expected = {(square, square)}
    for width in multiples:
        heights = [height for height in range(step, 8193, step) if height * width <= area]
        expected |= {(max(heights), width), (width, max(heights))} if heights else set()
    low, high = map(Fraction, ratios)
    found = Buckets(area=area, step=step, ratios=ratios).shapes
    assert sorted(found) == sorted(each for each in expected if low <= Fraction(each[1], each[0]) <= high)
    assert (1024, 1024) in Buckets(area=1024**2).shapes


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_groups_are_those_of_torchvisions_reference(k: int) -> None:
    """Its bins are 2 ** linspace(-1, 1, 2 k + 1) on width / height, and `bisect_right` finds an image's."""
    bins = [2 ** (-1 + number / k) for number in range(2 * k + 1)]
    images = [(height, width) for height in (1, 7, 100, 640) for width in (1, 3, 50, 99, 100, 101, 200, 427, 640, 8192)]
    buckets = Buckets(groups=k)
    assert buckets.assign(np.array(images)).tolist() == [bisect_right(bins, width / height) for height, width in images]
    assert (len(buckets), buckets.shapes) == (2 * k + 2, ())


# --- an epoch


@pytest.mark.parametrize(("last_batch", "steps", "samples"), [("pad", 9, 40), ("drop", 6, 30)])
@pytest.mark.parametrize("batch", ["list", {"pad": 32}, "dense"])
def test_groups_put_images_of_one_ratio_into_a_batch_in_the_recipes_sizes(
    shards: list[Path],
    batch: Any,  # noqa: ANN401
    last_batch: str,
    steps: int,
    samples: int,
) -> None:
    """Of the five sizes in turn, 60x80, 64x64 and 33x51 are from 1 to 2, 80x60 below and 48x97 above: 24, 8, 8."""
    size = [16, 16] if batch == "dense" else 16
    given = {"preset": {"transforms": [{"Resize": {"size": size}}], "batch": batch}, "last_batch": last_batch}
    delivered: Counter[int] = Counter()
    with loader(shards, 5, shuffle="full", sampling={"buckets": {"groups": 1}}, **given) as batches:
        assert (batches.shapes, len(batches)) == (None, steps)
        for each in batches:
            sizes = [SIZES[int(sample) % 5] for sample in each["index"]]
            assert len({bisect_right([1 / 2, 1, 2], width / height) for height, width in sizes}) == 1
            delivered.update(each["index"][each["valid"]].tolist())
    assert max(delivered.values()) == 1
    assert len(delivered) == samples


def test_an_epoch_has_each_sample_once_in_the_shapes_that_the_loader_says(shards: list[Path]) -> None:
    with loader(shards, 5, world=World(0, 2)) as first, loader(shards, 5, world=World(1, 2)) as second:
        assert (first.num_samples, len(first), len(second)) == (40, 5, 5)  # 24 samples, and 16
        for _ in range(2):
            expected = first.shapes
            assert expected == second.shapes
            seen: Counter[int] = Counter()
            for step, (batch, beside) in enumerate(zip(first, second, strict=True)):
                assert first.shapes == (expected or [])[step + 1 :]
                for each in (batch, beside):
                    assert tuple(each["image"].shape[2:]) == (expected or [])[step]
                    assert each["target_size"].tolist() == [[*each["image"].shape[2:]]] * 5
                    seen.update(each["index"][each["valid"]].tolist())
            assert seen == Counter(range(40))


def test_subset_and_require_choose_among_the_samples_and_steps_end_an_epoch(shards: list[Path]) -> None:
    sampling = Sampling(subset=range(1, 40, 2), require=["json"], buckets=SHAPES, steps_per_epoch=3)
    with loader(shards, sampling=sampling, shuffle="none") as batches:
        got = [batch["index"].tolist() for batch in batches]
    # Sizes come in turn: 60x80, 80x60, 64x64, 48x97, 33x51. The last two are nearer to 24x48.
    assert got == [[1, 5, 7, 11], [15, 17, 21, 25], [27, 31, 35, 37]]


def test_sources_with_buckets_have_batches_of_one_source_in_the_ratio(shards: list[Path]) -> None:
    sources = [{"tar": shards[0], "weight": 3}, {"tar": shards[1]}]  # 20 samples each, 12 and 8 of two buckets
    with loader(sources) as batches:
        assert len(batches) == 2 * (12 + 8) // 4
        epochs = [[{sample // 20 for sample in batch["index"].tolist()} for batch in batches] for _ in range(2)]
    assert all(len(step) == 1 for epoch in epochs for step in epoch)
    assert sum(1 in step for step in [*epochs[0], *epochs[1]]) == 20 // 4


def test_weights_with_buckets_choose_the_samples_of_each_batch(shards: list[Path]) -> None:
    weights = np.where(np.arange(40) % 4 == 1, 2.0, 0.0)
    with loader(shards, sampling={"buckets": SHAPES, "weights": weights}) as batches, loader(shards) as plain:
        assert len(batches) == len(plain)
        assert batches.num_samples == 4 * len(batches)
        for batch in batches:
            assert (batch["index"] % 4 == 1).all()
            assert batch["valid"].all()
            assert {tuple(size) for size in batch["target_size"].tolist()} == {tuple(batch["image"].shape[2:])}


# --- pixels


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 PNGs of many ratios; every third is stored turned by 90 degrees, as EXIF says."""
    rng, samples = np.random.default_rng(5), []
    for number in range(24):
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 3 == 0 else 1
        image = picture(*rng.integers(24, 90, 2).tolist(), seed=number)
        samples.append({"__key__": f"{number:03d}", "png": encoded(image, "PNG", exif=exif), "cls": b"0"})
    return write_shard(tmp_path_factory.mktemp("pictures") / "data.tar", samples)


def read(tar: Path, key: str, upright: bool) -> Image.Image:
    with tarfile.open(tar) as file:
        member = file.extractfile(f"{key}.png")
        assert member is not None
        image = Image.open(io.BytesIO(member.read()))
        image.load()
    return ImageOps.exif_transpose(image) if upright else image


@pytest.mark.parametrize("orientation", ["apply", "off"])
def test_pixels_are_those_of_pils_cover_and_crop_tells_where(pictures: Path, orientation: str) -> None:
    recipe, flipped = {**COVER, "dtype": "uint8", "orientation": orientation}, set()
    with loader(pictures, preset=recipe) as batches:
        for batch in batches:
            height, width = batch["image"].shape[2:]
            for row, key in enumerate(batch["key"]):
                image = read(pictures, key, orientation == "apply")
                assert batch["original_size"][row].tolist() == [image.height, image.width]
                ratio = Fraction(image.width, image.height)
                distances = {
                    shape: max(ratio / Fraction(*shape[::-1]), Fraction(*shape[::-1]) / ratio) for shape in SHAPES
                }
                assert distances[height, width] == min(distances.values())
                covering = ImageOps.cover(image, (width, height), Image.Resampling.BILINEAR)
                top, left = batch["crop"][row].tolist()
                got = batch["image"][row].numpy().astype(int)
                fits = []
                for resized in (covering, tv.horizontal_flip(covering)):
                    expected = tv.pil_to_tensor(tv.crop(resized, top, left, height, width)).numpy()
                    fits.append(np.abs(got - expected).max() <= 1)
                assert any(fits)
                flipped.add(fits.index(True))
    assert flipped == {0, 1}


@pytest.mark.parametrize(
    ("transforms", "shape"),
    [
        ([T.Resize([8, 9])], (24, 48)),
        ([T.Resize({0: 70, 1: 60}), T.CenterCrop(8)], (48, 24)),
        ([T.Resize(70), T.RandomCrop(8, padding=1)], (48, 24)),
    ],
)
def test_a_bucket_replaces_the_size_of_the_last_resize_or_crop(
    pictures: Path, transforms: list[Any], shape: tuple[int, int]
) -> None:
    recipe = Compose(transforms, dtype="uint8")
    with loader(pictures, preset=recipe, sampling={"buckets": [shape]}) as batches:
        batch = next(iter(batches))
    assert tuple(batch["image"].shape[2:]) == shape
    made = Compose([*transforms[:-1], type(transforms[-1])(shape)], dtype="uint8")
    if not made.random:
        images = [np.asarray(read(pictures, key, upright=False)) for key in batch["key"]]
        assert torch.equal(batch["image"], made(images))


def test_views_and_mixing_have_the_buckets_size(shards: list[Path]) -> None:
    mixed = {**COVER, "mix": {"num_classes": 10, "cutmix_alpha": 1.0}}
    with loader(shards, preset=mixed) as batches:
        expected = batches.shapes
        found = [(tuple(batch["image"].shape[2:]), tuple(batch["label"].shape)) for batch in batches]
        assert found == [(shape, (4, 10)) for shape in expected or []]
    with loader(shards, preset=mixed) as batches, loader(shards, preset=COVER) as plain:
        pasted = [(batch["image"] != other["image"]).any(1) for batch, other in zip(batches, plain, strict=True)]
    for side in (0, 1):  # of the boxes, some reach beyond the 8 x 8 pixels of the recipe's own size
        assert max(int(places.nonzero()[:, 1 + side].max()) for places in pasted if places.any()) > 16
    with loader(shards, preset={**COVER, "views": 2}) as batches:
        for batch in batches:
            assert len(batch["image"]) == len(batch["crop"]) == len(batch["target_size"]) == 2
            assert batch["image"][0].shape == batch["image"][1].shape
            assert not torch.equal(batch["image"][0], batch["image"][1])


# --- states


def images_of(batches: GPULoader) -> list[tuple[int, bool, bytes]]:
    return [
        (sample, good, image.numpy().tobytes())
        for batch in batches
        for sample, good, image in zip(batch["index"].tolist(), batch["valid"].tolist(), batch["image"])
    ]


def test_a_state_within_a_quantum_resumes_with_steps_that_end_at_its_end(shards: list[Path]) -> None:
    sampling = {"buckets": {"sizes": SHAPES, "quantum": 8}}
    with loader(shards, 2, sampling=sampling) as fine, loader(shards, 4, sampling=sampling) as coarse:
        epoch = iter(fine)
        next(epoch)
        state = fine.state_dict()
        with pytest.raises(StateError, match=r"2 samples of a bucket batch of 8 .* 1 rank are batch sizes of 1, 2"):
            coarse.load_state_dict(state)
        next(epoch)
        coarse.load_state_dict(fine.state_dict())
        assert images_of(coarse) == images_of(epoch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch_size", "buckets", "said"),
    [
        (3, SHAPES, r"1 rank x batch_size 3 = 3 does not divide the bucket batch, quantum=8: .* 1, 2, 4, 8"),
        (4, {"sizes": SHAPES, "quantum": 4}, r"has quantum=8, this loader has Buckets\(quantum=4\)"),
        (8, [(32, 32), (24, 48), (48, 25)], "the state has sampling="),
    ],
)
def test_another_state_is_refused(shards: list[Path], batch_size: int, buckets: Any, said: str) -> None:  # noqa: ANN401
    with (
        loader(shards, 8) as saved,
        loader(shards, batch_size, sampling={"buckets": buckets}) as other,
        pytest.raises(StateError, match=said),
    ):
        other.load_state_dict(saved.state_dict())


# --- bad images and unknown sizes


def test_a_bad_image_is_replaced_from_its_bucket(tmp_path: Path) -> None:
    turns = [(60, 80), (80, 40), (40, 80)]
    samples = [{"__key__": f"{i:03d}", "jpg": jpeg(*turns[i % 3], seed=i), "cls": b"0"} for i in range(30)]
    for bad in (3, 7, 11):
        samples[bad]["jpg"] = jpeg(*turns[bad % 3], seed=bad)[:-30]
    samples[9]["jpg"] = damaged_jpeg()  # which only the decoder refuses; 64 x 64, of the bucket of 60 x 80
    tar = write_shard(tmp_path / "data.tar", samples)
    with loader(tar, 5, on_error=BadImages(replace=True, max_share=1)) as batches:
        for batch in batches:
            assert len({sample % 3 for sample in batch["index"].tolist()}) == 1
            assert not set(batch["index"].tolist()) & {3, 7, 9, 11}
        assert set(batches.stats().bad) == {3, 7, 9, 11}


@pytest.fixture(scope="module")
def with_unknown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six JPEGs and two pictures whose headers the index does not read."""
    images = [("jpg", jpeg(40 + i, 60, seed=i)) for i in range(6)] + [("tif", encoded(picture(40, 60), "TIFF"))] * 2
    samples = [{"__key__": f"{i}", extension: data, "cls": b"0"} for i, (extension, data) in enumerate(images)]
    return write_shard(tmp_path_factory.mktemp("unknown") / "data.tar", samples)


def test_an_image_of_unknown_size_is_an_error_or_skipped(with_unknown: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"does not know the size of 2 of 8 images, such as '6' \(.tif\) in .*data.tar"
    ):
        loader(with_unknown)
    with loader(with_unknown, sampling={"buckets": {"sizes": SHAPES, "unknown": "skip"}}) as batches:
        assert batches.num_samples == 6
        assert sorted(i for batch in batches for i in batch["index"][batch["valid"]].tolist()) == list(range(6))
    none_left = {"subset": [6, 7], "buckets": {"sizes": SHAPES, "unknown": "skip"}}
    with pytest.raises(ConfigError, match="size of 2 of 2 images"):
        loader(with_unknown, sampling=none_left)


@pytest.mark.parametrize("unknown", ["error", "skip"])
def test_a_known_bad_image_of_unknown_size_is_replaced_once_in_the_largest_bucket(tmp_path: Path, unknown: str) -> None:
    sizes = [(60, 80)] * 3 + [(80, 40)] * 4 + [(40, 80)] * 2
    samples = [{"__key__": f"{i}", "jpg": jpeg(*size, seed=i), "cls": b"0"} for i, size in enumerate(sizes)]
    samples.insert(2, {"__key__": "bad", "jpg": b"no image", "cls": b"0"})
    tar, known = write_shard(tmp_path / "data.tar", samples), tmp_path / "bad.jsonl"
    with tarfile.open(tar) as archive:
        place = {"shard": "data.tar", "key": "bad", "offset": archive.getmember("bad.jpg").offset_data}
    sampling = {"buckets": {"sizes": SHAPES, "unknown": unknown}}
    if unknown == "error":
        with pytest.raises(ConfigError, match=r"does not know the size of 1 of 10 images, such as 'bad'"):
            loader(tar, 1, sampling=sampling)
    known.write_text(json.dumps({**place, "cause": "no image"}) + "\n")
    with loader(tar, 1, sampling=sampling, on_error=BadImages(known=known)) as batches:
        assert len(batches) == batches.num_samples == 10
        steps = [(*batch["image"].shape[2:], int(batch["index"]), bool(batch["valid"])) for batch in batches]
    assert sorted(number for *_, number, valid in steps if valid) == [number for number in range(10) if number != 2]
    [(*shape, number)] = [(height, width, number) for height, width, number, valid in steps if not valid]
    assert tuple(shape) == (48, 24)
    assert number in range(4, 8)


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"sampling": {"buckets": SHAPES, "weights": "balanced", "replacement": False}},
            "replacement=False and buckets cannot be combined: use replacement=True",
        ),
        ({"shuffle": "block"}, 'buckets and shuffle="block" cannot be combined'),
        ({"several": True, "shuffle": "shards"}, 'buckets and several sources and shuffle="shards" cannot be combined'),
        ({"several": True, "sampling": {"buckets": SHAPES, "weights": "balanced"}}, "buckets and several sources and"),
        ({"last_batch": "partial"}, 'last_batch="partial" and buckets cannot be combined: use "pad" or "drop"'),
        ({"batch_size": 100, "last_batch": "drop"}, "no bucket has 100 samples"),
        ({"sampling": {"buckets": {"sizes": SHAPES, "quantum": 6}}}, "bucket batch, quantum=6: .* 1, 2, 3, 6"),
        ({"output": {"image": "x", "crops": "c"}}, "original_size, crop, target_size"),
        (
            {"preset": {"transforms": [{"RandomCrop": {"size": 40, "padding": 30}}]}},
            "buckets: .*padding 30 on all sides: allowed is less than the crop's 24",
        ),
        (
            {"preset": {"views": [{"transforms": [{"CenterCrop": {"size": 8}}]}]}},
            r"buckets: shape \(32, 32\) cannot replace the recipe's \(8, 8\)",
        ),
        ({"sampling": {"buckets": []}}, r"`Buckets\.sizes`: found \[\]: allowed is a list of at least 1"),
        ({"sampling": {"buckets": {"area": 64**2, "sizes": SHAPES}}}, "found area and sizes: give one of area, "),
        ({"sampling": {"buckets": {}}}, "found none of them: give one of area, .*; and groups, such as 3"),
        ({"sampling": {"buckets": {"groups": 0}}}, r"`buckets\.groups`: found 0: allowed is a number of at least"),
        (
            {"preset": {"transforms": [], "batch": "list"}},
            r"or take Buckets\(groups=3\), whose images have the recipe's",
        ),
        ({"sampling": {"buckets": {"area": 64}}}, "make 0 sizes: allowed are 1 to 1000; change the step"),
        ({"sampling": {"buckets": {"area": 64**2, "ratios": [2, 1]}}}, r"ratios \[2\.0, 1\.0\]: allowed is"),
        ({"sampling": {"buckets": 64}}, r"buckets=64: allowed is a Buckets\(area="),
    ],
)
def test_what_is_refused(shards: list[Path], arguments: dict[str, Any], said: str) -> None:
    tar = [{"tar": shard} for shard in shards] if "several" in arguments else shards
    given = {name: each for name, each in arguments.items() if name != "several"}
    with pytest.raises((ConfigError, PresetError), match=said):
        loader(tar, **given)


def test_drop_warns_of_buckets_that_it_never_delivers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tar = write_samples(tmp_path, 13, shards=1, sizes=[(32, 32)] * 12 + [(24, 48)])
    with caplog.at_level(logging.WARNING, "gpuloader"), loader(tar, last_batch="drop") as batches:
        assert (len(batches), batches.num_samples) == (3, 13)
    assert 'last_batch="drop" never delivers the samples of 1 bucket, which have fewer than 4: 24x48' in caplog.text
