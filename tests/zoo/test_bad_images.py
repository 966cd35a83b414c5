"""Good and bad images and copies of every kind: what is delivered or replaced; nothing else comes to harm.

The loader runs in another process, so that an image that ends it fails a test.
"""

from __future__ import annotations

import io
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from bad_images import (
    GOOD,
    HEIGHT,
    PNG,
    PROGRESSIVE,
    RESTARTS,
    WEBP,
    WIDTH,
    bad_kinds,
    chunk,
    frame_as,
    good_kinds,
    half,
    interlaced_png,
    of_scans,
    without,
    zoo,
)
from delivering import RESIZE, SIZE, Delivered, deliver, deliver_each, process
from making import encoded, jpeg, picture, write_shard
from PIL import Image

Samples: TypeAlias = list[tuple[str, bytes]]

BAD = bad_kinds()
GOOD_IMAGES = [jpeg(40 + i, 60 - i, seed=i) for i in range(16)]
REPLACE = {"on_error": {"replace": True, "max_share": 1}}


def pillows(data: bytes) -> Image.Image:
    """The whole file as Pillow decodes it, or Pillow's error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(data)) as image:
            return image.convert("RGB")


def middle(image: Image.Image) -> np.ndarray:
    """The crop of evaluation, by Pillow: the shorter side to 36 pixels, then the middle 32 x 32."""
    shorter = min(image.size)
    width, height = (side * RESIZE // shorter for side in image.size)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - SIZE) / 2), round((height - SIZE) / 2)
    return np.asarray(resized.crop((left, top, left + SIZE, top + SIZE))).transpose(2, 0, 1)


def shard(folder: Path, name: str, samples: Samples) -> Path:
    # All are called .jpg, whatever they are: that is how they come.
    return write_shard(folder / f"{name}.tar", [{"__key__": key, "jpg": data} for key, data in samples])


def good(number: int) -> tuple[str, bytes]:
    return f"good-{number:05d}", GOOD_IMAGES[number % len(GOOD_IMAGES)]


def laid_out(batch_size: int, place: str) -> Samples:
    """Good samples with one of each bad kind among them."""
    if place == "side by side":
        bad = [(kind.name, kind.data) for kind in BAD]
        return [*map(good, range(batch_size + 1)), *bad, *map(good, range(batch_size + 1, batch_size + 400))]
    row = {"first": 0, "in the middle": batch_size // 2, "last": batch_size - 1}[place]
    samples = [good(number) for number in range(batch_size * len(BAD) + 1)]
    for step, kind in enumerate(BAD):
        samples[step * batch_size + row] = (kind.name, kind.data)
    return samples


@pytest.fixture(scope="module")
def loaders() -> Iterator[ProcessPoolExecutor]:
    """The process that loaders run in. Where it died, all later tests of this module fail too, and say so."""
    with process() as executor:
        yield executor


@pytest.fixture(scope="module")
def delivered(loaders: ProcessPoolExecutor, tmp_path_factory: pytest.TempPathFactory) -> Delivered:
    """The whole zoo in one shard, the good and the bad mixed."""
    kinds = [zoo()[number] for number in np.random.default_rng(0).permutation(len(zoo()))]
    tar = shard(tmp_path_factory.mktemp("zoo"), "zoo", [(kind.name, kind.data) for kind in kinds])
    return loaders.submit(deliver, [tar], 16, [kind.name for kind in kinds], **REPLACE).result()


@pytest.fixture(scope="module")
def clean(loaders: ProcessPoolExecutor, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """The good images, as they come when no bad one is near."""
    samples = [good(number) for number in range(len(GOOD_IMAGES))]
    tar = shard(tmp_path_factory.mktemp("clean"), "clean", samples)
    return [image for _, image in loaders.submit(deliver, [tar], 4, [key for key, _ in samples]).result().images]


# --- each kind


def test_good_is_what_pillow_decodes_unless_the_row_says_why() -> None:
    for kind in zoo():
        try:
            pillows(kind.data)
            decoded = True
        except Exception:  # noqa: BLE001 - Pillow refuses with errors of many types
            decoded = False
        agree = decoded == (kind.verdict == "good")
        assert agree != bool(kind.unlike_pillow and kind.shows is None), kind.name


def test_a_good_image_comes_with_pillows_pixels(delivered: Delivered) -> None:
    assert sorted(key for key, _ in delivered.images) == sorted(kind.name for kind in good_kinds())
    images = dict(delivered.images)
    for kind in good_kinds():
        if kind.shows is not None or not kind.unlike_pillow:  # otherwise Pillow has no pixels to compare with
            expected = middle(kind.shows or pillows(kind.data))
            assert np.abs(images[kind.name].astype(int) - expected).max() <= kind.levels, kind.name


def test_a_bad_image_is_replaced_counted_and_logged_once(delivered: Delivered) -> None:
    assert sorted(delivered.bad) == sorted(kind.name for kind in BAD)
    for kind in BAD:
        assert sum(f"key '{kind.name}' at byte" in message for message in delivered.log) == 1, kind.name


def test_a_bad_image_raises_an_error_that_names_it(loaders: ProcessPoolExecutor, tmp_path: Path) -> None:
    tars = []
    for number, kind in enumerate(BAD):
        samples = [good(0), good(1), good(2), good(3)]
        samples[number % 4] = (kind.name, kind.data)
        tars.append([shard(tmp_path, kind.name, samples)])
    for kind, run in zip(BAD, loaders.submit(deliver_each, tars, 4).result(), strict=True):
        assert run.error is not None, kind.name
        tar, key, offset, cause = run.error
        assert (Path(tar).stem, key) == (kind.name, kind.name)
        assert Path(tar).read_bytes()[offset : offset + len(kind.data)] == kind.data, kind.name
        assert cause, kind.name
        assert run.images == [], kind.name


# --- among others


def check_run(run: Delivered, samples: Samples, batch_size: int, clean: Sequence[np.ndarray]) -> None:
    """Every good sample exactly once and unharmed; every bad one counted once and logged once."""
    assert run.length == len(run.rows) == -(-len(samples) // batch_size)
    assert sum(run.rows) == len(samples)
    bad = [key for key, _ in samples if not key.startswith("good-")]
    assert sorted(key for key, _ in run.images) == sorted({key for key, _ in samples} - set(bad))
    assert run.invalid == len(bad)
    assert sorted(run.bad) == sorted(bad)
    assert Counter(message.split(" at byte ")[0].split(", key ")[1] for message in run.log) == Counter(map(repr, bad))
    for key, image in run.images:
        assert np.array_equal(image, clean[int(key.removeprefix("good-")) % len(clean)]), key


@pytest.mark.slow(kept=1)
@pytest.mark.parametrize(
    ("batch_size", "place"),
    [
        (4, "first"),
        (4, "in the middle"),
        (4, "last"),
        (4, "side by side"),
        (32, "first"),
        (32, "in the middle"),
        (32, "last"),
        (32, "side by side"),
        (128, "side by side"),
    ],
)
def test_no_good_sample_is_lost_wherever_bad_ones_stand(
    tmp_path: Path, loaders: ProcessPoolExecutor, clean: list[np.ndarray], batch_size: int, place: str
) -> None:
    samples = laid_out(batch_size, place)
    tar = shard(tmp_path, "mixed", samples)
    run = loaders.submit(deliver, [tar], batch_size, [key for key, _ in samples], **REPLACE).result()
    check_run(run, samples, batch_size, clean)


def test_no_good_sample_is_lost_beside_shards_of_one_bad_kind_alone(
    tmp_path: Path, loaders: ProcessPoolExecutor, clean: list[np.ndarray]
) -> None:
    shards = [[(f"{kind.name}-{copy}", kind.data) for copy in range(4)] for kind in BAD]
    shards.append([good(number) for number in range(500)])
    tars = [shard(tmp_path, f"{number:03d}", samples) for number, samples in enumerate(shards)]
    samples = [sample for each in shards for sample in each]
    run = loaders.submit(deliver, tars, 4, [key for key, _ in samples], **REPLACE).result()
    check_run(run, samples, 4, clean)


def test_no_good_sample_is_lost_when_training_shuffled(tmp_path: Path, loaders: ProcessPoolExecutor) -> None:
    # A random window may lie beside damage that evaluation meets: such an image is delivered. A good one always is.
    samples = laid_out(4, "first")
    tar = shard(tmp_path, "mixed", samples)
    overrides = {"RandomResizedCrop": {"size": SIZE}}
    arguments = {"preset": {"imagenet_train": overrides}, "last_batch": "partial"}
    run = loaders.submit(deliver, [tar], 32, [key for key, _ in samples], **arguments, **REPLACE).result()
    keys = [key for key, _ in run.images]
    assert len(keys) == len(set(keys))
    assert sorted(keys + run.bad) == sorted(key for key, _ in samples)
    assert all(not key.startswith("good-") for key in run.bad)
    assert run.length == len(run.rows) == -(-len(samples) // 32)
    assert len(run.log) == len(run.bad) == run.invalid


# --- smaller copies


SIDE = 96


def mutated(copy: bytes, seed: int) -> bytes:
    """A copy with a byte of another value in each of eight places behind its header."""
    data = bytearray(copy)
    for place in range(8):
        data[2 + (seed * 7919 + place * 104_729) % (len(data) - 2)] ^= 1 + seed % 255
    return bytes(data)


def test_no_mipmap_ends_the_run_or_takes_another_sample_with_it(tmp_path: Path, loaders: ProcessPoolExecutor) -> None:
    large = jpeg(300, 400)
    copy = encoded(Image.open(io.BytesIO(large)).resize((128, SIDE)), "JPEG", subsampling="4:4:4", quality=90)
    mipmaps = {kind.name: kind.data for kind in BAD}
    mipmaps |= {f"mutated-{seed:02d}": mutated(copy, seed) for seed in range(40)}
    mipmaps |= {"of another size": encoded(picture(64, 64), "JPEG"), **{f"whole-{n}": copy for n in range(5)}}
    keys = sorted(mipmaps)
    tar = write_shard(tmp_path / "a.tar", [{"__key__": key, "jpg": large, f"mip{SIDE}": mipmaps[key]} for key in keys])
    evaluation = {"Resize": {"size": RESIZE}, "CenterCrop": {"size": SIZE}, "dtype": "uint8", "Normalize": None}
    recipe = {"imagenet_eval": {**evaluation, "oversampling": 2}}
    run = loaders.submit(deliver, [tar], 16, keys, preset=recipe, **REPLACE).result()
    assert (run.error, sum(run.rows)) == (None, len(keys))
    delivered = [key for key, _ in run.images]
    assert sorted(delivered + run.bad) == keys
    assert {f"whole-{n}" for n in range(5)} <= set(delivered)
    assert {"of another size", *(kind.name for kind in BAD)} <= set(run.bad)


# --- what was decoded before


LOSSLESS = encoded(Image.new("RGB", (WIDTH, HEIGHT)), "WEBP", lossless=True)
SHORT = zlib.compress(b"\0" + bytes(3 * WIDTH))  # one row

ODD = {
    **{kind.name: kind.data for kind in good_kinds()},
    **{kind.name: kind.data for kind in zoo() if kind.name.startswith("png-animated")},
    "png-one-row": PNG[:33] + chunk(b"IDAT", SHORT) + PNG[-12:],
    "png-one-row-interlaced": interlaced_png()[:33] + chunk(b"IDAT", SHORT) + PNG[-12:],
    "png-no-row": PNG[:33] + chunk(b"IDAT", zlib.compress(b"")) + PNG[-12:],
    "jpeg-ends-in-the-middle": half(GOOD) + b"\xff\xd9",
    "jpeg-of-one-scan-of-many": PROGRESSIVE[: PROGRESSIVE.index(b"\xff\xda", PROGRESSIVE.index(b"\xff\xda") + 2)]
    + b"\xff\xd9",
    "jpeg-of-one-component-of-three": of_scans(1),
    "jpeg-without-a-restart": RESTARTS.replace(b"\xff\xd2", b""),
    "jpeg-arithmetic-cut": frame_as(without(GOOD, 0xC4), 0xC9)[:-500] + b"\xff\xd9",
    "webp-half": half(WEBP),
    "webp-lossless-half": half(LOSSLESS),
}
FORMATS = {"jpeg": "JPEG", "webp": "WEBP", "png": "PNG"}


def behind_plain(path: Path, colour: str, names: list[str]) -> Path:
    """The odd images, each behind one of a colour in the same format."""
    plain = {
        name: encoded(Image.new("RGB", (WIDTH, HEIGHT), colour), FORMATS[name.partition("-")[0]]) for name in names
    }
    samples = [
        ({"__key__": f"plain-{name}", "jpg": plain[name]}, {"__key__": name, "jpg": ODD[name]}) for name in names
    ]
    return write_shard(path, [sample for pair in samples for sample in pair])


@pytest.mark.slow(kept=0)
def test_images_that_lack_data_never_show_what_was_decoded_before(loaders: ProcessPoolExecutor, tmp_path: Path) -> None:
    """Each comes the same, or is bad, among white and among dark ones, in two splits."""
    names = list(ODD)
    keys = [key for name in names for key in (f"plain-{name}", name)]
    runs = []
    for batch_size, order in ((8, names), (5, names[::-1])):
        for colour in ("white", "#023c09"):
            tar = behind_plain(tmp_path / f"{colour}{batch_size}.tar", colour, order)
            run = loaders.submit(deliver, [tar], batch_size, keys, **REPLACE).result()
            assert sum(run.rows) == len(keys)
            runs.append(dict(run.images))
    for name in ODD:
        first, *others = (run.get(name) for run in runs)
        for other in others:
            assert (first is None) == (other is None), name
            assert first is None or np.array_equal(first, other), name
    for lacks_rows in ("png-animated-without-data", "png-no-row", "png-one-row"):
        assert all(lacks_rows not in run for run in runs)
