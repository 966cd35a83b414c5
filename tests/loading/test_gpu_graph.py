"""The whole loader on the graph that a GPU runs, see `gpu_graph`: the samples of the CPU, and its pixels within bounds.

tests/test_operations.py has each operation and its bound, test_gpu_forms.py each preset and form of a recipe.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_graph import GPU, gpu_graph, load_on
from loaders import CUT, SAMPLES, spoilt
from making import damaged_jpeg, write_decoded
from nvidia.dali import ops
from packing import samples_of
from PIL import Image

from gpuloader import BadImages, Compose
from gpuloader.errors import BadImageError, DataError
from gpuloader.pipelines import recipe_pipeline
from gpuloader.recipe import Recipe, load_preset
from gpuloader.recipe.model import Transform
from gpuloader.recipe.program import Op
from gpuloader.transforms import (
    AugMix,
    ColorJitter,
    Pad,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    Resize,
    TenCrop,
    ThreeAugment,
    TimmRandAugment,
    View,
)

pytestmark = pytest.mark.slow(kept=7, of="gpu graph")

# Of an image's mean difference in levels. Levels are rounded behind the resize, and DALI repeats the border where PIL
# and torch cut the filter off; what is done to the pixels then widens it.
MEAN_LEVELS = 0.6

SMALL = Recipe([RandomResizedCrop(32), RandomHorizontalFlip(), ColorJitter(0.4, 0.4)])
ERASED = Recipe([RandomResizedCrop(32), RandomErasing(0.6, value="random")], layout="channels_last", dtype="float16")
VIEWS = Recipe(
    views=[View([RandomResizedCrop(32), RandomInvert()]), View([RandomResizedCrop((16, 24)), ColorJitter(0.4)], 2)],
)
MIX = {"num_classes": 10, "mixup_alpha": 0.8, "cutmix_alpha": 1.0, "per": "sample", "label_smoothing": 0.1}
MIXED = load_preset(SMALL, {"mix": MIX})
GROWING = Recipe([RandomResizedCrop({0: 24, 1: 32})])
BUCKETED = Recipe(
    [Resize("cover"), RandomCrop(8), RandomHorizontalFlip(), ColorJitter(0.4, 0.4), RandomErasing(0.6, value="random")]
)
PADDED = Recipe([Resize((30, 36)), Pad(5, padding_mode="reflect"), TenCrop((24, 20))], dtype="uint8")


def epochs(shards: Any, device_id: int | None, count: int = 1, **options: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    with load_on(device_id, shards, **{"preset": SMALL, **options}) as loader:
        return [batch for _ in range(count) for batch in loader]


def views_of(batch: dict[str, Any]) -> list[torch.Tensor]:
    return batch["image"] if isinstance(batch["image"], list) else [batch["image"]]


def check(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """The same samples, and nearly the same pixels."""
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"image"}:
            if isinstance(one[name], torch.Tensor):
                torch.testing.assert_close(one[name], other[name])
            else:
                assert one[name] == other[name]
        for image, expected in zip(views_of(one), views_of(other), strict=True):
            assert (image.shape, image.dtype, image.stride()) == (expected.shape, expected.dtype, expected.stride())
            levels = 1 if image.dtype == torch.uint8 else 255
            difference = (image.float() - expected.float()).abs() * levels
            assert (difference.mean((1, 2, 3)) <= MEAN_LEVELS).all()


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    """Whether the samples are the same, and their pixels bit for bit, however they are cut into batches."""
    keys = ([key for batch in batches for key in batch["key"]] for batches in (ours, theirs))
    images = (torch.cat([batch["image"] for batch in batches]) for batches in (ours, theirs))
    return next(keys) == next(keys) and torch.equal(next(images), next(images))


@pytest.mark.parametrize(
    ("preset", "last_batch"),
    [(SMALL, "partial"), (ERASED, "pad"), (VIEWS, "partial"), (MIXED, "pad"), (GROWING, "partial"), (PADDED, "drop")],
    ids=["small", "erased", "views", "mixed", "growing", "padded"],
)
@pytest.mark.parametrize("stored", ["encoded", "decoded"])
def test_two_epochs_have_the_same_samples(
    shards: list[Path], tmp_path: Path, stored: str, preset: Recipe, last_batch: str
) -> None:
    tar = shards if stored == "encoded" else write_decoded(tmp_path, shards)
    options = {"preset": preset, "last_batch": last_batch, "fields": ["json", "cls"], "batch_size": 6}
    ours, theirs = (epochs(tar, device, count=2, **options) for device in (GPU, None))
    assert len(ours) == (12 if last_batch == "drop" else 14)
    check(ours, theirs)


@pytest.mark.parametrize("stored", ["encoded", "decoded"])
@pytest.mark.parametrize("mixed", [False, True])
def test_one_graph_makes_the_sizes_of_all_buckets(
    shards: list[Path], tmp_path: Path, built: list[object], stored: str, mixed: bool
) -> None:
    tar = shards if stored == "encoded" else write_decoded(tmp_path, shards)
    options = {
        "preset": load_preset(BUCKETED, {"mix": MIX}) if mixed else BUCKETED,
        "last_batch": None,
        "sampling": {"buckets": [(32, 32), (24, 48), (48, 24)]},
        "batch_size": 6,
    }
    ours = epochs(tar, GPU, count=2, **options)
    assert len(built) == 1
    check(ours, epochs(tar, None, count=2, **options))
    assert len(built) == 2
    assert len({batch["image"].shape for batch in ours}) == 2


@pytest.mark.parametrize(
    "options", [{"batch_size": 1}, {"batch_size": 13}, {"batch_size": 40}, {"decoder": {"region": False}}], ids=str
)
def test_pixels_depend_on_no_batch_and_not_on_how_a_region_is_decoded(
    shards: list[Path], options: dict[str, Any]
) -> None:
    assert same(epochs(shards, GPU, **options), epochs(shards, GPU))


@pytest.mark.parametrize(("samples", "rows"), [(7, [[1, 1], [1, 1], [1, 2]]), (1, [[0], [0], [1]])])
def test_ranks_may_have_fewer_samples_or_none(shards: list[Path], samples: int, rows: list[list[int]]) -> None:
    of_ranks = []
    for rank in range(3):
        options = {"world": {"rank": rank, "world_size": 3}, "sampling": {"subset": range(samples)}, "preset": VIEWS}
        ours, theirs = (epochs(shards, device, batch_size=2, **options) for device in (GPU, None))
        check(ours, theirs)
        of_ranks.append([len(batch["key"]) for batch in ours])
    assert sorted(of_ranks) == rows


def test_bad_images_are_replaced_as_on_the_cpu_and_named(tmp_path: Path) -> None:
    """Two in a batch, which the gate and the decoder refuse, and one in the next."""
    tar = spoilt(tmp_path, {2: CUT, 5: damaged_jpeg(), 11: damaged_jpeg()})
    options: dict[str, Any] = {"preset": SMALL, "shuffle": "none", "on_error": BadImages(replace=True, max_share=0.2)}
    found = []
    for device in (GPU, None):
        with load_on(device, tar, **options) as loader:
            found.append((list(loader), loader.stats().bad))
    (ours, our_bad), (theirs, their_bad) = found
    check(ours, theirs)
    assert [int((~batch["valid"]).sum()) for batch in ours] == [2, 1, 0, 0, 0]
    assert our_bad.keys() == their_bad.keys() == {2, 5, 11}
    with pytest.raises(BadImageError, match="000005"):
        epochs(tar, GPU, sampling={"subset": range(3, SAMPLES)}, shuffle="none")


def test_a_recipe_run_by_itself_gives_the_loaders_pixels_and_names_bad_images(shards: list[Path]) -> None:
    files = [sample["jpg"] for sample in samples_of(shards)[:8]]
    [batch, *_] = epochs(shards, GPU, preset=VIEWS, shuffle="none")
    with gpu_graph():
        compose = Compose.load(VIEWS)
        for view, expected in zip(compose(files, device_id=GPU), batch["image"], strict=True):
            assert torch.equal(view, expected)
        with pytest.raises(DataError, match="image 1 cannot be decoded: DALI's decoder fails on it"):
            compose([files[0], damaged_jpeg()], device_id=GPU)
        arrays = [np.asarray(Image.open(io.BytesIO(file))) for file in files]
        of_arrays = compose(arrays, device_id=GPU)
    for view, expected in zip(of_arrays, Compose.load(VIEWS)(arrays), strict=True):
        assert 255 * (view - expected).abs().mean() <= MEAN_LEVELS


# --- what only a GPU can tell

ONLY_ON_A_GPU = {"decoders__ImageSlice", "decoders__Image"}
"""These are "mixed" in the graph for a GPU; what takes their place here is the CPU's implementation."""

