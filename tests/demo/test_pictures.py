"""The demonstration's pictures."""

import io
from pathlib import Path

import demo_shards
import numpy as np
import pytest
from packing import samples_of
from PIL import Image

from gpuloader.demo.pictures import CLASSES, draw, sample, write_shards


@pytest.mark.parametrize("label", range(len(CLASSES)))
def test_a_picture_is_photo_sized_and_a_function_of_its_arguments(label: int) -> None:
    picture = draw(label, np.random.default_rng(label))
    assert picture.dtype == np.uint8
    assert 225 <= min(picture.shape[:2]) <= max(picture.shape[:2]) <= 640
    assert picture.shape[2] == 3
    np.testing.assert_array_equal(picture, draw(label, np.random.default_rng(label)))


def test_shards_hold_every_class_equally_often_at_photo_like_sizes(tmp_path: Path) -> None:
    told: list[int] = []
    shards = write_shards(tmp_path, "train", 30, seed=1, per_shard=20, progress=told.append)
    assert [shard.name for shard in shards] == ["train-0000.tar", "train-0001.tar"]
    assert told == list(range(1, 31))
    samples = samples_of(shards)
    assert [sample["__key__"] for sample in samples] == [f"{i:06d}" for i in range(30)]
    assert np.bincount([int(sample["cls"]) for sample in samples]).tolist() == [3] * 10
    assert 30_000 < np.mean([len(sample["jpg"]) for sample in samples]) < 100_000


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    one, same, other = (
        write_shards(tmp_path / name, "t", 4, seed)[0].read_bytes() for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one == same != other


@pytest.mark.parametrize(("seed", "index"), [(0, 0), (0, 17), (0, 1199), (1, 0), (1, 299)])
def test_the_pages_run_on_shards_with_the_demos_labels_and_sizes(seed: int, index: int) -> None:
    real, like = sample(seed, index), demo_shards.sample(seed, index)
    assert like["cls"] == real["cls"]
    sizes = [Image.open(io.BytesIO(each["jpg"])).size for each in (real, like)]
    assert sizes[0] == sizes[1]
