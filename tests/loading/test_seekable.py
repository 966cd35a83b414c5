"""Loaders and `Compose` on seekable JPEGs: the pixels of the same pictures in JPEGs that cannot be cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gpu_graph import GPU, load_on
from making import encoded, picture, write_shard

from gpuloader import Compose, GPULoader
from gpuloader import transforms as T
from gpuloader.loading.loader import run_of

COUNT = 20
TRAIN = Compose([T.RandomResizedCrop(32)])
VIEWS = Compose(views=[T.View([T.RandomResizedCrop(32, scale=(0.1, 0.3))], 2), T.View([T.RandomResizedCrop(16)])])
EVAL = Compose([T.Resize(40), T.CenterCrop(32)])
KINDS = ("4:2:0", "4:4:4", "4:2:2", "gray")


def file(number: int, mcus: int) -> bytes:
    """A picture as a JPEG with restart intervals of that many MCUs; of none with 0."""
    kind, image = KINDS[number % 4], picture(96 + 8 * (number % 3), 160, number)
    if kind == "gray":
        return encoded(image.convert("L"), "JPEG", restart_marker_blocks=mcus)
    return encoded(image, "JPEG", subsampling=kind, restart_marker_blocks=mcus)


def shard(path: Path, seekable: int) -> Path:
    """The first `seekable` of the pictures can be cut."""
    files = [file(number, 2 if number < seekable else 0) for number in range(COUNT)]
    return write_shard(path, [{"__key__": f"{n:03}", "jpg": data, "cls": b"0"} for n, data in enumerate(files)])


@pytest.mark.slow(kept=2)
@pytest.mark.parametrize("device_id", [None, GPU])
@pytest.mark.parametrize("recipe", [TRAIN, VIEWS, EVAL], ids=["train", "views", "eval"])
@pytest.mark.parametrize(
    ("seekable", "whole"),
    [
        (COUNT, True),
        (COUNT - 2, True),
        (COUNT - 3, False),  # less than 9 of 10: regions are decoded, also of what was cut
        (1, False),
    ],
)
def test_images_are_those_of_plain_jpegs(
    tmp_path: Path, device_id: int | None, recipe: Compose, seekable: int, whole: bool
) -> None:
    found, expected = (_load(shard(tmp_path / f"{count}.tar", count), device_id, recipe) for count in (seekable, 0))
    assert (found[0], expected[0]) == ((whole, False) if device_id is None else (True, True))
    assert all(torch.equal(one, other) for one, other in zip(found[1], expected[1], strict=True))


def _load(tar: Path, device_id: int | None, recipe: Compose) -> tuple[bool, list[torch.Tensor]]:
    """Whether whole images are decoded, and the images of two epochs."""
    with load_on(device_id, tar, preset=recipe) as loader:
        batches = [batch["image"] for _ in range(2) for batch in loader]
        views = [view for each in batches for view in (each if isinstance(each, list) else [each])]
        return run_of(loader).decoder.region is False, views


def test_what_is_asked_for_overrules(tmp_path: Path) -> None:
    with GPULoader(shard(tmp_path / "a.tar", COUNT), 4, "cpu", decoder={"region": True}) as loader:
        assert run_of(loader).decoder.region is True


def test_compose_leaves_the_bytes_that_it_gets() -> None:
    for recipe in (TRAIN, VIEWS, EVAL):
        files, plain = ([bytearray(file(number, mcus)) for number in range(4)] for mcus in (2, 0))
        found, expected = recipe(files), recipe(plain)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert files == [file(number, 2) for number in range(4)]
