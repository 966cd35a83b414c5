"""A zoo of images: whole ones of every format and kind, and ones that are cut, damaged or something else altogether.

Every row says what the library owes it: "good", it is delivered, or "bad", it is replaced or raises. The rule is that
of Pillow, which opens and decodes a good one fully. Where the library is meant to differ, the row says why. Formats
that only `pack` decodes are in `rare_kinds`.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from making import damaged_jpeg, encoded, jpeg, picture
from PIL import Image

Verdict = Literal["good", "bad"]

HEIGHT, WIDTH = 64, 96


class Kind(NamedTuple):
    """A kind of image.

    Attributes:
        name: what it is, fit for a WebDataset key.
        data: the file.
        verdict: what the library owes it.
        levels: how far the pixels may be from Pillow's, of 255.
        unlike_pillow: why the verdict, or what comes out, is not Pillow's.
        shows: what comes out, where that is not what Pillow makes of the file.
    """

    name: str
    data: bytes
    verdict: Verdict
    levels: int = 1
    unlike_pillow: str = ""
    shows: Image.Image | None = None


@cache
def zoo() -> tuple[Kind, ...]:
    """All kinds that a loader may meet, good and bad, under unique names."""
    return _kinds({**_good_jpegs(), **_good_others()}, {**_bad_jpegs(), **_bad_others()})


@cache
def rare_kinds() -> tuple[Kind, ...]:
    """Kinds of TIFF, BMP, PNM and JPEG 2000, with what `pack` owes them."""
    return _kinds(_good_rare(), _bad_rare())


def _kinds(good: dict[str, bytes], bad: dict[str, bytes]) -> tuple[Kind, ...]:
    reasons = _reasons()
    return (
        *(Kind(name, data, "good", _LEVELS.get(name, 1), *reasons.get(name, ())) for name, data in good.items()),
        *(Kind(name, data, "bad", 0, *reasons.get(name, ())) for name, data in bad.items()),
    )


_LEVELS = dict.fromkeys(
    ("jpeg-cmyk", "jpeg-cmyk-no-adobe", "tiff-cmyk", "tiff-ycbcr"), 2
)  # one level more for another rounding on the way to RGB

_UNLIKE_PILLOW = {
    "rows that the crop does not need are not decoded, nor what comes behind them": "jpeg-cut-before-another",
    "libjpeg fills in standard tables, as Motion JPEG means; other decoders do not": (
        "jpeg-no-huffman jpeg-no-huffman-but-one"
    ),
    "each scan takes as long as the whole picture": "jpeg-scan-bomb jpeg-large-of-many-scans",
    "a decoder unpacks all that follows, however much that is": "png-data-behind-its-rows",
    "a decoder sets its length aside": "png-chunk-behind-file png-end-behind-file",
    "the parser sets its length aside": "webp-exif-behind-file",
    "DALI does not search for the next marker": "jpeg-app0-length-0 jpeg-app0-length-1",
    "the text is not unpacked": "png-text-bomb png-texts-of-gigabytes",
    "it is cut, though all pixels are there": "png-cut-end",
    "the checksum says that it is damaged": "png-bad-data-checksum",
    "there are rows missing": "png-taller-than-its-data",
    "there are no colours": "png-no-palette",
    "the chunk's name says that it must be understood": "png-critical-unknown-chunk",
    "DALI does not read it": "gif ico avif",
    "recipes do not decode it": "tiff bmp ppm jp2",
    "only the picture in IDAT is decoded": "png-animated-another-size png-animated-size-0",
    "chunks must be in order": "png-two-headers png-palette-behind-data png-data-apart",
}
"""Why a verdict is not Pillow's, with the names of the kinds."""


def _reasons() -> dict[str, tuple[str, Image.Image | None]]:
    high_bits = ("Pillow cuts 16-bit gray off at 255, the library keeps its high 8 bits", GRAY.convert("RGB"))
    return {
        **dict.fromkeys(("png-16-bit-gray", "tiff-16-bit", "jp2-16-bit-gray"), high_bits),
        **{name: (reason, None) for reason, names in _UNLIKE_PILLOW.items() for name in names.split()},
        "tiff-orientation-6": ("Pillow turns TIFF, and no other format; the library turns none", PICTURE),
    }


def good_kinds() -> tuple[Kind, ...]:
    return tuple(kind for kind in zoo() if kind.verdict == "good")


def bad_kinds() -> tuple[Kind, ...]:
    return tuple(kind for kind in zoo() if kind.verdict == "bad")


