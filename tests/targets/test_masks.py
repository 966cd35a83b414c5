"""What masks take: their bounds, and the memory of a batch."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier, current_thread
from typing import Any

import numpy as np
import pytest
import torch
from making import encoded, saved, write_shard
from numpy.typing import NDArray
from PIL import Image
from scenes import loader

from gpuloader import BadImages, Compose, Decoder, Field, Mask
from gpuloader.errors import BadImageError, DataError
from gpuloader.plan import Draws
from gpuloader.recipe import Recipe, Shape
from gpuloader.recipe.model import Transform
from gpuloader.transforms import CenterCrop, Pad, RandomPerspective, Resize

OUTLINES = {"objects": Mask("json:annotations")}


def sample_of(number: int, objects: int, side: int = 8) -> dict[str, bytes | str]:
    """A square picture with so many objects, each as large as the picture."""
    outline = {"segmentation": {"size": [side, side], "counts": [0, side * side]}}
    return {
        "__key__": f"{number}",
        "png": encoded(Image.new("RGB", (side, side)), "PNG"),
        "json": json.dumps({"annotations": [outline] * objects}).encode(),
        "mask.png": encoded(Image.fromarray(np.arange(side * side, dtype=np.uint16).reshape(side, side)), "PNG"),
    }


# --- at most 256 MiB of a sample, counted as the recipe delivers them


RESIZE: list[dict[str, Any]] = [{"Resize": {"size": [1000, 1000]}}]
RECIPES: dict[str, tuple[dict[str, Any], int]] = {
    "dense": ({"transforms": RESIZE}, 300_000_000),
    "padded, which does not count": ({"transforms": RESIZE, "batch": {"pad": 1024}}, 300_000_000),
    "views together": ({"transforms": [{"Resize": {"size": [700, 700]}}], "views": 2}, 294_000_000),
}


@pytest.mark.parametrize(("preset", "pixels"), RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_sample_whose_masks_the_recipe_makes_too_large_is_bad(
    tmp_path: Path, preset: dict[str, Any], pixels: int, batch_size: int
) -> None:
    tar = write_shard(tmp_path / "a.tar", [sample_of(number, 300 if number == 1 else 1) for number in range(3)])
    options = {"preset": preset, "fields": OUTLINES, "on_error": BadImages(replace=True, max_share=1)}
    with loader(tar, batch_size, **options) as batches:
        assert all(1 not in batch["index"] for batch in batches)
        said = f"its 300 masks of objects have {pixels:,} pixels as the recipe makes them: allowed are 268,435,456"
        assert batches.stats().bad == {1: f"{said} in a sample"}


def test_masks_of_all_fields_count_together(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "a.tar", [sample_of(0, 0, 16), sample_of(1, 100, 16)])
    fields = {"numbers": Mask("mask.png", instances=True), **OUTLINES}  # 255 objects in the mask of each sample
    options = {"preset": {"transforms": RESIZE}, "on_error": BadImages(replace=True, max_share=1)}
    with loader(tar, 1, **options, fields=fields) as batches:
        assert [batch["index"].tolist() for batch in batches] == [[0], [0]]
        assert "its 355 masks of objects" in batches.stats().bad[1]


def test_masks_that_padding_makes_too_large_are_an_error(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "a.tar", [sample_of(0, 400), sample_of(1, 0, 1200)])
    preset = {"transforms": [{"Pad": {"padding": 1}}], "batch": {"pad": 1}}
    with loader(tar, 1, preset=preset, fields=OUTLINES) as alone:
        assert [len(batch["objects"][0]) for batch in alone] == [400, 0]
    with loader(tar, 2, preset=preset, fields=OUTLINES) as together, pytest.raises(DataError, match="padded to the"):
        next(iter(together))


# --- the type: the smallest that holds the numbers of the file and the fill, int64 in a batch


TYPES: list[tuple[list[int], type[np.generic], int, type[np.generic]]] = [
    ([0, 20], np.uint8, 255, np.uint8),
    ([0, 20], np.uint8, -100, np.int16),
    ([0, 1], np.bool_, 0, np.uint8),
    ([0, 65535], np.uint16, 0, np.int32),  # torch has few operations for uint16
    ([0, 2**31], np.uint32, 0, np.int64),
    ([-(2**63), 2**63 - 1], np.int64, 0, np.int64),
]


@pytest.mark.parametrize(("numbers", "stored", "fill", "expected"), TYPES)
def test_a_mask_is_kept_in_the_smallest_type(
    numbers: list[int], stored: type[np.generic], fill: int, expected: type[np.generic]
) -> None:
    mask = np.array([numbers], stored)
    value = Mask("npy", fill=fill).value(saved(mask), (1, 2), np.zeros(4))
    assert value.dtype == expected
    assert value.tolist() == mask.astype(np.int64).tolist()
    params = Recipe([CenterCrop((1, 4))]).draw(Draws(7, 0, np.arange(1)), np.array([[1, 2]]))
    [moved] = Mask("npy", fill=fill).collated([value], params)[""]
    assert (moved.dtype, moved.tolist()) == (expected, [[[fill, *map(int, numbers), fill]]])


def test_a_number_that_no_type_of_torch_holds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the mask has the number 9223372036854775808: allowed are numbers below"):
        Mask("npy").value(saved(np.array([[2**63]], np.uint64)), (1, 1), np.zeros(4))


@pytest.mark.parametrize("batch", ["dense", "list", {"pad": 8}], ids=str)
def test_batches_have_int64(tmp_path: Path, batch: str | dict[str, int]) -> None:
    masks = [np.full((8, 8), number, dtype) for number, dtype in ((1, np.bool_), (9, np.uint8), (40_000, np.uint16))]
    tar = write_shard(
        tmp_path / "a.tar", [{**sample_of(row, 0), "mask.npy": saved(mask)} for row, mask in enumerate(masks)]
    )
    preset = {"transforms": [{"Resize": {"size": [8, 8]}}], "batch": batch}
    fields = {"mask": Mask("mask.npy", fill=-100)}
    [delivered] = [each["mask"] for each in loader(tar, 3, preset=preset, fields=fields, shuffle="none")]
    for mask, expected in zip(delivered, masks, strict=True):
        assert mask.dtype == torch.int64
        assert mask.tolist() == expected.astype(int).tolist()
        images = np.zeros((8, 8, 3), np.uint8)
        target = Compose([Resize((8, 8))])(images, {"mask": expected})[1]  # images in memory have the same
        assert (target["mask"].dtype, target["mask"].tolist()) == (torch.int64, mask.tolist())


# --- the nearest pixel


@pytest.mark.parametrize("batch", ["dense", "list", {"pad": 8}], ids=str)
def test_masks_are_resized_as_by_pil_if_you_say_so(tmp_path: Path, batch: str | dict[str, int]) -> None:
    tar = write_shard(tmp_path / "a.tar", [sample_of(0, 1, 15)])
    preset = {"transforms": [{"CenterCrop": {"size": 13}}, {"Resize": {"size": [8, 8]}}], "batch": batch}
    fields = {name: Mask("mask.png", interpolation=name) for name in ("nearest", "nearest-exact")}
    [delivered] = loader(tar, 1, preset=preset, fields=fields)
    cropped = np.arange(225, dtype=np.int32).reshape(15, 15)[1:14, 1:14].copy()
    by_pil = Image.fromarray(cropped).resize((8, 8), Image.Resampling.NEAREST)
    assert delivered["nearest-exact"][0].tolist() == np.asarray(by_pil).tolist()
    by_torch = torch.nn.functional.interpolate(torch.from_numpy(cropped).double()[None, None], (8, 8))[0, 0]
    assert delivered["nearest"][0].tolist() == by_torch.long().tolist()


# --- several threads parse masks


class Meeting(Mask):
    """Parsing it waits for a second thread that parses another."""

    barrier = Barrier(2, timeout=60)

    def value(self, component: Any, size: Shape, drawn: NDArray[np.float64]) -> NDArray[Any]:  # noqa: ANN401
        self.barrier.wait()
        return super().value(component, size, drawn)


def test_several_threads_parse_masks_and_one_calls_your_functions_in_order(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "a.tar", [{**sample_of(number, 0), "txt": b"%d" % number} for number in range(8)])
    called: list[tuple[str, int]] = []

    def parse(text: bytes) -> int:
        called.append((current_thread().name, int(text)))
        return int(text)

    fields = {"number": Field("txt", parse), "mask": Meeting("mask.png")}
    options = {"preset": {"transforms": [{"Resize": {"size": [8, 8]}}]}, "shuffle": "full", "seed": 1}
    with loader(tar, 8, **options, fields=fields, decoder=Decoder(num_threads=2)) as batches:
        first = next(iter(batches))
    assert called[:8] == [("gpuloader-reader", number) for number in first["index"].tolist()]
    assert first["mask"].shape == (8, 8, 8)


@pytest.mark.parametrize("num_threads", [1, 5])
def test_the_number_of_threads_changes_nothing(tmp_path: Path, num_threads: int) -> None:
    samples = [sample_of(number, 1) for number in range(8)]
    for bad, broken in ((2, samples[2]["mask.png"][:60]), (5, b"no PNG")):
        samples[bad]["mask.png"] = broken  # type: ignore[assignment]
    tar = write_shard(tmp_path / "a.tar", samples)
    options = {"preset": {"transforms": [{"Resize": {"size": [8, 8]}}]}, "decoder": Decoder(num_threads=num_threads)}
    fields = {"mask": Mask("mask.png"), **OUTLINES}
    with loader(tar, 8, **options, fields=fields) as batches, pytest.raises(BadImageError) as raised:
        next(iter(batches))
    assert raised.value.key == "2"  # the first bad sample of the batch
    replacing = BadImages(replace=True, max_share=1)
    with loader(tar, 8, **options, fields=fields, on_error=replacing) as batches:
        [batch] = batches
        assert batch["index"].tolist() == [0, 1, 0, 3, 4, 0, 6, 7]
        assert list(batches.stats().bad) == [2, 5]


# --- the memory of a batch: at most twice what is delivered


MOVES: dict[str, tuple[Sequence[Transform], dict[str, Any]]] = {
    "both sides change, and rows first would take 64 times as much": ([Resize((2048, 32))], {}),
    "columns first would": ([Resize((32, 2048)), Resize((2048, 32)), Resize((32, 2048))], {}),
    "padded": ([Resize((700, 90)), Pad((0, 1))], {"batch": {"pad": 64}}),
    "warped": ([Resize((256, 256)), RandomPerspective(0.3, p=1)], {}),
}


@pytest.mark.parametrize(("transforms", "options"), MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("samples", [1, 2])
def test_the_masks_of_a_batch_are_written_once(
    transforms: Sequence[Transform], options: dict[str, Any], samples: int
) -> None:
    field, recipe = OUTLINES["objects"], Recipe(transforms, **options)
    masks = [np.ones((200, 32, 2048), np.uint8)] * samples
    turned = np.full(samples, 6) if options.get("orientation") else None
    stored = (2048, 32) if options.get("orientation") else (32, 2048)
    params = recipe.draw(Draws(7, 0, np.arange(samples)), np.array([stored] * samples), turned)
    field.collated(masks, params.take([]))  # so that caches are made
    tracemalloc.start()
    [moved] = field.collated(masks, params)[""]
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert moved.values.dtype == np.uint8
    assert moved.values.nbytes <= peak_bytes <= 2 * moved.values.nbytes
