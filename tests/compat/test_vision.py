"""Images of samples to a batch, against torch's own arithmetic, Pillow and `Compose`."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from making import jpeg, picture
from torch.utils.data import DataLoader

from gpuloader import Compose
from gpuloader.compat import VisionCollator
from gpuloader.errors import ConfigError
from gpuloader.transforms import RandomHorizontalFlip, RandomResizedCrop, Resize

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


def normalized(images: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    channels = [(images[:, channel] - mean[channel]) / std[channel] for channel in range(len(mean))]
    return torch.stack(channels, dim=1)


@pytest.mark.parametrize(
    ("arguments", "statistics"),
    [
        ({}, IMAGENET),
        ({"mean": CIFAR10[0], "std": CIFAR10[1]}, CIFAR10),
        ({"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}, HALF),
        ({"normalize": False}, ((0, 0, 0), (1, 1, 1))),
    ],
)
def test_images_are_stacked_and_normalised(
    arguments: dict[str, object], statistics: tuple[tuple[float, ...], ...]
) -> None:
    images = torch.rand(4, 3, 5, 6)
    batch = VisionCollator(**arguments)([{"pixel_values": image, "labels": i} for i, image in enumerate(images)])
    torch.testing.assert_close(batch["pixel_values"], normalized(images, *statistics))
    assert batch["labels"].equal(torch.arange(4))


@pytest.mark.parametrize(
    ("arguments", "mean", "std"),
    [
        ({}, sum(IMAGENET[0]) / 3, sum(IMAGENET[1]) / 3),  # three values for one channel: their average
        ({"mean": [0.1307], "std": [0.3081]}, 0.1307, 0.3081),  # MNIST's
    ],
)
def test_one_channel(arguments: dict[str, object], mean: float, std: float) -> None:
    images = torch.rand(2, 1, 4, 4)
    batch = VisionCollator(**arguments)([{"pixel_values": image} for image in images])
    torch.testing.assert_close(batch["pixel_values"], (images - mean) / std)
    assert set(batch) == {"pixel_values"}


IMAGE = picture(6, 8)
ARRAY = np.asarray(IMAGE)
WHOLE = torch.from_numpy(ARRAY.copy()).permute(2, 0, 1)


@pytest.mark.parametrize(
    "sample",
    [
        {"pixel_values": WHOLE / 255, "labels": 3},
        {"pixel_values": (WHOLE / 255).tolist(), "labels": 3},  # as Hugging Face's data sets have arrays
        {"image": WHOLE, "label": 3},
        {"image": ARRAY, "label": torch.tensor(3)},
        {"img": IMAGE, "label": 3, "id": "of no use"},  # CIFAR-10 of Hugging Face
        (IMAGE, 3),  # torchvision's data sets
    ],
    ids=["floats", "lists", "bytes", "array", "Pillow", "pair"],
)
def test_samples_of_all_kinds_give_the_same(sample: object) -> None:
    batch = VisionCollator(normalize=False)([sample, sample])
    torch.testing.assert_close(batch["pixel_values"], (WHOLE / 255).expand(2, 3, 6, 8))
    assert batch["labels"].equal(torch.tensor([3, 3]))


@pytest.mark.parametrize(
    "encode", [lambda data: data, lambda data: {"bytes": data, "path": None}], ids=["bytes", "Hugging Face's"]
)
def test_a_preset_decodes_files_of_any_size_as_compose_does(encode: object) -> None:
    files = [jpeg(40, 60, seed=1), jpeg(50, 30, seed=2)]
    batch = VisionCollator(preset="cifar10_eval")([{"image": encode(file), "label": 1} for file in files])
    assert batch["pixel_values"].equal(Compose.load("cifar10_eval")(files))
    assert batch["labels"].equal(torch.tensor([1, 1]))


@pytest.mark.parametrize(
    "convert", [lambda image: image, np.asarray, lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1)]
)
def test_a_preset_takes_what_is_decoded_too(convert: object) -> None:
    images = [picture(40, 60, seed=1), picture(50, 30, seed=2)]
    batch = VisionCollator(preset="cifar10_eval")([(convert(image), 0) for image in images])
    assert batch["pixel_values"].equal(Compose.load("cifar10_eval")([np.asarray(image) for image in images]))


def test_a_preset_may_be_a_dictionary() -> None:
    recipe = {"transforms": [{"Resize": {"size": [8, 9]}}]}
    [image] = VisionCollator(preset=recipe)([(jpeg(40, 60), 0)])["pixel_values"]
    assert image.equal(Compose([Resize([8, 9])])(jpeg(40, 60)))


def test_the_draws_of_a_preset_follow_torchs_seed() -> None:
    collator = VisionCollator(preset=Compose([RandomResizedCrop(16), RandomHorizontalFlip()]))
    samples = [(jpeg(60, 80), 0)] * 2

    def pixels(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return collator(samples)["pixel_values"]

    assert pixels(1).equal(pixels(1))
    assert not pixels(1).equal(pixels(2))
    assert not torch.equal(*pixels(1))  # each image has its own


def test_a_collator_goes_to_worker_processes() -> None:
    collator = VisionCollator(preset="cifar10_eval")
    samples = [(jpeg(40, 60), 0)]
    before = collator(samples)
    assert pickle.loads(pickle.dumps(collator))(samples)["pixel_values"].equal(before["pixel_values"])


def test_a_preset_runs_in_worker_processes() -> None:
    samples = [{"image": jpeg(40, 60, seed=seed), "label": seed} for seed in range(4)]
    collate = VisionCollator(preset="cifar10_eval")
    before = collate(samples)  # DALI runs here, and in a fork of this process
    [batch] = DataLoader(samples, 4, num_workers=1, collate_fn=collate)
    assert batch["pixel_values"].equal(before["pixel_values"])


@pytest.mark.parametrize(
    ("arguments", "samples", "message"),
    [
        ({"mean": [0.5]}, None, r"mean=\[0.5\], std=None: allowed is a number for each channel"),
        ({"preset": "cifar10_eval", "mean": [0.5]}, None, "has its own Normalize"),
        ({}, [{"text": "no image"}], "a sample has text: it needs one of pixel_values, image, img"),
        ({}, [{"image": ARRAY, "label": 1}, {"image": ARRAY}], "a sample has image: it needs one of labels, label"),
        (
            {},
            [(torch.rand(3, 4, 4), 0), (torch.rand(3, 5, 4), 0)],
            'cannot be stacked: resize .* preset="imagenet_eval"',
        ),
        ({}, [(torch.rand(4, 4, 4), 0)], "images have 4 channels, mean and std have 3"),
        ({}, [(b"bytes", 0)], "for the bytes of files, give the collator a preset"),
        ({}, [(np.zeros((4, 4, 3), np.float32), 0)], "uint8 arrays"),
    ],
)
def test_what_is_refused(arguments: dict[str, object], samples: list[object] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VisionCollator(**arguments)(samples)
