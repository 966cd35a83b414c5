"""Which `.npy` members are images that are decoded already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from making import jpeg, saved, write_shard
from verdicts import verdict

from gpuloader.images.arrays import admit_array, array_size
from gpuloader.shards import open_index

IMAGE = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (480, 640), (1, 9_999)])
def test_what_numpy_saves_is_an_image(size: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    member = np.frombuffer(saved(image), np.uint8)
    found, found_size = admit_array(member)
    assert found_size == size
    np.testing.assert_array_equal(found, image)


@pytest.mark.parametrize(
    "member",
    [
        saved(IMAGE[:, :, 0]),
        saved(np.concatenate([IMAGE, IMAGE], 2)),
        saved(IMAGE.astype(np.int8)),
        saved(np.asfortranarray(IMAGE)),
        saved(IMAGE[:0]),
        saved(IMAGE, (2, 0)),  # for headers of more than 64 KiB, which an image has not
        saved(IMAGE)[:-1],
        saved(IMAGE) + b"\0",
        saved(IMAGE)[:100],
        saved(np.array([{}], object)),  # a pickle
        saved(IMAGE).replace(b"(5, 7, 3)", b"(-5, 7,3)"),
        saved(IMAGE).replace(b"(5, 7, 3)", b"(9**9, 3)"),
        b"",
        jpeg(40, 40),
    ],
)
def test_what_is_no_such_image_is_refused(member: bytes) -> None:
    assert array_size(member[:1536], len(member)) == (0, 0)
    cause = verdict(admit_array, np.frombuffer(member, np.uint8))
    assert cause == "not an array of uint8 (height, width, 3) as numpy.save writes it"


def test_an_image_whose_resized_side_would_not_fit_into_32_bits_is_refused() -> None:
    member = np.frombuffer(saved(np.zeros((1, 2**18, 3), np.uint8)), np.uint8)
    assert verdict(admit_array, member) == "its header says 262144x1 pixels, a side of more than 262,143"


def test_an_array_is_the_image_of_a_sample_that_has_no_other(tmp_path: Path) -> None:
    vector = saved(np.zeros(512, np.float32))
    samples = [
        {"__key__": "decoded", "npy": saved(IMAGE), "cls": b"1"},
        {"__key__": "both", "jpg": jpeg(40, 50), "npy": saved(IMAGE)},
        {"__key__": "embedding", "npy": vector, "txt": b"no image"},
        {"__key__": "beside", "jpg": jpeg(40, 50), "npy": vector},
    ]
    index = open_index(write_shard(tmp_path / "a.tar", samples))
    assert [index.key(row) for row in range(len(index))] == ["decoded", "both", "beside"]
    images = [index.extensions[number] for number in index.image_extensions()]
    assert list(zip(index.column("height"), index.column("width"), images, strict=True)) == [
        (5, 7, "npy"),
        (40, 50, "jpg"),
        (40, 50, "jpg"),
    ]
    assert index.counts["decoded"] == 1
    assert [item.name for item in index.left_out] == ["embedding.npy", "embedding.txt"]
