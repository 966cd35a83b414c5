"""Shards of images that are decoded already: the same batches as from the encoded ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from making import write_decoded, write_samples

from gpuloader import GPULoader
from gpuloader.errors import BadImageError, DataError
from gpuloader.loading.loader import run_of


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_samples(tmp_path_factory.mktemp("encoded"), 40)


@pytest.fixture(scope="module")
def decoded(encoded: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_decoded(tmp_path_factory.mktemp("decoded"), encoded)


@pytest.mark.parametrize("preset", ["imagenet_train", "imagenet_eval", "imagenet_randaugment", "dino"])
def test_the_batches_are_those_of_the_encoded_images(encoded: list[Path], decoded: list[Path], preset: str) -> None:
    with (
        GPULoader(encoded, 16, None, preset=preset, output="dict") as expected,
        GPULoader(decoded, 16, None, preset=preset, output="dict") as loader,
    ):
        for one, other in zip(expected, loader, strict=True):
            assert one["key"] == other["key"]
            torch.testing.assert_close(other["image"], one["image"], rtol=0, atol=0)
            torch.testing.assert_close(other["label"], one["label"])


def test_encoded_and_decoded_images_do_not_go_into_one_loader(encoded: list[Path], decoded: list[Path]) -> None:
    with pytest.raises(
        DataError, match=r"20 of 40 images are decoded \(.npy\), such as '000000' in .* not, such as '00"
    ):
        GPULoader([decoded[0], encoded[1]], 8, None)


def test_an_array_that_is_no_image_any_more_is_named(decoded: list[Path], tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    shard.write_bytes(decoded[0].read_bytes())
    with GPULoader(shard, 4, None, preset="imagenet_eval") as loader:
        stat = shard.stat()
        with shard.open("r+b") as file:
            file.seek(run_of(loader).shards.index.column("image_offset").item(5))
            file.write(b"damage")
        os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as a disk does that fails
        with pytest.raises(BadImageError, match="not an array of uint8") as caught:
            list(loader)
        assert caught.value.key == "000005"
    with GPULoader(shard, 4, None, preset="imagenet_eval", on_error="skip") as loader:
        assert [len(images) for images, _ in loader][:2] == [4, 3]
