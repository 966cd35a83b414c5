"""The gate: what may go to DALI."""

import io
import re
import struct
import zlib

import numpy as np
import pytest
from bad_images import (
    PNG,
    PROGRESSIVE,
    WEBP_X,
    chunk,
    claiming,
    frame_as,
    hostile,
    inserted,
    of_scans,
    patched,
    png_claiming,
    without,
    without_last,
)
from making import encoded, jpeg, picture
from PIL import Image
from verdicts import verdict

from gpuloader.images.gate import admit
from gpuloader.images.jpeg import MAX_SCANS
from gpuloader.images.limits import MAX_ENCODED_BYTES, MAX_PIXELS

GOOD = jpeg(60, 80)
SCAN = b"\xff\xda"
THUMBNAIL = inserted(GOOD, 0xE1, jpeg(16, 16))
"""A JPEG with another one, end marker included, in its header."""


def check(data: bytes) -> tuple[int, int] | str:
    admitted = verdict(admit, np.frombuffer(data, np.uint8))
    return admitted if isinstance(admitted, str) else admitted[1]


@pytest.mark.parametrize(
    "data",
    [
        GOOD,
        jpeg(60, 80, subsampling="4:4:4"),
        encoded(picture(60, 80), "JPEG", progressive=True),
        encoded(picture(60, 80).convert("L"), "JPEG"),
        encoded(picture(60, 80).convert("CMYK"), "JPEG"),
        encoded(picture(60, 80), "PNG"),
        encoded(picture(60, 80).convert("RGBA"), "PNG"),
        encoded(Image.fromarray(np.zeros((60, 80), np.uint16)), "PNG"),
        encoded(picture(60, 80), "WEBP"),
        GOOD + b"trailing bytes",  # common, harmless, and the reason to look for the end marker backwards
        GOOD + bytes(100),
        THUMBNAIL,
        GOOD[:2] + b"\xff" * 100_000 + GOOD[2:],  # fill bytes are no segments
        GOOD[:20] + bytes(4096) + GOOD[20:],  # nor are stray bytes behind the first segment
        GOOD[:2] + b"\xff\xfe\x00\x02" * 4000 + GOOD[2:],
        frame_as(without(GOOD, 0xC4), 0xC9),  # arithmetic coding needs no table
        # An EXIF orientation is not applied: these are the sizes that a crop counts in.
        encoded(
            picture(60, 80), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
        ),
    ],
)
def test_images_pass_with_their_size(data: bytes) -> None:
    assert check(data) == (60, 80)


def test_a_jpeg_is_copied_only_if_it_is_cmyk_without_the_marker_of_adobe() -> None:
    cmyk = encoded(picture(60, 80).convert("CMYK"), "JPEG")
    for data in (GOOD, PROGRESSIVE, THUMBNAIL, encoded(picture(60, 80).convert("L"), "JPEG"), cmyk):
        file = np.frombuffer(data, np.uint8)
        assert admit(file)[0] is file
    assert admit(np.frombuffer(without(cmyk, 0xEE), np.uint8))[0].tobytes() == cmyk


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "the file is empty"),
        (b"<!DOCTYPE html><html>404</html>", "no image format that DALI reads"),
        (np.random.default_rng(0).bytes(1000), "no image format that DALI reads"),
        (GOOD[:2], "broken header"),
        (GOOD[:100], "broken header"),
        (GOOD[:-2], "it has no end-of-image marker"),
        (THUMBNAIL[:-20], "it has no end-of-image marker"),
        (GOOD[:2] + b"\0\1\2" + GOOD[2:], "3 stray bytes before the marker 0xe0"),  # Pillow refuses it, too
        (GOOD[:2] + b"\0" + without(GOOD, 0xE0)[2:], "1 stray byte before the marker 0xdb"),
        (GOOD[:20] + bytes(4097) + GOOD[20:], "more than 4,096 stray bytes"),
        (GOOD[:20] + bytes(1_000_000) + GOOD[20:], "more than 4,096 stray bytes"),
        (claiming(GOOD, 0, 80), "header"),
        (claiming(GOOD, 32_000, 32_000), f"32000x32000 pixels, more than {MAX_PIXELS:,}"),
        (png_claiming(PNG, 60_000, 50_000), f"50000x60000 pixels, more than {MAX_PIXELS:,}"),
        (png_claiming(PNG, 2, 2**18), "262144x2 pixels, a side of more than 262,143"),
    ],
)
def test_what_dali_would_not_survive_is_refused(data: bytes, cause: str) -> None:
    refusal = check(data)
    assert isinstance(refusal, str)
    assert cause in refusal


