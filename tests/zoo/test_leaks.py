"""Images that lack data never show what a decoder made of an image before: what comes does not depend on others."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from bad_images import (
    GOOD,
    HEIGHT,
    PNG,
    PROGRESSIVE,
    RESTARTS,
    WEBP,
    WIDTH,
    chunk,
    frame_as,
    good_kinds,
    half,
    interlaced_png,
    of_scans,
    without,
    zoo,
)
from delivering import deliver, process
from making import encoded, write_shard
from PIL import Image

LOSSLESS = encoded(Image.new("RGB", (WIDTH, HEIGHT)), "WEBP", lossless=True)
SHORT = zlib.compress(b"\0" + bytes(3 * WIDTH))  # one row

ODD = {
    **{kind.name: kind.data for kind in good_kinds()},
    **{kind.name: kind.data for kind in zoo() if kind.name.startswith("png-animated")},
    "png-one-row": PNG[:33] + chunk(b"IDAT", SHORT) + PNG[-12:],
    "png-one-row-interlaced": interlaced_png()[:33] + chunk(b"IDAT", SHORT) + PNG[-12:],
    "png-no-row": PNG[:33] + chunk(b"IDAT", zlib.compress(b"")) + PNG[-12:],
    "jpeg-ends-in-the-middle": half(GOOD) + b"\xff\xd9",
    "jpeg-of-one-scan-of-many": PROGRESSIVE[: PROGRESSIVE.index(b"\xff\xda", PROGRESSIVE.index(b"\xff\xda") + 2)]
    + b"\xff\xd9",
    "jpeg-of-one-component-of-three": of_scans(1),
    "jpeg-without-a-restart": RESTARTS.replace(b"\xff\xd2", b""),
    "jpeg-arithmetic-cut": frame_as(without(GOOD, 0xC4), 0xC9)[:-500] + b"\xff\xd9",
    "webp-half": half(WEBP),
    "webp-lossless-half": half(LOSSLESS),
}
FORMATS = {"jpeg": "JPEG", "webp": "WEBP", "png": "PNG"}


def shard(path: Path, colour: str, names: list[str]) -> Path:
    """The odd images, each behind one of a colour in the same format."""
    plain = {
        name: encoded(Image.new("RGB", (WIDTH, HEIGHT), colour), FORMATS[name.partition("-")[0]]) for name in names
    }
    samples = [
        ({"__key__": f"plain-{name}", "jpg": plain[name]}, {"__key__": name, "jpg": ODD[name]}) for name in names
    ]
    return write_shard(path, [sample for pair in samples for sample in pair])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, np.ndarray | None]]:
    """What comes of each odd image among white and among dark ones, in two splits; None if it is bad."""
    folder, names = tmp_path_factory.mktemp("leaks"), list(ODD)
    keys = [key for name in names for key in (f"plain-{name}", name)]
    results = []
    with process() as executor:
        for batch_size, order in ((8, names), (5, names[::-1])):
            for colour in ("white", "#023c09"):
                tar = shard(folder / f"{colour}{batch_size}.tar", colour, order)
                options = {"on_error": {"replace": True, "max_share": 1}}
                run = executor.submit(deliver, [tar], batch_size, keys, **options).result()
                assert sum(run.rows) == len(keys)
                images = dict(run.images)
                results.append({name: images.get(name) for name in names})
    return results


@pytest.mark.slow(kept=0)
def test_an_image_comes_the_same_or_is_bad_whatever_was_decoded_before(
    runs: list[dict[str, np.ndarray | None]],
) -> None:
    for name in ODD:
        first, *others = (run[name] for run in runs)
        for other in others:
            assert (first is None) == (other is None), name
            assert first is None or np.array_equal(first, other), name
    for lacks_rows in ("png-animated-without-data", "png-no-row", "png-one-row"):
        assert [run[lacks_rows] for run in runs] == [None] * 4