# --- what JPEGs are made of


def find(data: bytes, marker: int) -> int:
    """Where the first segment of a kind begins, at its 0xFF; segments are walked, not searched for."""
    position = 2
    while data[position + 1] != marker:
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return position


def patched(data: bytes, place: int, value: bytes) -> bytes:
    """Other bytes of the same number at a place."""
    return data[:place] + value + data[place + len(value) :]


def without(data: bytes, marker: int) -> bytes:
    """A JPEG without any segment of a kind in its header."""
    position, result = 2, data[:2]
    while data[position + 1] != 0xDA:
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        result += b"" if data[position + 1] == marker else data[position:end]
        position = end
    return result + (b"" if marker == 0xDA else data[position:])


def inserted(data: bytes, marker: int, content: bytes) -> bytes:
    """A JPEG with one more segment, right behind its beginning."""
    return data[:2] + bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content + data[2:]


def claiming(data: bytes, height: int, width: int, frame: int = 0xC0) -> bytes:
    """A JPEG whose frame header claims another size."""
    return patched(data, find(data, frame) + 5, height.to_bytes(2, "big") + width.to_bytes(2, "big"))


def frame_as(data: bytes, marker: int, frame: int = 0xC0) -> bytes:
    """A JPEG whose frame header says another coding."""
    return patched(data, find(data, frame), bytes([0xFF, marker]))


def of_bits(bits: int) -> bytes:
    """A JPEG whose frame header says so many bits to a sample."""
    return patched(GOOD, find(GOOD, 0xC0) + 4, bytes([bits]))