@pytest.mark.parametrize(
    ("data", "max_pixels", "cause"),
    [
        (GOOD, 60 * 80, None),
        (GOOD, 60 * 80 - 1, "80x60 pixels, more than the recipe's 4,799: set `max_pixels: 4800`"),
        (jpeg(80, 60), 60 * 80 - 1, "60x80 pixels, more than the recipe's 4,799: set `max_pixels: 4800`"),
        # What no recipe can allow is said without it.
        (claiming(GOOD, 32_000, 32_000), 50, f"32000x32000 pixels, more than {MAX_PIXELS:,}"),
        *(
            (encoded(picture(60, 80), pillows_name, **options), 5000, f"a {title} image: recipes decode JPEG")
            for pillows_name, title, options in (
                *(("TIFF", "TIFF", {}), ("TIFF", "TIFF", {"big_tiff": True}), ("BMP", "BMP", {}), ("PPM", "PNM", {})),
                *(("JPEG2000", "JPEG 2000", {}), ("JPEG2000", "JPEG 2000", {"no_jp2": True})),
            )
        ),
    ],
)
def test_what_a_recipe_does_not_allow_is_refused(data: bytes, max_pixels: int, cause: str | None) -> None:
    said = verdict(admit, np.frombuffer(data, np.uint8), max_pixels)
    if cause is None:
        assert said[1] == (60, 80)
    else:
        assert isinstance(said, str)
        assert re.search(cause, said)


@pytest.mark.parametrize(
    ("data", "table"),
    [
        (without(GOOD, 0xDB), "quantisation table 0"),
        (without_last(GOOD, 0xDB), "quantisation table 1"),
        (patched(GOOD, GOOD.index(b"\xff\xc0") + 12, b"\xff"), "quantisation table 255"),
        (frame_as(without(GOOD, 0xDB), 0xC9), "quantisation table 0"),  # arithmetic coding needs them too
        (without(GOOD, 0xC4), "DC Huffman table 0"),
        (without_last(GOOD, 0xC4), "AC Huffman table 1"),
        (without_last(without_last(GOOD, 0xC4), 0xC4), "DC Huffman table 1"),
        (without(PROGRESSIVE, 0xC4), "DC Huffman table 0"),
        (of_scans(3, tables=1, tables_before_scan=2), "DC Huffman table 1"),
        (frame_as(of_scans(3, tables=1, tables_before_scan=2), 0xC9), "quantisation table 1"),
    ],
)
def test_a_jpeg_that_uses_a_table_which_it_does_not_define_is_refused(data: bytes, table: str) -> None:
    # A decoder that keeps the tables of the image before would decode it to other pixels each time.
    assert check(data) == f"a JPEG without the {table}, which it uses"


@pytest.mark.parametrize("data", [of_scans(3), of_scans(3, tables=1, tables_before_scan=1), PROGRESSIVE])
def test_a_table_may_be_defined_between_scans(data: bytes) -> None:
    assert check(data) == (64, 96)


def test_a_progressive_jpeg_without_some_of_its_tables_passes_where_pillow_decodes_it() -> None:
    places = [found.start() for found in re.finditer(b"\xff\xc4", PROGRESSIVE)]
    passed = []
    for place in places:
        end = place + 2 + int.from_bytes(PROGRESSIVE[place + 2 : place + 4], "big")
        data = PROGRESSIVE[:place] + PROGRESSIVE[end:]
        passed.append(check(data) == (64, 96))
        assert passed[-1] == is_decoded_by_pillow(data)
    assert set(passed) == {True, False}  # a table may be that of an earlier scan, if there was one


def is_decoded_by_pillow(data: bytes) -> bool:
    try:
        Image.open(io.BytesIO(data)).load()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("segment", [b"\xff\xfe\x00\x02", b"\xff\xd0"])
def test_a_file_of_segments_alone_is_refused(segment: bytes) -> None:
    assert check(GOOD[:2] + 5000 * segment + GOOD[2:]) == "a JPEG of more than 4,096 segments"


def test_segments_between_scans_count() -> None:
    data = of_scans(3)
    last_scan = data.rindex(b"\xff\xda")
    assert check(data[:last_scan] + 4000 * b"\xff\xfe\x00\x02" + data[last_scan:]) == (64, 96)
    many = check(data[:last_scan] + 5000 * b"\xff\xfe\x00\x02" + data[last_scan:])
    assert many == "a JPEG of more than 4,096 segments"


@pytest.mark.parametrize(
    "data",
    [
        # What looks like scans in a comment, and those of another image behind the end, as some cameras write it.
        of_scans(3).replace(SCAN, b"\xff\xfe\x01\x92" + 200 * SCAN + SCAN),
        of_scans(3) + of_scans(100),
    ],
)
def test_only_the_scans_of_the_image_count(data: bytes) -> None:
    assert check(data) == (64, 96)


@pytest.mark.parametrize(
    "data",
    [
        of_scans(3).replace(SCAN, b"\xff\xd8" + SCAN).replace(b"\xff\xd8" + SCAN, SCAN, 1),  # not before the first
        PROGRESSIVE[:-20] + b"\xff\xd8" + PROGRESSIVE[-20:],
    ],
)
def test_an_image_that_begins_within_another_is_refused(data: bytes) -> None:
    assert not is_decoded_by_pillow(data)
    assert check(data) == "a JPEG with another start-of-image marker"


