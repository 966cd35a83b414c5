"""What a decoder gets of a PNG, and which PNGs it never gets. Pillow is the oracle of the pixels."""

from __future__ import annotations

import io
import re
import struct
import warnings
import zlib

import numpy as np
import pytest
from bad_images import ALPHA, HEIGHT, PICTURE, PNG, WIDTH, chunk, good_kinds, inserted_chunk, interlaced_png
from making import encoded, jpeg
from PIL import Image
from verdicts import verdict

from gpuloader import Compose
from gpuloader.images import png
from gpuloader.images.gate import decoder_file
from gpuloader.images.png import check_data, decoder_png
from gpuloader.transforms import CenterCrop

SIGNATURE, END = PNG[:8], PNG[-12:]
PALETTE = encoded(PICTURE.convert("P"), "PNG", transparency=3)
ROWS = HEIGHT * (b"\0" + bytes(3 * WIDTH))
ANCILLARY = {
    b"gAMA": (1).to_bytes(4, "big"),
    b"sRGB": b"\0",
    b"cHRM": bytes(32),
    b"iCCP": b"a\0\0" + zlib.compress(bytes(200)),
    b"sBIT": b"\1\1\1",
    b"bKGD": bytes(6),
    b"pHYs": bytes(9),
    b"tIME": bytes(7),
    b"tEXt": b"a\0b",
    b"zTXt": b"a\0\0" + zlib.compress(bytes(9_000_000)),
    b"eXIf": b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0",
    b"abCd": bytes(100),
    b"acTL": struct.pack(">II", 2, 0),
    b"fcTL": struct.pack(">IIIIIHHBB", 0, 8, 8, 0, 0, 1, 10, 0, 0),
    b"fdAT": bytes(4) + zlib.compress(bytes(200)),
}


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def chunks(data: bytes) -> list[bytes]:
    """All chunks, with their lengths and checksums."""
    found, position = [], 8
    while position < len(data):
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        found.append(data[position:end])
        position = end
    return found


def made_of(*parts: bytes) -> bytes:
    return SIGNATURE + b"".join(parts)


def names(data: bytes) -> list[bytes]:
    return [each[4:8] for each in chunks(data)]


HEADER, *_ = chunks(PNG)
[DATA] = [each for each in chunks(PNG) if each[4:8] == b"IDAT"]
IDAT = DATA[8:-4]


def pillows(data: bytes) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


# --- what is left


@pytest.mark.parametrize("data", [PNG, PALETTE, encoded(ALPHA, "PNG"), interlaced_png(), PNG[:-4]])
def test_one_without_ancillary_chunks_is_not_copied(data: bytes) -> None:
    file = as_array(data)
    assert decoder_png(file) is file
    assert decoder_file(file) is file


@pytest.mark.parametrize("data", [jpeg(8, 8), b"", b"\x89", b"\x89PNG", PNG[:40], encoded(PICTURE, "WEBP")])
def test_only_whole_pngs_are_decoder_file(data: bytes) -> None:
    file = as_array(data)
    assert decoder_file(file) is file


@pytest.mark.parametrize("name", ANCILLARY)
@pytest.mark.parametrize("data", [PNG, PALETTE], ids=["rgb", "palette"])
def test_ancillary_chunks_are_dropped_wherever_they_stand(data: bytes, name: bytes) -> None:
    extra = chunk(name, ANCILLARY[name])
    parts = chunks(data)
    for place in range(1, len(parts)):
        file = made_of(*parts[:place], extra, extra, *parts[place:])
        assert decoder_png(as_array(file)).tobytes() == data
    assert decoder_file(as_array(made_of(parts[0], *[extra] * 3, *parts[1:]))).tobytes() == data


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (PNG + b"what is behind the end", PNG),
        (inserted_chunk(b"tEXt", b"a\0b") + bytes(1000), PNG),
        (made_of(HEADER, chunk(b"IDAT", b""), DATA, chunk(b"IDAT", b""), END), None),
        (made_of(HEADER, *(chunk(b"IDAT", IDAT[place : place + 9]) for place in range(0, len(IDAT), 9)), END), None),
        (made_of(HEADER, chunk(b"PLTE", bytes(6)), DATA, END), None),  # a suggestion, in a file with colours
        (made_of(HEADER, chunk(b"tRNS", bytes(6)), chunk(b"pHYs", bytes(9)), DATA, END), None),
        # A wrong checksum stays wrong: the decoder tells.
        (PNG[:-16] + b"abcd" + END, None),
        (inserted_chunk(b"tEXt", b"a\0b")[:-16] + b"abcd" + END, PNG[:-16] + b"abcd" + END),
    ],
    ids=range(8),
)
def test_what_is_left_stays_as_it_is(data: bytes, left: bytes | None) -> None:
    expected = made_of(*(each for each in chunks(left or data) if each[4:8] != b"pHYs"))
    assert decoder_png(as_array(data)).tobytes() == expected


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in good_kinds() if "png-" in kind.name])
def test_no_good_one_of_the_zoo_has_other_pixels_then(kind: object) -> None:
    file = decoder_png(as_array(kind.data)).tobytes()
    assert re.fullmatch(rb"(IHDR)(PLTE)?(tRNS)?(IDAT)+(IEND)", b"".join(names(file)))
    if kind.name.startswith("png-animated-") or "text" in kind.name:  # Pillow refuses some of these
        assert file == PNG
    else:
        assert np.array_equal(pillows(file), pillows(kind.data))
    assert decoder_png(as_array(file)).tobytes() == file


