"""A batch: its images, labels and fields, and that they are those of the data."""

from __future__ import annotations

import gc
from pathlib import Path

import torch
from loaders import SAMPLES, evaluation, loader
from making import jpeg, tar_by_command
from packing import samples_of
from running import draw, run_graph

from gpuloader import Decoder


def test_every_key_and_label_is_webdatasets(shards: list[Path]) -> None:
    expected = samples_of(shards)
    with loader(shards, output="dict", last_batch="partial") as batches:
        seen = 0
        for batch in batches:
            for key, label, index in zip(batch["key"], batch["label"].tolist(), batch["index"].tolist(), strict=True):
                assert key == expected[index]["__key__"]
                assert label == int(expected[index]["cls"])
                seen += 1
    assert seen == SAMPLES


def test_shards_made_by_tar_are_read_as_webdataset_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    for i in range(12):
        path = folder / f"class{i % 3}" / (f"photo.{i}.JPG" if i % 2 else f"photo{i}.jpeg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(40, 50, seed=i))
    tar = tar_by_command(folder, tmp_path / "train.tar")
    expected = [sample["__key__"] for sample in samples_of([tar]) if {"jpg", "jpeg"} & set(sample)]
    with evaluation(tar, 5, output="dict", label_from="folder") as batches:
        delivered = [
            (key, label) for batch in batches for key, label in zip(batch["key"], batch["label"].tolist(), strict=True)
        ]
        assert batches.classes == ("class0", "class1", "class2")
    assert [key for key, _ in delivered] == expected
    assert [f"class{label}" for _, label in delivered] == [key.split("/")[1] for key in expected]


def test_the_pixels_are_those_of_the_sample_its_epoch_and_its_draws(shards: list[Path]) -> None:
    images = [sample["jpg"] for sample in samples_of(shards)]
    with loader(shards, output="dict") as batches:
        batches.set_epoch(3)
        for batch in batches:
            expected = run_graph(batches.preset, images, draw(batches.preset, images, epoch=3))
            assert torch.equal(batch["image"], expected[batch["index"]])


def test_a_batch_stays_as_it_is_while_it_is_held(shards: list[Path]) -> None:
    with evaluation(shards, 4) as batches:
        held = [(images, images.clone()) for _ in range(3) for images, _ in batches]
    gc.collect()
    assert all(torch.equal(images, copy) for images, copy in held)


def test_settings_of_the_decoder_reach_it_and_change_no_pixel(shards: list[Path]) -> None:
    with loader(shards) as batches:
        expected = torch.cat([images for images, _ in batches])
    with loader(shards, decoder=Decoder(hw_load=0.375, hybrid_huffman_threshold=123_456)) as batches:
        torch.testing.assert_close(torch.cat([images for images, _ in batches]), expected, rtol=0, atol=0)