def test_a_scan_bomb_is_refused() -> None:
    assert check(of_scans(100)) == (64, 96)
    assert check(of_scans(101)) == "a JPEG of 101 scans, more than 100"
    progressive = encoded(picture(60, 80), "JPEG", progressive=True)
    last_scan = progressive[progressive.rindex(b"\xff\xda") : -2]
    assert check(progressive[:-2] + 10 * last_scan + b"\xff\xd9") == (60, 80)
    refusal = check(progressive[:-2] + MAX_SCANS * last_scan + b"\xff\xd9")
    assert isinstance(refusal, str)
    assert "scans, more than 100" in refusal


@pytest.mark.parametrize("coding", [0xC0, 0xC1, 0xC9])
def test_scans_count_whatever_their_components_are_called(coding: int) -> None:
    for names in (b"\1\1\1", b"\1\1\2", b"\2\1\1"):
        assert check(frame_as(of_scans(100, names=names), coding)) == (64, 96)
        assert check(frame_as(of_scans(101, names=names), coding)) == "a JPEG of 101 scans, more than 100"
    large = claiming(frame_as(of_scans(100, names=b"\1\1\1"), coding), 5000, 5000, coding)
    assert check(large) == "a JPEG of 25,000,000 pixels times 100 scans, more than 2,000,000,000"


@pytest.mark.parametrize("coding", range(16))
def test_only_frames_are_accepted_that_all_decoders_know(coding: int) -> None:
    if coding in (4, 8, 12):  # no frames
        return
    data, frame = (PROGRESSIVE, 0xC2) if coding in (2, 10) else (GOOD, 0xC0)
    said = check(frame_as(data, 0xC0 + coding, frame))
    if coding in (0, 1, 2, 9, 10):
        assert not isinstance(said, str)
    else:
        assert said == f"a JPEG with a frame SOF{coding}: allowed are SOF0, SOF1, SOF2, SOF9 and SOF10"


@pytest.mark.parametrize("coding", [0xC0, 0xC1, 0xC2, 0xC9, 0xCA])
def test_only_8_bits_per_sample_are_accepted(coding: int) -> None:
    data = frame_as(PROGRESSIVE, coding, 0xC2) if coding in (0xC2, 0xCA) else frame_as(GOOD, coding)
    place = data.index(bytes([0xFF, coding])) + 4
    for bits in (2, 7, 9, 12, 16):
        said = check(patched(data, place, bytes([bits])))
        assert isinstance(said, str)
    # The parser refuses the others of them itself.
    assert check(patched(data, place, b"\x0c")) == "a JPEG of 12 bits per sample: allowed are 8"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("jpeg-large-of-many-scans", "a JPEG of 21,160,000 pixels times 98 scans, more than 2,000,000,000"),
        ("png-chunk-behind-file", "a PNG that ends within its chunk b'IDAT'"),
        ("png-end-behind-file", "a PNG that ends within its chunk b'IEND'"),
        ("png-77-bytes", "a PNG that ends within its chunk b'IDAT'"),
        ("png-exif-behind-file", "a PNG that ends within its chunk b'eXIf'"),
        ("png-data-behind-its-rows", "a PNG of 96x64 pixels with more data than they need"),
        ("webp-exif-behind-file", "a WebP that ends within its chunk b'EXIF'"),
    ],
)
def test_what_a_header_claims_is_bounded_by_the_files_bytes(name: str, cause: str) -> None:
    assert str(check(hostile()[name])).startswith(cause)


@pytest.mark.parametrize(
    "data",
    [
        PNG[:-4],  # readers stop at the name of the last chunk
        PNG + struct.pack(">I4s", 0xFFFFFFFF, b"eXIf"),  # nor do they look behind it
        PNG[:33] + 20_000 * chunk(b"abCd", b"") + PNG[33:],
        # As stored as it can be: what deflate adds to 18 kB of rows, and the spare on top of that.
        PNG[:33] + chunk(b"IDAT", zlib.compress(64 * bytes(1 + 3 * 96), 0) + bytes(60_000)) + chunk(b"IEND", b""),
        WEBP_X + struct.pack("<4sI", b"EXIF", 0xFFFFFFFF),  # not looked for, where the header says that there is none
    ],
    ids=range(5),
)
def test_what_is_odd_but_whole_passes(data: bytes) -> None:
    assert check(data) == (64, 96)


def test_a_file_of_more_than_256_mib_is_refused() -> None:
    data = np.zeros(MAX_ENCODED_BYTES + 1, np.uint8)  # no memory is taken until it is written to
    data[:3] = tuple(b"\xff\xd8\xff")
    assert verdict(admit, data) == "it has 268,435,457 bytes, more than 268,435,456"


def test_every_cut_of_a_jpeg_is_refused() -> None:
    image = jpeg(40, 40)
    for end in range(len(image) - 1):
        assert isinstance(check(image[:end]), str), end
