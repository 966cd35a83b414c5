"""Makes shards of large pictures: about 3000 x 2000 pixels, JPEGs of quality 90, 1.5 to 3 MB each.

Smaller pictures, drawn or from shards, are enlarged and get fine noise like a sensor's. Without it, an enlarged picture
is smooth, and its JPEG far smaller than a photograph's.
"""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image
from systems.tars import Images
from webdataset import ShardWriter

from gpuloader.demo.pictures import sample

SHORTER, LONGER = 2000, 3000
QUALITY = 90
_NOISE_LEVELS = 9.0


def main() -> None:
    """Writes large-0000.tar and on."""
    parser = argparse.ArgumentParser(prog="scripts/bench/make_large", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder for the shards")
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--per-shard", type=int, default=128)
    parser.add_argument("--from", dest="source", nargs="+", type=Path, help="shards of photographs to enlarge")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    pictures = _pictures(arguments.source, arguments.count)
    pattern = str(arguments.folder / "large").replace("%", "%%") + "-%04d.tar"
    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads,
        ShardWriter(pattern, arguments.per_shard, verbose=0, mtime=0) as writer,
    ):
        for number, large in enumerate(threads.map(enlarged, range(arguments.count), pictures)):
            writer.write({"__key__": f"{number:06d}", "jpg": large, "cls": b"%d" % (number % 10)})


def _pictures(source: Sequence[Path] | None, count: int) -> Iterator[bytes]:
    """As many encoded pictures: those of the shards in turn, or drawn ones."""
    if source is None:
        return (_drawn(number) for number in range(count))
    images = Images(source)
    return (images[number % len(images)] for number in range(count))


def _drawn(number: int) -> bytes:
    picture = sample(0, number)["jpg"]
    assert isinstance(picture, bytes)
    return picture


def enlarged(number: int, picture: bytes) -> bytes:
    """The picture as a large JPEG, upright or lying as it was; the noise is another for each number."""
    small = Image.open(io.BytesIO(picture)).convert("RGB")
    size = (LONGER, SHORTER) if small.width >= small.height else (SHORTER, LONGER)
    values = np.asarray(small.resize(size, Image.Resampling.BICUBIC), np.float32)
    noise = np.random.default_rng(number).standard_normal(values.shape, dtype=np.float32)
    file = io.BytesIO()
    Image.fromarray((values + _NOISE_LEVELS * noise).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


if __name__ == "__main__":
    main()