# What came of transparency before still comes: it is ignored.
@pytest.mark.parametrize("data", [PNG, PALETTE, encoded(ALPHA, "PNG"), encoded(PICTURE, "PNG", transparency=(1, 2, 3))])
def test_no_ancillary_chunk_changes_a_pixel_that_is_delivered(data: bytes) -> None:
    head, *rest = chunks(data)
    compose = Compose([CenterCrop((HEIGHT, WIDTH))], dtype="uint8")
    expected = pillows(data).transpose(2, 0, 1)
    extras = {name: content for name, content in ANCILLARY.items() if name not in (b"acTL", b"fcTL", b"fdAT")}
    files = [made_of(head, chunk(name, content), *rest) for name, content in extras.items()]
    assert all(np.array_equal(image, expected) for image in compose([data, *files]).numpy())


# --- what is refused

ORDER = "a PNG whose chunks are not IHDR, PLTE, tRNS, IDATs one behind the other, and IEND, in this order"


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (made_of(DATA, END), "a PNG that does not begin with the chunk IHDR"),
        (made_of(chunk(b"abCd", b""), HEADER, DATA, END), "a PNG that does not begin with the chunk IHDR"),
        (made_of(HEADER, HEADER, DATA, END), ORDER),
        (made_of(HEADER, DATA, HEADER, END), ORDER),
        (made_of(HEADER, END), ORDER),
        (made_of(HEADER, chunk(b"acTL", bytes(8)), chunk(b"fdAT", IDAT), END), ORDER),
        (made_of(HEADER, DATA, chunk(b"PLTE", bytes(6)), END), ORDER),
        (made_of(HEADER, chunk(b"tRNS", bytes(6)), chunk(b"PLTE", bytes(6)), DATA, END), ORDER),
        (made_of(HEADER, DATA, chunk(b"tRNS", bytes(6)), END), ORDER),
        (made_of(HEADER, DATA, chunk(b"tEXt", b"a\0b"), DATA, END), ORDER),
        (inserted_chunk(b"ABCD", b""), "a PNG with the critical chunk b'ABCD', which decoders do not know"),
        (made_of(HEADER, DATA), "a PNG that is cut: it has no chunk IEND"),
        (made_of(HEADER, DATA[:-5]), "a PNG that ends within its chunk b'IDAT', which is said to have"),
        (made_of(chunk(b"IHDR", HEADER[8:16] + b"\3" + HEADER[17:21]), DATA, END), "the colour type 2 with 3 bits"),
        (inserted_chunk(b"abCd", b"")[:33] + 100_000 * chunk(b"abCd", b"") + PNG[33:], "more than 100,000 chunks"),
    ],
    ids=range(15),
)
def test_what_is_not_in_order_is_refused(data: bytes, cause: str) -> None:
    said = verdict(decoder_png, as_array(data))
    assert isinstance(said, str)
    assert cause in said


def of_data(width: int, height: int, data: bytes, bits: int = 8, kind: int = 2, interlaced: bool = False) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, interlaced)
    return made_of(chunk(b"IHDR", header), chunk(b"IDAT", data), END)


