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
from making import damaged_jpeg, write_decoded
from nvidia.dali import ops
from packing import samples_of
from PIL import Image

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.errors import DataError
from gpuloader.pipelines import recipe_pipeline
from gpuloader.recipe import Recipe, load_preset
from gpuloader.recipe.model import Transform
from gpuloader.recipe.program import Op

pytestmark = pytest.mark.slow(kept=7, of="gpu graph")

# Of an image's mean difference in levels. Levels are rounded behind the resize, and DALI repeats the border where PIL
# and torch cut the filter off; what is done to the pixels then widens it.
MEAN_LEVELS = 0.6

SMALL = Recipe([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4)])
ERASED = Recipe(
    [T.RandomResizedCrop(32), T.RandomErasing(0.6, value="random")], layout="channels_last", dtype="float16"
)
VIEWS = Recipe(
    views=[
        T.View([T.RandomResizedCrop(32), T.RandomInvert()]),
        T.View([T.RandomResizedCrop((16, 24)), T.ColorJitter(0.4)], 2),
    ]
)
MIX = {"num_classes": 10, "mixup_alpha": 0.8, "cutmix_alpha": 1.0, "per": "sample", "label_smoothing": 0.1}
MIXED = load_preset(SMALL, {"mix": MIX})
GROWING = Recipe([T.RandomResizedCrop({0: 24, 1: 32})])
BUCKETED = Recipe(
    [
        T.Resize("cover"),
        T.RandomCrop(8),
        T.RandomHorizontalFlip(),
        T.ColorJitter(0.4, 0.4),
        T.RandomErasing(0.6, value="random"),
    ]
)
PADDED = Recipe([T.Resize((30, 36)), T.Pad(5, padding_mode="reflect"), T.TenCrop((24, 20))], dtype="uint8")


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


def test_a_recipe_run_by_itself_takes_arrays_and_names_bad_images(shards: list[Path]) -> None:
    files = [sample["jpg"] for sample in samples_of(shards)[:8]]
    with gpu_graph():
        compose = Compose.load(VIEWS)
        with pytest.raises(DataError, match="image 1 cannot be decoded: DALI's decoder fails on it"):
            compose([files[0], damaged_jpeg()], device_id=GPU)
        arrays = [np.asarray(Image.open(io.BytesIO(file))) for file in files]
        of_arrays = compose(arrays, device_id=GPU)
    for view, expected in zip(of_arrays, Compose.load(VIEWS)(arrays), strict=True):
        assert 255 * (view - expected).abs().mean() <= MEAN_LEVELS


# --- what only a GPU can tell

ONLY_ON_A_GPU = {"decoders__ImageSlice", "decoders__Image"}
"""These are "mixed" in the graph for a GPU; what takes their place here is the CPU's implementation."""

EVERY_OPERATION: list[Transform] = [T.ColorJitter(hue=0.1), T.ThreeAugment(), T.AugMix(), T.TimmRandAugment()]


def operators(transforms: list[Transform], **options: Any) -> set[tuple[str, str]]:  # noqa: ANN401
    """Those of the graph for a GPU, each with its device."""
    preset = Recipe([T.Resize((32, 32)), *transforms])
    pipeline = recipe_pipeline(
        preset=preset, source=lambda: (), batch_size=1, num_threads=1, device_id=GPU, prefetch_queue_depth=1, **options
    )
    pipeline._build_graph()
    return {(node._op.schema.Name(), node._op.device) for node in pipeline._ops}


def test_all_of_the_graph_but_the_decoder_is_tested_here() -> None:
    """DALI has each operator on the device where the graph for a GPU has it, and has it on the CPU too."""
    assert set(Op) == set().union(*Recipe([T.Resize((32, 32)), *EVERY_OPERATION]).each_view[0].choices)
    used = operators(EVERY_OPERATION) | operators([], region=True) | operators([], decoded=True)
    used |= operators([T.RandomErasing(value="random")])
    for mode in ("constant", "edge", "reflect", "symmetric"):
        used |= operators([T.Pad(4, padding_mode=mode)])
    registered = {"cpu": ops.cpu_ops(), "gpu": ops.gpu_ops(), "mixed": ops.mixed_ops()}
    assert [each for each in used if each[0] not in registered[each[1]]] == []
    assert [each for each in used if each[0] not in ops.cpu_ops()] == []
    assert {name for name, device in used if device == "mixed"} == ONLY_ON_A_GPU
    assert len({name for name, device in used if device == "gpu"}) > 15
