"""MixUp and CutMix of a batch, against torchvision's and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracle import transforms

from gpuloader import transforms as T
from gpuloader.loading import blending as ways
from gpuloader.loading.blending import mix_images, soft_labels
from gpuloader.plan import Draws, Stream
from gpuloader.recipe import Mixing

SHAPES = [(2, 32, 32), (8, 31, 47), (6, 1, 5), (4, 7, 1)]
# Of values around 1, to a float's last places.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 4e-3}


def pictures(count: int, height: int, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(count)).to(dtype)


def mixing(count: int, height: int, width: int, **options: object) -> Mixing:
    mix = T.Mix(num_classes=10, mixup_alpha=0.8, cutmix_alpha=1.0, p=0.9, **options)
    return mix.draw(Draws(1, 0, np.arange(count)).of(Stream.MIX), height, width)


@pytest.fixture(autouse=True, params=["mix_one_by_one", "mix_together"])
def _each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's way, and a GPU's, which runs on a CPU too."""
    monkeypatch.setattr(ways, "mix_one_by_one", getattr(ways, request.param))


def mixed(images: torch.Tensor, how: Mixing) -> torch.Tensor:
    result = images.clone(memory_format=torch.preserve_format)
    mix_images(result, how)
    return result


def by_numpy(images: torch.Tensor, how: Mixing) -> np.ndarray:
    """One sample after the other, in double precision."""
    old = images.double().numpy()
    new = old.copy()
    for row, (weight, box) in enumerate(zip(how.weight.astype(float), how.box.tolist(), strict=True)):
        top, left, bottom, right = box
        other = old[row ^ 1]
        if bottom:
            new[row, :, top:bottom, left:right] = other[:, top:bottom, left:right]
        else:
            new[row] = weight * old[row] + (1 - weight) * other
    return new


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("per", ["sample", "batch"])
def test_each_image_is_mixed_with_its_neighbour(
    shape: tuple[int, int, int], dtype: torch.dtype, memory_format: torch.memory_format, per: str
) -> None:
    images, how = pictures(*shape, dtype).to(memory_format=memory_format), mixing(*shape, per=per)
    result = mixed(images, how)
    assert result.dtype == dtype
    assert result.is_contiguous(memory_format=memory_format)
    np.testing.assert_allclose(result.double().numpy(), by_numpy(images, how), atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_mixup_is_torchvisions(weight: float) -> None:
    images, labels = pictures(2, 20, 30), torch.tensor([3, 7])
    theirs = transforms.v2.MixUp(num_classes=10)
    # With two samples, the batch rolled by one is each one's neighbour.
    expected = theirs.transform(images, {"lam": weight, "labels": labels, "batch_size": 2})
    ours = mixed(images, Mixing(np.float32([weight] * 2), np.zeros((2, 4), np.int32)))
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)
    one_hot = theirs.transform(labels, {"lam": weight, "labels": labels, "batch_size": 2})
    torch.testing.assert_close(soft_labels(labels, torch.full((2,), weight), 10, 0.0), one_hot, atol=1e-6, rtol=0)


@pytest.mark.parametrize("box", [(0, 0, 20, 30), (3, 5, 4, 6), (0, 11, 20, 12), (7, 0, 19, 30)], ids=str)
def test_cutmix_is_torchvisions(box: tuple[int, int, int, int]) -> None:
    images, labels = pictures(2, 20, 30), torch.tensor([3, 7])
    top, left, bottom, right = box
    weight = 1 - (bottom - top) * (right - left) / 600
    theirs = transforms.v2.CutMix(num_classes=10)
    parameters = {"box": (left, top, right, bottom), "lam_adjusted": weight, "labels": labels, "batch_size": 2}
    ours = mixed(images, Mixing(np.float32([weight] * 2), np.int32([box] * 2)))
    torch.testing.assert_close(ours, theirs.transform(images, parameters), atol=1e-6, rtol=0)
    one_hot = theirs.transform(labels, parameters)
    torch.testing.assert_close(soft_labels(labels, torch.full((2,), weight), 10, 0.0), one_hot, atol=1e-6, rtol=0)


def test_the_drawn_share_of_cutmix_is_the_share_of_the_pixels() -> None:
    how = T.Mix(num_classes=2, cutmix_alpha=1.0).draw(Draws(0, 0, np.arange(200)).of(Stream.MIX), 20, 31)
    marked = torch.zeros(200, 3, 20, 31)
    marked[0::2] = 1
    own = torch.where(
        torch.arange(200) % 2 == 0, mixed(marked, how).mean((1, 2, 3)), 1 - mixed(marked, how).mean((1, 2, 3))
    )
    torch.testing.assert_close(own, torch.from_numpy(how.weight), atol=1e-5, rtol=0)


def test_an_empty_batch_stays_one() -> None:
    assert mixed(pictures(0, 8, 8), mixing(0, 8, 8)).shape == (0, 3, 8, 8)
    assert soft_labels(torch.zeros(0, dtype=torch.int64), torch.zeros(0), 5, 0.1).shape == (0, 5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("classes", [1, 2, 1000])
def test_labels_are_timms_mixup_target(smoothing: float, classes: int) -> None:
    labels = torch.tensor([0, classes - 1, classes // 2, classes // 2])
    weight = torch.tensor([0.3, 0.8, 1.0, 0.0])
    on, off = 1 - smoothing + smoothing / classes, smoothing / classes
    expected = torch.empty(4, classes)
    for row in range(4):
        own, other = torch.full((classes,), off), torch.full((classes,), off)
        own[labels[row]], other[labels[row ^ 1]] = on, on
        expected[row] = weight[row] * own + (1 - weight[row]) * other
    ours = soft_labels(labels, weight, classes, smoothing)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.sum(1), torch.ones(4), atol=1e-5, rtol=0)
