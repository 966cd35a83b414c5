"""Shards with smaller copies, read by Hugging Face's `datasets`, which takes each component by its extension."""

from __future__ import annotations

from pathlib import Path

import pytest
from making import encoded, picture, write_shard

from gpuloader.pack import pack

datasets = pytest.importorskip("datasets", reason="scripts/test_integrations installs it")


def test_it_reads_pictures_and_mipmaps(tmp_path: Path) -> None:
    images = [encoded(picture(120, 160, seed), "JPEG") for seed in range(4)]
    write_shard(
        tmp_path / "a.tar", [{"__key__": f"{n}", "jpg": each, "cls": b"%d" % n} for n, each in enumerate(images)]
    )
    pack(tmp_path / "a.tar", tmp_path / "packed", mipmaps=(64,), shuffle=False)
    [tar] = (tmp_path / "packed").glob("*.tar")
    read = datasets.load_dataset(
        "webdataset", data_files=str(tar), split="train", cache_dir=str(tmp_path / "cache"), streaming=True
    )
    samples = list(read)
    assert [sample["jpg"].size for sample in samples] == [(160, 120)] * 4
    assert [sample["cls"] for sample in samples] == [0, 1, 2, 3]
    assert all(sample["mip64"][:2] == b"\xff\xd8" for sample in samples)
