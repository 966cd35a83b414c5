"""Helpers that make the data which tests read."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from webdataset import TarWriter

SIZES = ((60, 80), (80, 60), (64, 64), (48, 97), (33, 51))


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """A smooth colour picture with some texture, another one for each seed."""
    rng = np.random.default_rng(seed)
    few = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    smooth = np.asarray(few.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    return Image.fromarray((smooth + rng.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8))


def jpeg(height: int, width: int, seed: int = 0, quality: int = 90, subsampling: str = "4:2:0") -> bytes:
    """A picture as a JPEG of Pillow's."""
    return encoded(picture(height, width, seed), "JPEG", quality=quality, subsampling=subsampling)


def damaged_jpeg() -> bytes:
    """A JPEG that the gate lets pass and the decoder does not: its table of Huffman codes is impossible."""
    data = bytearray(jpeg(64, 64))
    table = data.index(b"\xff\xc4")
    data[table + 5 : table + 21] = bytes([255] * 16)
    return bytes(data)


def encoded(image: Image.Image, image_format: str, **options: object) -> bytes:
    """An image in one of Pillow's formats."""
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


def write_shard(path: Path, samples: Iterable[dict[str, bytes | str]]) -> Path:
    """A shard as WebDataset writes it; samples are like `{"__key__": "000001", "jpg": b"...", "cls": b"3"}`."""
    with TarWriter(str(path), encoder=False, mtime=0) as writer:
        for sample in samples:
            writer.write(sample)
    return path


def write_samples(
    folder: Path, count: int, shards: int = 2, sizes: Sequence[tuple[int, int]] = SIZES, seed: int = 0
) -> list[Path]:
    """Labelled shards train-0000.tar, ...; sample i has key f"{i:06d}", label i % 10 and the i-th size, in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = [
        {
            "__key__": f"{i:06d}",
            "jpg": jpeg(*sizes[i % len(sizes)], seed=seed * 1_000_003 + i),
            "cls": b"%d" % (i % 10),
            "json": json.dumps({"label": i % 10, "k": f"{i:06d}"}).encode(),
        }
        for i in range(count)
    ]
    bounds = [count * shard // shards for shard in range(shards + 1)]
    return [
        write_shard(folder / f"train-{shard:04d}.tar", samples[bounds[shard] : bounds[shard + 1]])
        for shard in range(shards)
    ]


def write_decoded(folder: Path, shards: Iterable[Path]) -> list[Path]:
    """The same members, each JPEG decoded by Pillow into a `.npy`."""
    copies = []
    for shard in shards:
        with tarfile.open(shard) as source, tarfile.open(folder / shard.name, "w") as copy:
            for member in source:
                data = source.extractfile(member).read()
                if member.name.endswith(".jpg"):
                    member.name, data = member.name.replace(".jpg", ".npy"), saved(Image.open(io.BytesIO(data)))
                member.size = len(data)
                copy.addfile(member, io.BytesIO(data))
        copies.append(folder / shard.name)
    return copies


def saved(array: object, version: tuple[int, int] | None = None) -> bytes:
    """What `numpy.save` writes."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), version)
    return file.getvalue()


def unpack(shards: Iterable[Path], folder: Path) -> Path:
    """A folder with the members of shards as files."""
    for shard in shards:
        with tarfile.open(shard) as tar:
            tar.extractall(folder, filter="data")
    return folder


def tar_by_command(folder: Path, path: Path, *options: str) -> Path:
    """What `tar -cf path -C folder .` makes of a folder."""
    subprocess.run(["tar", *options, "-cf", path, "-C", folder, "."], check=True)
    return path


def tar_of(folder: Path, path: Path) -> Path:
    """The tar that a folder is read as."""
    return tar_by_command(folder, path, "-h", "--hard-dereference", "--sort=name")


def write_tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Files at their paths below a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