def turned(orientation: int = 6) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def scan_bomb(scans: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    last = PROGRESSIVE[PROGRESSIVE.rindex(b"\xff\xda") : -2]
    return PROGRESSIVE[:-2] + scans * last + b"\xff\xd9"


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


def of_scans(number: int, tables: int = 0, tables_before_scan: int = 0, names: bytes = b"\0\1\2") -> bytes:
    """A sequential JPEG of three equal components, of which each scan has one, in turn.

    All but the first component use the tables of that number, which are defined before the scan of that number.
    """
    gray = encoded(GRAY, "JPEG")
    frame, scan = find(gray, 0xC0), find(gray, 0xDA)
    quantisation, huffman = (gray[find(gray, marker) :] for marker in (0xDB, 0xC4))
    more = quantisation[:4] + bytes([tables]) + quantisation[5:69]
    for table in (huffman[:33], huffman[33:216]):  # DC and AC
        more += table[:4] + bytes([table[4] | tables]) + table[5:]
    numbers = [0, tables, tables]
    components = b"".join(bytes([names[each], 0x11, numbers[each]]) for each in range(3))
    data = gray[:frame] + segment(0xC0, gray[frame + 4 : frame + 9] + b"\x03" + components) + gray[frame + 13 : scan]
    for place in range(number):
        selected = bytes([1, names[place % 3], numbers[place % 3] * 0x11])
        data += more if place == tables_before_scan else b""
        data += segment(0xDA, selected + b"\x00\x3f\x00") + gray[scan + 10 : -2]
    return data + (more if tables_before_scan == number else b"") + b"\xff\xd9"


def without_last(data: bytes, marker: int) -> bytes:
    """A JPEG without the last segment of a kind, which stands between two scans."""
    place = data.rindex(bytes([0xFF, marker]))
    return data[:place] + data[place + 2 + int.from_bytes(data[place + 2 : place + 4], "big") :]


def png_claiming(data: bytes, height: int, width: int) -> bytes:
    """A PNG whose header, checksum included, claims another size."""
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + data[24:29]
    return data[:12] + header + zlib.crc32(header).to_bytes(4, "big") + data[33:]


PICTURE = picture(HEIGHT, WIDTH)
GOOD = jpeg(HEIGHT, WIDTH)
FINE = jpeg(HEIGHT, WIDTH, subsampling="4:4:4")
PROGRESSIVE = encoded(PICTURE, "JPEG", progressive=True)
GRAY = PICTURE.convert("L")
CMYK = Image.merge("CMYK", [picture(HEIGHT, WIDTH, seed).convert("L") for seed in range(4)])
WIDE = Image.fromarray(np.asarray(GRAY, np.uint16) * 257)
ALPHA = Image.merge("RGBA", [*PICTURE.split(), GRAY])
PNG = encoded(PICTURE, "PNG")
WEBP = encoded(PICTURE, "WEBP", quality=90)
WEBP_X = encoded(PICTURE, "WEBP", quality=90, xmp=b"<x/>")  # the extended format
TIFF = encoded(PICTURE, "TIFF")
BMP = encoded(PICTURE, "BMP")
JP2 = encoded(PICTURE, "JPEG2000")
J2K = encoded(PICTURE, "JPEG2000", no_jp2=True)
_SCAN = find(GOOD, 0xDA)
_FRAME = find(GOOD, 0xC0)
_QUANTISATION = find(GOOD, 0xDB)
_HUFFMAN = find(GOOD, 0xC4)
RESTARTS = encoded(PICTURE, "JPEG", restart_marker_blocks=3)
_RESTART = RESTARTS.index(b"\xff\xd1")
_IDAT = PNG.index(b"IDAT")


def _good_jpegs() -> dict[str, bytes]:
    return {
        "jpeg-420": GOOD,
        "jpeg-422": jpeg(HEIGHT, WIDTH, subsampling="4:2:2"),
        "jpeg-444": FINE,
        # As many blocks to a unit, and as many units to this picture: only the blocks' places change.
        "jpeg-411": patched(GOOD, _FRAME + 11, b"\x41"),
        "jpeg-440": patched(jpeg(HEIGHT, WIDTH, subsampling="4:2:2"), _FRAME + 11, b"\x12"),
        "jpeg-gray": encoded(GRAY, "JPEG"),
        "jpeg-stored-as-rgb": encoded(PICTURE, "JPEG", keep_rgb=True),
        "jpeg-cmyk": encoded(CMYK, "JPEG", quality=95),
        "jpeg-cmyk-no-adobe": without(encoded(CMYK, "JPEG", quality=95), 0xEE),
        "jpeg-progressive": PROGRESSIVE,
        "jpeg-progressive-gray": encoded(GRAY, "JPEG", progressive=True),
        "jpeg-progressive-of-many-scans": scan_bomb(20),
        "jpeg-optimised": encoded(PICTURE, "JPEG", optimize=True),
        "jpeg-quality-1": jpeg(HEIGHT, WIDTH, quality=1),
        "jpeg-quality-100": jpeg(HEIGHT, WIDTH, quality=100),
        "jpeg-restart-markers": encoded(PICTURE, "JPEG", restart_marker_blocks=3),
        "jpeg-comment": encoded(PICTURE, "JPEG", comment=b"\xff\xd9 is no end here"),
        "jpeg-icc": encoded(PICTURE, "JPEG", icc_profile=bytes(70_000)),
        "jpeg-thumbnail": inserted(GOOD, 0xE1, b"Exif\0\0" + jpeg(16, 16)),
        "jpeg-fill-bytes": GOOD[:2] + b"\xff\xff\xff" + GOOD[2:],
        "jpeg-app0-length-5": patched(GOOD, find(GOOD, 0xE0) + 2, b"\0\5"),  # the rest of it is stray bytes
        "jpeg-stray-bytes": GOOD.replace(b"\xff\xc4", b"\0\1\2\xff\xc4"),
        "jpeg-long-header": inserted(GOOD, 0xE2, bytes(60_000)),
        "jpeg-tail-garbage": GOOD + np.random.default_rng(1).bytes(500),
        "jpeg-two-images": GOOD + jpeg(HEIGHT, WIDTH, seed=1),
        "jpeg-1x1": jpeg(1, 1),
        "jpeg-2x20000": jpeg(2, 20_000),
        "jpeg-20000x2": jpeg(20_000, 2),
        **{f"jpeg-orientation-{n}": encoded(PICTURE, "JPEG", exif=turned(n)) for n in range(1, 10)},
        "jpeg-exif-broken": inserted(GOOD, 0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff"),
        "jpeg-quantisation-zeros": patched(GOOD, _QUANTISATION + 5, bytes(64)),
        # What a Huffman coder wrote, read by an arithmetic decoder: noise, but the same as Pillow's.
        "jpeg-arithmetic": frame_as(GOOD, 0xC9),
        "jpeg-ends-early": GOOD[: len(GOOD) // 2] + b"\xff\xd9",
        "jpeg-scrambled": patched(GOOD, len(GOOD) * 3 // 4, bytes(byte & 0x7F for byte in range(40))),
        "jpeg-one-scan-each": of_scans(3),
        "jpeg-tables-between-scans": of_scans(3, tables=1, tables_before_scan=1),
        "jpeg-no-app0": without(GOOD, 0xE0),
        "jpeg-extended-sequential": frame_as(GOOD, 0xC1),
        "jpeg-restart-marker-missing": RESTARTS[:_RESTART] + RESTARTS[_RESTART + 2 :],
        "jpeg-restart-marker-wrong": patched(RESTARTS, _RESTART, b"\xff\xd5"),
        "jpeg-cut-before-another": GOOD[: len(GOOD) // 2] + jpeg(HEIGHT, WIDTH, seed=1),
        "jpeg-taller-than-its-data": claiming(GOOD, 2 * HEIGHT, WIDTH),
        "jpeg-wider-than-its-data": claiming(GOOD, HEIGHT, 2 * WIDTH),
        "jpeg-larger-than-its-data": claiming(GOOD, 2000, 2000),
        "jpeg-lower-than-its-data": claiming(GOOD, 16, WIDTH),
        "jpeg-several-pictures": encoded(PICTURE, "MPO", save_all=True, append_images=[picture(HEIGHT, WIDTH, 1)]),
    }


def _bad_jpegs() -> dict[str, bytes]:
    cuts = {
        f"jpeg-cut-{name}": GOOD[:end]
        for name, end in {
            "2": 2,
            "in-frame": _FRAME + 6,
            "in-scan-header": _SCAN + 8,
            "at-scan": _SCAN + 14,
            "half": len(GOOD) // 2,
            "end-marker": len(GOOD) - 2,
        }.items()
    }
    return {
        **cuts,
        "jpeg-cut-progressive": PROGRESSIVE[: len(PROGRESSIVE) // 2],
        "jpeg-cut-with-thumbnail": inserted(GOOD, 0xE1, b"Exif\0\0" + jpeg(16, 16))[:-100],
        "jpeg-cut-in-a-long-segment": inserted(GOOD, 0xE1, bytes(60_000))[:5000],
        "jpeg-garbage-before": b"garbage" + GOOD,
        "jpeg-0x0": claiming(GOOD, 0, 0),
        "jpeg-no-height": claiming(GOOD, 0, WIDTH),
        "jpeg-no-width": claiming(GOOD, HEIGHT, 0),
        "jpeg-bomb-65500": claiming(GOOD, 65_500, 65_500),
        "jpeg-bomb-65500-progressive": claiming(PROGRESSIVE, 65_500, 65_500, frame=0xC2),
        "jpeg-scan-bomb": scan_bomb(2000),
        "jpeg-impossible-huffman": damaged_jpeg(),
        "jpeg-huffman-table-9": patched(GOOD, _HUFFMAN + 4, b"\x09"),
        "jpeg-no-huffman": without(GOOD, 0xC4),
        "jpeg-no-huffman-but-one": without_last(without_last(without_last(GOOD, 0xC4), 0xC4), 0xC4),
        "jpeg-no-huffman-progressive": without(PROGRESSIVE, 0xC4),
        "jpeg-no-quantisation": without(GOOD, 0xDB),
        "jpeg-no-quantisation-of-colour": without_last(GOOD, 0xDB),
        "jpeg-no-quantisation-arithmetic": frame_as(without(GOOD, 0xDB), 0xC9),
        "jpeg-tables-behind-their-scan": of_scans(3, tables=1, tables_before_scan=2),
        "jpeg-quantisation-table-3": patched(GOOD, _FRAME + 12, b"\x03"),
        "jpeg-quantisation-16-bit": patched(GOOD, _QUANTISATION + 4, b"\x10"),
        "jpeg-no-scan-but-end": without(GOOD, 0xDA) + b"\xff\xd9",
        "jpeg-no-frame": without(GOOD, 0xC0),
        "jpeg-two-frames": GOOD[:_FRAME] + GOOD[_FRAME : _FRAME + 19] + GOOD[_FRAME:],
        **{f"jpeg-{bits}-bit": of_bits(bits) for bits in (0, 1, 7, 9, 12, 16, 17, 255)},
        "jpeg-lossless": frame_as(GOOD, 0xC3),
        "jpeg-hierarchical": frame_as(GOOD, 0xC5),
        "jpeg-arithmetic-lossless": frame_as(GOOD, 0xCB),
        **{f"jpeg-{n}-components": patched(GOOD, _FRAME + 9, bytes([n])) for n in (0, 1, 2, 4, 5, 255)},
        "jpeg-sampling-0": patched(GOOD, _FRAME + 11, b"\x00"),
        "jpeg-sampling-5": patched(GOOD, _FRAME + 11, b"\x55"),
        "jpeg-scan-of-no-component": patched(GOOD, _SCAN + 4, b"\x00"),
        "jpeg-scan-of-5-components": patched(GOOD, _SCAN + 4, b"\x05"),
        "jpeg-scan-of-unknown-component": patched(GOOD, _SCAN + 5, b"\x77"),
        **{
            f"jpeg-{segment}-length-{n}": patched(GOOD, find(GOOD, marker) + 2, n.to_bytes(2, "big"))
            for segment, marker in {"app0": 0xE0, "frame": 0xC0, "huffman": 0xC4, "scan": 0xDA}.items()
            for n in ((0, 1, 60_000) if segment == "app0" else (0, 1, 5, 60_000))
        },
    }


def _good_others() -> dict[str, bytes]:
    return {
        "png-rgb": PNG,
        "png-gray": encoded(GRAY, "PNG"),
        "png-1-bit": encoded(PICTURE.convert("1"), "PNG"),
        "png-palette": encoded(PICTURE.convert("P"), "PNG"),
        "png-palette-transparent": encoded(PICTURE.convert("P"), "PNG", transparency=3),
        "png-rgba": encoded(ALPHA, "PNG"),
        "png-gray-alpha": encoded(ALPHA.convert("LA"), "PNG"),
        "png-16-bit-gray": encoded(WIDE, "PNG"),
        "png-16-bit-rgb": png_of_16_bits(),
        "png-animated": encoded(PICTURE, "PNG", save_all=True, append_images=[picture(HEIGHT, WIDTH, 1)]),
        "png-animated-another-size": animated_png(8, 8, first=(8, 8)),
        "png-animated-size-0": animated_png(0, 0, first=(0, 0)),
        "png-animated-beyond": animated_png(WIDTH, HEIGHT, offset=1000),
        "png-animated-without-first": animated_png(WIDTH, HEIGHT, first=None),
        "png-animated-says-4g-frames": animated_png(WIDTH, HEIGHT, frames=2**32 - 1),
        "png-animated-bad-frame": animated_png(WIDTH, HEIGHT, frame=zlib.compress(b"\x09" + b"\xff" * 999)),
        "png-tail-garbage": PNG + b"garbage",
        "png-1x1": encoded(picture(1, 1), "PNG"),
        "png-4-bit-palette": encoded(PICTURE.quantize(16), "PNG", bits=4),
        "png-rgb-transparent": encoded(PICTURE, "PNG", transparency=(1, 2, 3)),
        "png-interlaced": interlaced_png(),
        "png-orientation-6": encoded(PICTURE, "PNG", exif=turned()),
        "png-text": inserted_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1000))),
        "png-text-bomb": inserted_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(50_000_000))),
        "png-texts-of-gigabytes": PNG[:33] + 100 * chunk(b"zTXt", b"a\0\0" + _BOMB) + PNG[33:],
        "png-unknown-chunk": inserted_chunk(b"abCd", bytes(100)),
        "webp-lossy": WEBP,
        "webp-lossless": encoded(PICTURE, "WEBP", lossless=True),
        "webp-alpha": encoded(ALPHA, "WEBP", lossless=True),
        "webp-animated": encoded(PICTURE, "WEBP", save_all=True, append_images=[picture(HEIGHT, WIDTH, 1)]),
        "webp-orientation-6": encoded(PICTURE, "WEBP", exif=turned()),
    }


def _good_rare() -> dict[str, bytes]:
    return {
        "bmp-top-down": BMP[:22] + (-HEIGHT).to_bytes(4, "little", signed=True) + BMP[26:],
        "bmp-rgb": BMP,
        "bmp-gray": encoded(GRAY, "BMP"),
        "bmp-palette": encoded(PICTURE.convert("P"), "BMP"),
        "bmp-1-bit": encoded(PICTURE.convert("1"), "BMP"),
        "bmp-rgba": encoded(ALPHA, "BMP"),
        "bmp-runs": bmp_of_runs(HEIGHT, WIDTH, _RUNS),
        "tiff-rgb": TIFF,
        "tiff-gray": encoded(GRAY, "TIFF"),
        "tiff-rgba": encoded(ALPHA, "TIFF"),
        "tiff-palette": encoded(PICTURE.convert("P"), "TIFF"),
        "tiff-cmyk": encoded(CMYK, "TIFF"),
        "tiff-lzw": encoded(PICTURE, "TIFF", compression="tiff_lzw"),
        "tiff-jpeg": encoded(PICTURE, "TIFF", compression="jpeg"),
        "tiff-pages": encoded(PICTURE, "TIFF", save_all=True, append_images=[picture(HEIGHT, WIDTH, 1)]),
        "tiff-16-bit": encoded(WIDE, "TIFF"),
        "tiff-orientation-6": encoded(PICTURE, "TIFF", exif=turned()),
        "tiff-big": encoded(PICTURE, "TIFF", big_tiff=True),
        "tiff-1-bit": encoded(PICTURE.convert("1"), "TIFF"),
        "tiff-ycbcr": encoded(PICTURE.convert("YCbCr"), "TIFF"),
        "ppm-comment": encoded(PICTURE, "PPM").replace(b"P6\n", b"P6\n# a comment\n", 1),
        "ppm-16-bit": b"P6\n%d %d\n65535\n" % (WIDTH, HEIGHT)
        + (np.asarray(PICTURE, ">u2") * 257).astype(">u2").tobytes(),
        "ppm-rgb": encoded(PICTURE, "PPM"),
        "ppm-gray": encoded(GRAY, "PPM"),
        "ppm-text": b"P3\n2 2\n255\n" + b"1 2 3  40 50 60  70 80 90  100 110 120\n",
        "pbm-1-bit": encoded(PICTURE.convert("1"), "PPM"),
        "jp2-lossless": JP2,
        "jp2-lossy": encoded(PICTURE, "JPEG2000", irreversible=True, quality_mode="rates", quality_layers=[10]),
        "jp2-gray": encoded(GRAY, "JPEG2000"),
        "jp2-16-bit-gray": encoded(WIDE, "JPEG2000"),
        "jp2-rgba": encoded(ALPHA, "JPEG2000"),
        "jp2-tiled": encoded(PICTURE, "JPEG2000", tile_size=(32, 32)),
        "j2k-codestream": J2K,
    }


def inserted_chunk(name: bytes, content: bytes) -> bytes:
    """A PNG with one more chunk behind its header."""
    return PNG[:33] + chunk(name, content) + PNG[33:]


def animated_png(
    width: int,
    height: int,
    first: tuple[int, int] | None = (WIDTH, HEIGHT),
    offset: int = 0,
    frames: int = 2,
    frame: bytes | None = None,
) -> bytes:
    """An animated PNG whose second frame has this size and place, and these data. Its first one is the picture."""

    def control(number: int, size: tuple[int, int], offset: int = 0) -> bytes:
        return chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, *size, offset, offset, 1, 10, 0, 0))

    data = zlib.compress(height * (b"\0" + bytes(3 * width))) if frame is None else frame
    begins = chunk(b"acTL", struct.pack(">II", frames, 0)) + (b"" if first is None else control(0, first))
    later = control(1, (width, height), offset) + chunk(b"fdAT", (2).to_bytes(4, "big") + data)
    return PNG[:33] + begins + PNG[33:-12] + later + PNG[-12:]


