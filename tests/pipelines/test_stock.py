"""The pipeline that users compare with."""

from __future__ import annotations

import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from making import encoded, write_shard
from PIL import Image

from gpuloader.pipelines.stock import stock_batches

COLOURS = [(255, 0, 0), (10, 200, 100), (128, 128, 128)]


def test_its_images_are_those_of_the_shards_normalised(tmp_path: Path) -> None:
    """Any crop of one colour has this colour. The index says where the tar has the images, as DALI's `wds2idx` does."""
    files = [encoded(Image.new("RGB", (60, 40), colour), "JPEG", quality=100, subsampling=0) for colour in COLOURS]
    shard = write_shard(
        tmp_path / "a.tar", ({"__key__": f"{n}", "cls": b"1", "jpg": jpg} for n, jpg in enumerate(files))
    )
    with tarfile.open(shard) as tar:
        lines = [f"jpg {each.offset_data} {each.size} {each.name}" for each in tar if each.name.endswith("jpg")]
    index = tmp_path / "a.idx"
    index.write_text("\n".join(["v1.2 3", *lines, ""]))
    images = torch.cat([*islice(stock_batches([shard], [index], 3, 1, None), 4)])
    assert (images.shape, images.dtype) == ((12, 3, 224, 224), torch.float32)
    levels = 255 * (images.numpy().transpose(0, 2, 3, 1) * [0.229, 0.224, 0.225] + [0.485, 0.456, 0.406])
    found = np.rint(levels.mean((1, 2)))
    assert np.abs(levels - found[:, None, None]).max() < 1.5
    for row in found:
        assert min(np.abs(row - colour).max() for colour in COLOURS) <= 2
