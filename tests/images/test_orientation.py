"""EXIF's orientation in an image's first bytes, against Pillow's `getexif`."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from bad_images import GOOD, PNG, chunk, inserted, inserted_chunk
from making import write_shard
from PIL import Image

from gpuloader.images.orientation import MAX_CHUNKS, MAX_ENTRIES, image_orientation
from gpuloader.shards.scan import scan

ORIENTATION = 0x0112
FORMATS = {
    "jpg": {"format": "JPEG"},
    "png": {"format": "PNG"},
    "webp": {"format": "WEBP"},
    "lossless.webp": {"format": "WEBP", "lossless": True},
}


def orientation(data: bytes, most_reads: int = 10_000) -> int:
    reads = iter(range(most_reads))

    def read(count: int, offset: int) -> bytes:
        assert count >= 0
        assert offset >= 0
        next(reads)
        return data[offset : offset + count]

    return image_orientation(read)


def by_pillow(data: bytes) -> int:
    with Image.open(io.BytesIO(data)) as image:
        return int(image.getexif().get(ORIENTATION, 0))


def picture(kind: str, value: int | None, **tags: object) -> bytes:
    """A picture of this format, with this orientation and other tags."""
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "a maker of cameras", "a model"  # texts before the orientation, and behind all tags
    exif[0x8769] = {0x9003: "2026:11:23 02:00:00"}
    if value is not None:
        exif[ORIENTATION] = value
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    Image.fromarray(noise).save(file, exif=exif, **FORMATS[kind], **tags)  # type: ignore[arg-type]
    return file.getvalue()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("value", [None, *range(1, 9)])
def test_it_is_pillows(kind: str, value: int | None) -> None:
    data = picture(kind, value)
    assert orientation(data) == by_pillow(data) == (value or 0)


@pytest.mark.parametrize("kind", FORMATS)
def test_an_image_without_exif_has_none(kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (32, 24)).save(file, **FORMATS[kind])  # type: ignore[arg-type]
    assert orientation(file.getvalue()) == by_pillow(file.getvalue()) == 0


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
def test_a_profile_before_it_changes_nothing(kind: str) -> None:
    data = picture(kind, 6, icc_profile=bytes(100_000))
    assert orientation(data) == by_pillow(data) == 6


def tiff(order: str = "<", kind: int = 3, count: int = 1, value: int = 6, entries: int = 1, at: int = 8) -> bytes:
    """EXIF data of one directory, whose last entry is the orientation."""
    values = (value,) if kind == 4 else (value, 0)
    mark = {"<": b"II", ">": b"MM"}[order]
    packed = struct.pack(f"{order}HI", kind, count) + struct.pack(f"{order}I" if kind == 4 else f"{order}HH", *values)
    others = struct.pack(f"{order}HHII", 0x0100, 4, 1, 32) * (entries - 1)
    directory = struct.pack(f"{order}H", entries) + others + struct.pack(f"{order}H", ORIENTATION) + packed + bytes(4)
    return mark + struct.pack(f"{order}HI", 42, at) + bytes(at - 8) + directory


def in_jpeg(exif: bytes) -> bytes:
    return inserted(GOOD, 0xE1, b"Exif\0\0" + exif)


def in_png(exif: bytes) -> bytes:
    return inserted_chunk(b"eXIf", exif)


@pytest.mark.parametrize(
    ("exif", "expected"),
    [
        (tiff("<"), 6),
        (tiff(">"), 6),
        (tiff(">", kind=4), 6),
        (tiff(at=1000), 6),
        (tiff(entries=200), 6),
        (tiff(value=0), 0),
        (tiff(value=1), 1),
        (tiff(kind=2), 0),  # a text
        (b"Exif\0\0" + tiff(), 6),  # once more
        (tiff()[:20], 0),  # cut within the entry
        (b"", 0),
        (b"II", 0),
        (b"XX" + tiff()[2:], 0),
        (b"II\x2b\0" + tiff()[4:], 0),  # as BigTIFF, but it is none
    ],
)
@pytest.mark.parametrize("put", [in_jpeg, in_png])
@pytest.mark.filterwarnings("ignore")  # Pillow's, of what it does not understand
def test_what_exif_data_may_look_like(put: Callable[[bytes], bytes], exif: bytes, expected: int) -> None:
    assert orientation(put(exif)) == expected
    assert not expected or by_pillow(put(exif)) == expected


@pytest.mark.parametrize("value", [9, 255, 65535])
def test_a_value_that_has_no_meaning_is_not_known(value: int) -> None:
    assert orientation(in_jpeg(tiff(value=value))) == 0


def test_of_several_segments_the_first_counts() -> None:
    data = in_jpeg(tiff(value=3))
    both = data[:2] + in_jpeg(tiff(value=8))[2:-2] + data[2:]
    assert orientation(both) == by_pillow(both) == 8


def test_what_stands_behind_a_pngs_pixels_is_not_read() -> None:
    data = PNG[:-12] + chunk(b"eXIf", tiff()) + PNG[-12:]
    assert by_pillow(data) == 6
    assert orientation(data, most_reads=10) == 0


# Hostile data.


def test_a_directory_of_many_entries_is_bounded() -> None:
    assert orientation(in_png(tiff(entries=MAX_ENTRIES)), most_reads=MAX_ENTRIES + 20) == 6
    assert orientation(in_png(tiff(entries=65_535)), most_reads=MAX_ENTRIES + 20) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n" + b"\0\0\0\0tEXt\0\0\0\0" * 100_000,
        b"RIFF\xff\xff\xff\xffWEBPVP8X\x0a\0\0\0\x08" + bytes(9) + b"JUNK\0\0\0\0" * 100_000,
        b"\xff\xd8" + b"\xff\xe1\0\x02" * 100_000,
        b"\xff\xd8" + b"\xff" * 1_000_000,
    ],
    ids=["chunks of a PNG", "chunks of a WebP", "segments", "fill bytes"],
)
def test_a_file_of_nothing_but_parts_is_bounded(data: bytes) -> None:
    assert orientation(data, most_reads=2 * 4096 + MAX_CHUNKS) == 0


def test_offsets_that_lead_elsewhere_are_not_followed() -> None:
    inside = in_jpeg(tiff(at=8))
    place = inside.index(b"II*\0") + 4
    for offset in (0, 7, 9, 100, 65_535, 2**31, 2**32 - 1):
        data = inside[:place] + struct.pack("<I", offset) + inside[place + 4 :]
        assert orientation(data, most_reads=MAX_ENTRIES + 20) in range(9)


# In the index.


def test_the_index_has_it(tmp_path: Path) -> None:
    def samples() -> Iterator[dict[str, bytes | str]]:
        for number, kind in enumerate(FORMATS):
            yield {"__key__": f"{number}", kind.rpartition(".")[2]: picture(kind, number % 8 + 1), "cls": b"77"}
        yield {"__key__": "none", "jpg": b"x"}
        large = picture("webp", 5)  # what stands behind its pixels is not in the bytes that a scan has
        yield {"__key__": "far", "webp": large, "cls": b"1"}

    index = scan(write_shard(tmp_path / "a.tar", list(samples())))
    assert index.column("orientation").tolist() == [1, 2, 3, 4, 0, 5]
    assert index.column("label").tolist()[:4] == [77] * 4


def test_stray_bytes_before_it_change_nothing() -> None:
    data = picture("jpg", 6).replace(b"\xff\xe1", b"\0\1\xff\0\xff\xe1", 1)
    data = data[:2] + b"\xff\xfe\0\2" + data[2:]  # behind the first marker, where Pillow skips them
    assert orientation(data) == by_pillow(data) == 6