@pytest.mark.parametrize(
    ("width", "height", "bits", "kind", "interlaced", "row_bytes"),
    [
        (500, 300, 8, 2, False, 300 * (1 + 1500)),
        (500, 300, 16, 6, False, 300 * (1 + 4000)),
        (501, 300, 1, 0, False, 300 * (1 + 63)),
        (501, 300, 4, 3, False, 300 * (1 + 251)),
        (8, 8, 8, 2, True, 8 * 8 * 3 + 15),
        (1, 1, 8, 2, True, 3 + 1),
        (64, 8000, 8, 0, True, 64 * 8000 + 1000 * 15),
    ],
)
def test_data_are_at_most_what_deflate_makes_of_the_rows(
    width: int, height: int, bits: int, kind: int, interlaced: bool, row_bytes: int
) -> None:
    most = row_bytes * 9 // 8 + 65_536
    whole, more = (of_data(width, height, bytes(size), bits, kind, interlaced) for size in (most, most + 1))
    decoder_png(as_array(whole))
    assert verdict(decoder_png, as_array(more)) == f"a PNG of {width}x{height} pixels with more data than they need"


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY])
def test_noise_is_never_too_much(level: int, strategy: int) -> None:
    noise = np.random.default_rng(0).integers(144, 256, (300, 1 + 3 * 500), np.uint8)  # 9 bits each in a fixed code
    packer = zlib.compressobj(level, strategy=strategy)
    noise[:, 0] = 0
    data = of_data(500, 300, packer.compress(noise.tobytes()) + packer.flush())
    assert decoder_png(as_array(data)).tobytes() == data
    assert verdict(check_data, as_array(data)) is None


# --- what the data unpack to


def packed(size: int) -> bytes:
    """Zeros; blocks of 1 MiB do not refer to each other, so one of them is repeated."""
    packer = zlib.compressobj(9)
    head = packer.compress(bytes(size % (1 << 20))) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + (size >> 20) * block + b"\1\0\0\xff\xff" + bytes(4)  # the last block, and a checksum


def in_chunks(data: bytes, size: int) -> bytes:
    """A PNG of 100 x 100 pixels, in whose IDATs these data are."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 100, 100, 8, 2, 0, 0, 0))
    return made_of(header, *(chunk(b"IDAT", data[place : place + size]) for place in range(0, len(data), size)), END)


@pytest.fixture
def excess(monkeypatch: pytest.MonkeyPatch) -> int:
    """The bound, a thousandth of what it is."""
    monkeypatch.setattr(png, "MOST_EXCESS_BYTES", 1_000_000)
    return 1_000_000


ROWS_OF_100 = 100 * 301
MORE = "a PNG of 100x100 pixels whose data unpack to more than their rows"


@pytest.mark.usefixtures("excess")
@pytest.mark.parametrize("size", [1 << 20, 300])
@pytest.mark.parametrize(
    ("unpacked", "cause"),
    [
        (ROWS_OF_100, None),
        (ROWS_OF_100 + 700_000, None),  # it is bounded without being unpacked
        (ROWS_OF_100 + 10_000_000, MORE),
        (ROWS_OF_100 + 100_000_000, MORE),
    ],
)
def test_data_that_unpack_to_far_more_than_their_rows_are_refused(size: int, unpacked: int, cause: str | None) -> None:
    file = as_array(in_chunks(packed(unpacked), size))
    assert decoder_png(file) is file
    assert verdict(check_data, file) == cause


@pytest.mark.usefixtures("excess")
def test_data_that_only_look_as_if_they_did_are_not_refused() -> None:
    noise = np.random.default_rng(0).bytes(ROWS_OF_100)
    rows = zlib.compress(noise)
    assert len(rows) * 1032 > 30 * 1_000_000
    for data in (
        rows,
        rows + bytes(10_000),  # behind the end of the stream nothing is unpacked
        rows[:20_000],  # cut: the decoder refuses it
        rows[:20_000] + b"\xff" * 10_000,  # damaged: the decoder refuses it
        zlib.compress(noise + bytes(60_000)),  # a little more than the rows
    ):
        assert verdict(check_data, as_array(in_chunks(data, 5000))) is None


def test_a_bomb_of_gigabytes_is_refused() -> None:
    file = as_array(of_data(1000, 1000, packed(3_001_000 + (2 << 30))))
    assert verdict(check_data, file) == "a PNG of 1000x1000 pixels whose data unpack to more than their rows"
