"""`recipe_pipeline` and `drawn_source` in a plain iterator of DALI's: the pixels of `Compose` and of the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_images import turned
from loaders import CUT
from making import SIZES, encoded, picture
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from packing import samples_of

from gpuloader import Compose, GPULoader
from gpuloader import transforms as T
from gpuloader.errors import ConfigError, DataError
from gpuloader.pipelines import drawn_source, recipe_pipeline
from gpuloader.recipe import load_preset

JPEGS = [encoded(picture(*SIZES[n % len(SIZES)], n), "JPEG", exif=turned(n)) for n in range(10)]


def test_a_recipe_may_be_a_dictionary() -> None:
    recipe = {"cifar10_eval": {"Normalize": None}}
    source = drawn_source(JPEGS[:4], recipe, batch_size=4)
    [outputs] = recipe_pipeline(preset=recipe, source=source, batch_size=4, num_threads=1).run()
    assert torch.equal(torch.from_dlpack(outputs.as_tensor()), Compose.load(recipe)(JPEGS[:4]))


def test_a_recipe_with_own_code_is_not_for_a_pipeline_alone() -> None:
    recipe = Compose([T.RandomResizedCrop(32), T.Apply(np.copy)])
    with pytest.raises(ConfigError, match="Stage"):
        recipe_pipeline(preset=recipe, source=drawn_source(JPEGS, recipe, 4), batch_size=4, num_threads=1)


def by_dali(preset: Any, jpegs: list[bytes], batch_size: int, seed: int, epochs: int = 1) -> list[list[torch.Tensor]]:  # noqa: ANN401
    """Each view's images of all epochs, as DALI's users run a pipeline."""
    names = [f"view{view.number}" for view in preset.each_view]
    pipeline = recipe_pipeline(
        preset=preset, source=drawn_source(jpegs, preset, batch_size, seed), batch_size=batch_size, num_threads=2
    )
    iterator = DALIGenericIterator([pipeline], names)
    views: list[list[torch.Tensor]] = [[] for _ in names]
    for _ in range(epochs):
        for [outputs] in iterator:
            for view, name in zip(views, names, strict=True):
                view.append(outputs[name])
        iterator.reset()
    return views


@pytest.mark.parametrize(
    "preset",
    [
        load_preset("imagenet_train", {"RandomResizedCrop": {"size": 32}}),
        load_preset("imagenet_eval", {"Resize": {"size": 36}, "CenterCrop": {"size": 32}}),
        load_preset("imagenet_randaugment", {"RandomResizedCrop": {"size": 32}, "layout": "channels_last"}),
        load_preset("moco_v2", {"RandomResizedCrop": {"size": 32}, "GaussianBlur": {"kernel_size": 5}}),
        load_preset("imagenet_train", {"RandomResizedCrop": {"size": 32}, "orientation": "apply"}),
    ],
    ids=["training", "evaluation", "channels last", "two views", "upright"],
)
def test_the_pixels_are_those_of_compose(preset: Any) -> None:  # noqa: ANN401
    ours = by_dali(preset, JPEGS, 4, seed=7, epochs=2)  # the last batch of an epoch has two images
    compose = Compose.load(preset)
    theirs = [compose(JPEGS, seed=7, epoch=epoch) for epoch in range(2)]
    for number, batches in enumerate(ours):
        assert [len(batch) for batch in batches] == [4, 4, 2] * 2
        expected = torch.cat([each[number] if isinstance(each, list) else each for each in theirs])
        images = torch.cat(batches)
        assert torch.equal(images.permute(0, 3, 1, 2) if preset.layout == "channels_last" else images, expected)


def test_the_pixels_are_those_of_a_loader(shards: list[Path]) -> None:
    preset = load_preset("imagenet_train", {"RandomResizedCrop": {"size": 32}})
    jpegs = [sample["jpg"] for sample in samples_of(shards)]
    [batches] = by_dali(preset, jpegs, 8, seed=3)
    with GPULoader(shards, 8, None, preset=preset, shuffle="none", seed=3) as loader:
        for ours, (theirs, _) in zip(batches, loader, strict=True):
            assert torch.equal(ours, theirs)


def test_a_source_gives_files_and_what_is_drawn_for_each() -> None:
    preset = load_preset("imagenet_train")
    source = drawn_source(JPEGS, preset, 4)
    for rows in (4, 4, 2):
        files, params = source()
        assert [file.dtype for file in files] == [np.dtype(np.uint8)] * rows
        assert len(params.region) == rows
    with pytest.raises(StopIteration):
        source()
    assert len(source()[0]) == 4  # the next epoch


def test_an_image_that_cannot_be_decoded_is_named() -> None:
    with pytest.raises(DataError, match=r"^image 1 cannot be decoded: "):
        drawn_source([JPEGS[0], CUT], load_preset("imagenet_train"), 2)
