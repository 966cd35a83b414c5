"""Reader: which images go through the gate again, and which of them are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import first_part
from making import encoded, jpeg, picture, write_shard

from gpuloader.images.gate import admit, decoder_file
from gpuloader.images.limits import AdmittedImage
from gpuloader.loading.options import BadImages
from gpuloader.loading.run import Run
from gpuloader.plan import Plan, all_samples
from gpuloader.recipe import load_preset
from gpuloader.shards import EncodedImage, ShardSet, make_labels

REPLACED = BadImages(replace=True)
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

    def watched(image: EncodedImage, *recipe: Any) -> AdmittedImage:  # noqa: ANN401
        asked.add(image.tobytes())
        return admit(image, *recipe)

    monkeypatch.setattr("gpuloader.loading.admitting.admit", watched)
    run = Run(plan, shards, SMALL, make_labels(shards, "cls"), bad_images=REPLACED)
    batches, seen = [], []
    for suspects in (set[int](), set[int](), {0}):  # a suspect is decoded, whatever was accepted
        asked.clear()
        batches.append(first_part(run, suspects))
        # A replacement is read, and reduced by the gate.
        files = {
            name: {image, decoder_file(np.frombuffer(image, np.uint8)).tobytes()} for name, image in IMAGES.items()
        }
        seen.append({name for name, either in files.items() if not either.isdisjoint(asked)})
    first, second, _ = batches
    assert first.bad.keys() == second.bad.keys() == {1, 2}
    assert first.ids.tolist() == second.ids.tolist()
    assert all(np.array_equal(*images) for images in zip(first.images[0], second.images[0], strict=True))
    for part in batches:  # the decoder gets no text, whether the gate was asked or not
        assert part.images[0][-1].tobytes() == encoded(picture(64, 64, 4), "PNG")
    assert np.array_equal(first.params.views[0].placement.window, second.params.views[0].placement.window)
    assert seen[0] == set(IMAGES)
    assert seen[1] == set(again)
    assert seen[2] == seen[1] | {"good"}
