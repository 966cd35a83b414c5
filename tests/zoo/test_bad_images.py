"""Good and bad images of every kind: what is delivered, what is replaced, and that nothing else comes to harm.

The loader runs in another process, so that an image that ends it fails a test.
"""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from bad_images import GOOD, Kind, bad_kinds, good_kinds, inserted, of_bits, patched, zoo
from delivering import RESIZE, SIZE, Delivered, deliver, deliver_each, process
from making import jpeg, write_shard
from PIL import Image

Samples: TypeAlias = list[tuple[str, bytes]]

BAD = bad_kinds()
OF_ALL = [pytest.param(kind, id=kind.name) for kind in zoo()]
OF_GOOD = [pytest.param(kind, id=kind.name) for kind in good_kinds()]
OF_BAD = [pytest.param(kind, id=kind.name) for kind in BAD]
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


@pytest.fixture(scope="module")
def raised(loaders: ProcessPoolExecutor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Delivered]:
    """For each bad kind, a run that is to end at it."""
    folder = tmp_path_factory.mktemp("raised")
    tars = []
    for number, kind in enumerate(BAD):
        samples = [good(0), good(1), good(2), good(3)]
        samples[number % 4] = (kind.name, kind.data)
        tars.append([shard(folder, kind.name, samples)])
    return dict(zip((kind.name for kind in BAD), loaders.submit(deliver_each, tars, 4).result(), strict=True))


# --- each kind


@pytest.mark.slow(kept=18)
@pytest.mark.parametrize("kind", OF_ALL)
def test_good_is_what_pillow_decodes_unless_the_row_says_why(kind: Kind) -> None:
    try:
        pillows(kind.data)
        decoded = True
    except Exception:  # noqa: BLE001 - Pillow refuses with errors of many types
        decoded = False
    agree = decoded == (kind.verdict == "good")
    assert agree != bool(kind.unlike_pillow and kind.shows is None)


@pytest.mark.slow(kept=3)
@pytest.mark.parametrize("kind", OF_GOOD)
def test_a_good_image_comes_with_pillows_pixels(kind: Kind, delivered: Delivered) -> None:
    images = [image for key, image in delivered.images if key == kind.name]
    assert len(images) == 1
    if kind.shows is None and kind.unlike_pillow:
        return  # Pillow has no pixels to compare with
    expected = middle(kind.shows or pillows(kind.data))
    assert np.abs(images[0].astype(int) - expected).max() <= kind.levels


@pytest.mark.slow(kept=10)
@pytest.mark.parametrize("kind", OF_BAD)
def test_a_bad_image_is_replaced_counted_and_logged_once(kind: Kind, delivered: Delivered) -> None:
    assert kind.name not in [key for key, _ in delivered.images]
    assert delivered.bad.count(kind.name) == 1
    assert sum(f"key '{kind.name}' at byte" in message for message in delivered.log) == 1


@pytest.mark.slow(kept=10)
@pytest.mark.parametrize("kind", OF_BAD)
def test_a_bad_image_raises_an_error_that_names_it(kind: Kind, raised: dict[str, Delivered]) -> None:
    run = raised[kind.name]
    assert run.error is not None
    tar, key, offset, cause = run.error
    assert (Path(tar).stem, key) == (kind.name, kind.name)
    with Path(tar).open("rb") as file:
        file.seek(offset)
        assert file.read(len(kind.data)) == kind.data
    assert cause
    assert run.images == []


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(of_bits(17), id="17 bits"),
        pytest.param(of_bits(255), id="255 bits"),
        pytest.param(patched(GOOD, 4, b"\xea\x60"), id="a segment longer than the file"),
        pytest.param(inserted(GOOD, 0xE1, bytes(60_000))[:5000], id="cut in a long segment"),
    ],
)
def test_a_jpeg_that_breaks_readers_of_headers_is_bad(
    tmp_path: Path, loaders: ProcessPoolExecutor, data: bytes
) -> None:
    tar = shard(tmp_path, "broken", [good(0), ("broken", data), good(1)])
    assert loaders.submit(deliver, [tar], 2, ["", "broken", ""], **REPLACE).result().bad == ["broken"]


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