def without_chunk(data: bytes, name: bytes) -> bytes:
    """A PNG without the first chunk of that name."""
    place = data.index(name) - 4
    return data[:place] + data[place + 12 + int.from_bytes(data[place : place + 4], "big") :]


def interlaced_png() -> bytes:
    """Adam7: seven smaller pictures, every one of its rows unfiltered. Pillow writes none."""
    pixels = np.asarray(PICTURE)
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    rows = [row for y, x, down, right in passes for row in pixels[y::down, x::right]]
    return png(8, b"".join(b"\0" + row.tobytes() for row in rows), interlaced=True)


def webp_claiming(height: int, width: int) -> bytes:
    """A WebP whose frame header claims another size."""
    return patched(WEBP, 26, width.to_bytes(2, "little") + height.to_bytes(2, "little"))


def j2k_claiming(height: int, width: int) -> bytes:
    """A JPEG 2000 code stream whose header claims another size, of the image and of its one tile."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return patched(patched(J2K, 8, size), 24, size)


def tiff_claiming(height: int, width: int) -> bytes:
    """A TIFF whose directory claims another size."""
    data = TIFF
    for tag, old, new in ((256, WIDTH, width), (257, HEIGHT, height)):
        data = data.replace(struct.pack("<HHII", tag, 4, 1, old), struct.pack("<HHII", tag, 4, 1, new))
    return data


def tiff(tags: dict[int, tuple[int, ...]], data: bytes, order: str = "<") -> bytes:
    """A TIFF of such data, which begin at byte 8, and of such tags."""
    behind, entries = b"", b""
    start = 8 + len(data) + 2 + 12 * len(tags) + 4
    for tag, numbers in sorted(tags.items()):
        kind, form = (3, "H") if tag in (258, 259, 262, 277) else (4, "I")
        value = struct.pack(f"{order}{len(numbers)}{form}", *numbers)
        if len(value) > 4:
            value, behind = struct.pack(f"{order}I", start + len(behind)), behind + value
        entries += struct.pack(f"{order}HHI", tag, kind, len(numbers)) + value.ljust(4, b"\0")
    head = struct.pack(f"{order}2sHI", b"II" if order == "<" else b"MM", 42, 8 + len(data))
    return head + data + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + behind


def bmp_of_runs(height: int, width: int, runs: bytes) -> bytes:
    """A gray BMP of such a size, run-length coded (RLE8), whatever the runs are. Pillow writes none."""
    palette = b"".join(bytes([gray, gray, gray, 0]) for gray in range(256))
    start = 54 + len(palette)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 0, 0)
    return struct.pack("<2sIHHI", b"BM", start + len(runs), 0, 0, start) + header + palette + runs


def png(bits: int, data: bytes, interlaced: bool = False) -> bytes:
    """A PNG of three channels."""
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, 2, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def png_of_16_bits() -> bytes:
    """Pillow writes no PNG of three channels with 16 bits each."""
    rows = (np.asarray(PICTURE, np.uint16) * 257).astype(">u2")
    return png(16, b"".join(b"\0" + row.tobytes() for row in rows))


def chunk(name: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    return len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")


def _animated(more: bytes) -> bytes:
    """An animated PNG of 64 x 96 pixels, whose IDAT has none of them."""
    frame = chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, WIDTH, HEIGHT, 0, 0, 1, 10, 0, 0))
    return (
        PNG[:33]
        + chunk(b"acTL", bytes([0, 0, 0, 3, 0, 0, 0, 0]))
        + chunk(b"IDAT", zlib.compress(b""))
        + frame
        + more
        + PNG[-12:]
    )


_BOMB = zlib.compress(bytes(7_900_000))
_RUNS = b"".join(bytes([WIDTH, row, 0, 0]) for row in range(HEIGHT)) + b"\0\1"  # a row of one gray, and its end
_ROWS = HEIGHT * (b"\0" + bytes(3 * WIDTH))


def hostile() -> dict[str, bytes]:
    """Files of a few bytes whose headers claim what takes gigabytes or minutes."""
    header, end = PNG[:33], chunk(b"IEND", b"")
    scan = PROGRESSIVE[PROGRESSIVE.rindex(b"\xff\xda") : -2]
    large = claiming(PROGRESSIVE, 4600, 4600, frame=0xC2)
    said = 0xFFFFFF00
    exif = b"EXIF" + said.to_bytes(4, "little") + b"II*\0"
    with_exif = WEBP_X[:20] + b"\x08" + WEBP_X[21:]
    return {
        "jpeg-large-of-many-scans": large[:-2] + 88 * scan + b"\xff\xd9",
        "png-end-behind-file": PNG[:-12] + said.to_bytes(4, "big") + PNG[-8:],
        "png-chunk-behind-file": header + said.to_bytes(4, "big") + b"IDAT" + PNG[_IDAT + 4 :],
        "png-77-bytes": (header + said.to_bytes(4, "big") + b"IDAT" + PNG[_IDAT + 4 :])[:65] + end,
        "png-exif-behind-file": PNG[:-12] + said.to_bytes(4, "big") + b"eXIfII*\0" + end,
        "png-data-behind-its-rows": header + chunk(b"IDAT", zlib.compress(_ROWS) + bytes(110_000)) + end,
        "webp-exif-behind-file": with_exif + exif,
    }


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _bad_others() -> dict[str, bytes]:
    return {
        **hostile(),
        "empty": b"",
        "zeros": bytes(1000),
        "random": np.random.default_rng(0).bytes(1000),
        "text": b"not an image\n" * 20,
        "html": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>',
        "gzip-of-jpeg": gzip.compress(GOOD, mtime=0),
        "gif": encoded(PICTURE.convert("P"), "GIF"),
        "ico": encoded(PICTURE, "ICO"),
        "avif": encoded(PICTURE, "AVIF"),
        "tiff": TIFF,
        "bmp": BMP,
        "ppm": encoded(PICTURE, "PPM"),
        "jp2": JP2,
        "png-cut-header": PNG[:30],
        "png-cut-half": half(PNG),
        "png-cut-end": PNG[:-12],
        "png-no-data": PNG[: _IDAT - 4] + PNG[-12:],
        "png-bad-header-checksum": patched(PNG, 29, bytes(4)),
        "png-bad-data-checksum": patched(PNG, len(PNG) - 16, bytes(4)),
        "png-flipped-data": patched(PNG, _IDAT + 100, bytes([PNG[_IDAT + 100] ^ 0x10])),
        "png-0x0": png_claiming(PNG, 0, 0),
        "png-bomb-2g": png_claiming(PNG, 2**31 - 1, 2**31 - 1),
        "png-taller-than-its-data": png_claiming(PNG, 2 * HEIGHT, WIDTH),
        "png-no-palette": without_chunk(encoded(PICTURE.convert("P"), "PNG"), b"PLTE"),
        "png-critical-unknown-chunk": inserted_chunk(b"ABCD", bytes(100)),
        "png-two-headers": PNG[:33] + PNG[8:],
        "png-palette-behind-data": PNG[:-12] + chunk(b"PLTE", bytes(6)) + PNG[-12:],
        "png-data-apart": PNG[:-12] + chunk(b"tEXt", b"a\0b") + chunk(b"IDAT", b"") + PNG[-12:],
        # These two made DALI 2.4 end the process, and deliver the pixels of an image before.
        "png-animated-data-behind-frame": _animated(chunk(b"IDAT", zlib.compress(8 * (b"\x09" + b"\xff" * 64)))),
        "png-animated-without-data": _animated(b""),
        "webp-bomb": webp_claiming(16_383, 16_383),
        "webp-0x0": webp_claiming(0, 0),
        "pfm": b"PF\n2 2\n-1.0\n" + bytes(48),
        "webp-cut-header": WEBP[:25],
        "webp-cut-half": half(WEBP),
        "webp-riff-length": patched(WEBP, 4, (10).to_bytes(4, "little")),
        "webp-lossless-cut": half(encoded(PICTURE, "WEBP", lossless=True)),
    }


def _bad_rare() -> dict[str, bytes]:
    data = zlib.compress(bytes(400)) + bytes(400)
    gray = {256: (64,), 257: (64,), 258: (8,), 259: (8,), 262: (1,), 277: (1,)}
    size = HEIGHT.to_bytes(4, "big") + WIDTH.to_bytes(4, "big")
    return {
        "tiff-tile-bomb": tiff({**gray, 324: (8,), 325: (400,), 322: (37_840,), 323: (37_840,)}, data),
        "tiff-bomb": tiff_claiming(200_000, 200_000),
        "tiff-cut-half": half(TIFF),
        "tiff-directory-outside": patched(TIFF, 4, (10_000_000).to_bytes(4, "little")),
        "tiff-float": encoded(Image.fromarray(np.zeros((HEIGHT, WIDTH), np.float32)), "TIFF"),
        "bmp-runs-bomb": bmp_of_runs(9999, 10_000, b"\0\1"),
        "bmp-bomb": BMP[:18] + (60_000).to_bytes(4, "little") * 2 + BMP[26:],
        "bmp-0x0": BMP[:18] + bytes(8) + BMP[26:],
        "bmp-cut-header": BMP[:30],
        "bmp-cut-half": half(BMP),
        "pgm-text-bomb": b"P2\n10000 9999\n255\n" + 100 * b"1 ",
        "ppm-long-number": b"P6 " + b"0" * 5000 + b"%d %d 255\n" % (WIDTH, HEIGHT) + PICTURE.tobytes(),
        "ppm-cut-half": half(encoded(PICTURE, "PPM")),
        "ppm-bomb": b"P6\n60000 60000\n255\n" + bytes(100),
        "jp2-bomb": JP2.replace(size, 2 * (200_000).to_bytes(4, "big")),
        "jp2-cut-half": half(JP2),
        "j2k-cut-header": J2K[:60],
        "j2k-0x0": j2k_claiming(0, 0),
        "j2k-bomb": j2k_claiming(2**31, 2**31),
        "j2k-of-a-million-tiles": patched(j2k_claiming(2000, 2000), 24, bytes([0, 0, 0, 2] * 2)),
        "j2k-of-100-components": patched(J2K, 40, (100).to_bytes(2, "big")),
    }
