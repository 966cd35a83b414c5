"""Reader: which images of a batch are replaced."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import encoded, jpeg, picture, write_samples, write_shard

from gpuloader.images.gate import admit
from gpuloader.images.limits import Admitted
from gpuloader.images.png import trimmed
from gpuloader.loading.options import BadImages
from gpuloader.loading.reader import EncodedBatch, Reader
from gpuloader.loading.run import Run
from gpuloader.plan import Cursor, Draws, Plan, all_samples
from gpuloader.recipe import Drawn, load_preset
from gpuloader.shards import Arena, EncodedImage, ShardSet, make_labels

SAMPLES = 24
DAMAGED_FROM_ROW = 40
REPLACED = BadImages(replace=True)
PRESET = load_preset("imagenet_train", {"RandomResizedCrop": {"size": 32}})


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """All images are damaged from a row on: whether it shows depends on the window that is drawn."""

    def find(_recipe: Any, _decoder: Any, _device: Any, images: Sequence[Any], drawn: Drawn) -> dict[int, str]:  # noqa: ANN401
        assert len(images) == len(drawn.region)
        return damage_shows(drawn)

    monkeypatch.setattr("gpuloader.loading.reader.find_bad_rows", find)


def damage_shows(drawn: Drawn) -> dict[int, str]:
    _, _, bottom, _ = drawn.region.T
    return dict.fromkeys(np.flatnonzero(bottom > DAMAGED_FROM_ROW).tolist(), "damaged")


def read(
    folder: Path,
    epoch: int,
    batch_size: int = SAMPLES,
    suspects: Collection[int] = (),
    **options: Any,  # noqa: ANN401
) -> list[EncodedBatch]:
    """All batches of an epoch, in order."""
    shards = ShardSet.open(write_samples(folder, SAMPLES, sizes=[(64, 64)]))
    plan = Plan(all_samples(SAMPLES, "none"), batch_size, last_batch="partial")
    reader = Reader(Run(plan, shards, PRESET, make_labels(shards, "cls"), **options), suspects)
    return [reader.read(Cursor(epoch, done), Arena()) for done in range(0, SAMPLES, batch_size)]


def shows_in(epoch: int, sample: int) -> bool:
    return 0 in damage_shows(PRESET.draw(Draws(0, epoch, np.array([sample])), np.array([[64, 64]])))


@pytest.mark.usefixtures("damaged")
def test_an_image_is_bad_in_the_epochs_whose_window_shows_the_damage(tmp_path: Path) -> None:
    seen = set()
    for epoch in range(12):
        [batch] = read(tmp_path, epoch, bad_images=REPLACED, suspects=[5])
        shows = shows_in(epoch, sample=5)
        assert batch.bad == ({5: "damaged"} if shows else {})
        assert batch.valid.tolist() == [sample != 5 or not shows for sample in range(SAMPLES)]
        assert (batch.ids[5] == 5) != shows
        seen.add(shows)
    assert seen == {True, False}


@pytest.mark.usefixtures("damaged")
def test_how_the_epoch_is_split_does_not_say_which_images_are_bad(tmp_path: Path) -> None:
    for epoch in range(3):
        parts = read(tmp_path, epoch, batch_size=5, bad_images=REPLACED, suspects=[2, 5, 11])
        [whole] = read(tmp_path, epoch, bad_images=REPLACED, suspects=[2, 5, 11])
        assert np.array_equal(np.concatenate([part.ids for part in parts]), whole.ids)
        assert np.array_equal(np.concatenate([part.valid for part in parts]), whole.valid)


IMAGES = {
    "good": jpeg(64, 64),
    "cut": jpeg(64, 64, seed=1)[:-30],
    "no image": b"no image at all",
    "also good": jpeg(60, 80, seed=2),
    "PNG": encoded(picture(64, 64, 3), "PNG"),
    "PNG with text": encoded(picture(64, 64, 4), "PNG", exif=bytes(100)) + b"and more behind it",
}
SMALL = load_preset("imagenet_train", {"RandomResizedCrop": {"size": 32}})


@pytest.mark.parametrize(
    ("local", "again"),
    [(True, ["cut", "no image"]), (False, list(IMAGES))],  # a store may deliver other bytes later
    ids=["disk", "store"],
)
def test_an_image_that_the_gate_accepted_from_a_disk_does_not_go_through_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool, again: list[str]
) -> None:
    monkeypatch.setattr(ShardSet, "local", local)
    samples = [{"__key__": name, "jpg": image, "cls": b"1"} for name, image in IMAGES.items()]
    shards = ShardSet.open([write_shard(tmp_path / "a.tar", samples)])
    plan = Plan(all_samples(len(samples), "none"), len(samples), last_batch="partial")
    asked: set[bytes] = set()

    def watched(image: EncodedImage, *recipe: Any) -> Admitted:  # noqa: ANN401
        asked.add(image.tobytes())
        return admit(image, *recipe)

    monkeypatch.setattr("gpuloader.loading.reader.admit", watched)
    run = Run(plan, shards, SMALL, make_labels(shards, "cls"), bad_images=REPLACED)
    batches, seen = [], []
    for reader in (Reader(run), Reader(run), Reader(run, suspects=[0])):  # a suspect is decoded, whatever was accepted
        asked.clear()
        batches.append(reader.read(Cursor(0, 0), Arena()))
        # A replacement is read, and trimmed by the gate.
        files = {name: {image, trimmed(np.frombuffer(image, np.uint8)).tobytes()} for name, image in IMAGES.items()}
        seen.append({name for name, either in files.items() if not either.isdisjoint(asked)})
    first, second, _ = batches
    assert first.bad.keys() == second.bad.keys() == {1, 2}
    assert first.ids.tolist() == second.ids.tolist()
    assert all(np.array_equal(*images) for images in zip(first.images, second.images, strict=True))
    for batch in batches:  # the decoder gets no text, whether the gate was asked or not
        assert batch.images[-1].tobytes() == encoded(picture(64, 64, 4), "PNG")
    assert np.array_equal(first.drawn.views[0].placement.window, second.drawn.views[0].placement.window)
    assert seen[0] == set(IMAGES)
    assert seen[1] == set(again)
    assert seen[2] == seen[1] | {"good"}