EVERY_OPERATION: list[Transform] = [ColorJitter(hue=0.1), ThreeAugment(), AugMix(), TimmRandAugment()]


def operators(transforms: list[Transform], **options: Any) -> set[tuple[str, str]]:  # noqa: ANN401
    """Those of the graph for a GPU, each with its device."""
    preset = Recipe([Resize((32, 32)), *transforms])
    pipeline = recipe_pipeline(
        preset=preset, source=lambda: (), batch_size=1, num_threads=1, device_id=GPU, prefetch_queue_depth=1, **options
    )
    pipeline._build_graph()
    return {(node._op.schema.Name(), node._op.device) for node in pipeline._ops}


def test_all_of_the_graph_but_the_decoder_is_tested_here() -> None:
    """DALI has each operator on the device where the graph for a GPU has it, and has it on the CPU too."""
    assert set(Op) == set().union(*Recipe([Resize((32, 32)), *EVERY_OPERATION]).each_view[0].choices)
    used = operators(EVERY_OPERATION) | operators([], region=True) | operators([], decoded=True)
    used |= operators([RandomErasing(value="random")])
    for mode in ("constant", "edge", "reflect", "symmetric"):
        used |= operators([Pad(4, padding_mode=mode)])
    registered = {"cpu": ops.cpu_ops(), "gpu": ops.gpu_ops(), "mixed": ops.mixed_ops()}
    assert [each for each in used if each[0] not in registered[each[1]]] == []
    assert [each for each in used if each[0] not in ops.cpu_ops()] == []
    assert {name for name, device in used if device == "mixed"} == ONLY_ON_A_GPU
    assert len({name for name, device in used if device == "gpu"}) > 15
