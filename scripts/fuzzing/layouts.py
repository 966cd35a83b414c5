"""Takes files apart and puts them together: segments, chunks, boxes, entries, header fields, members, records."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """A part of a file.

    Attributes:
        name: a marker, a type of chunk, box or member, a tag, a field, a key; empty for bytes without a header.
        content: the bytes that its header announces.
        said: what its header has as length, count or size, if that is wrong.
    """

    name: bytes
    content: bytes
    said: int | None = None


class Layout(NamedTuple):
    """How a format's files consist of parts.

    Attributes:
        split: takes any bytes apart; what has no header, or a broken one, becomes a part without a name.
        join: puts any parts together, with the lengths, checksums and offsets that these need.
        names: names of parts that files may have, besides those that the fuzzer's files do have.
        inner: for parts that consist of parts: where these begin in the content, and their layout.
    """

    split: Callable[[bytes], list[Part]]
    join: Callable[[Sequence[Part]], bytes]
    names: tuple[bytes, ...] = ()
    inner: Mapping[bytes, tuple[int, Layout]] = {}


def _number(value: int, size: int, order: str = "big") -> bytes:
    return (value % (1 << 8 * size)).to_bytes(size, order)  # type: ignore[arg-type]


def _length(part: Part, more: int = 0) -> int:
    """What a part's header has as its length; `more` if it counts more than the content."""
    return len(part.content) + more if part.said is None else part.said


# --- JPEG, and the code stream of JPEG 2000

RESTARTS = bytes(range(0xD0, 0xD8))


def _markers(alone: bytes, before_data: bytes, end_of_data: bytes, names: bytes) -> Layout:
    """Segments that begin with a marker: ITU-T T.81, B.1, and T.800, A.1.

    Args:
        alone: markers without a length and content.
        before_data: the marker of the segment before coded data.
        end_of_data: a pattern of the markers that end coded data.
        names: markers that segments may have.
    """
    marker, end = re.compile(rb"\xff[\x01-\xfe]"), re.compile(end_of_data)

    def split(data: bytes) -> list[Part]:
        parts, place = [Part(b"", data[:2])], 2
        while place < len(data):
            name = data[place + 1 : place + 2]
            stop = place + 2
            if name not in alone:
                stop += max(2, int.from_bytes(data[stop : stop + 2], "big"))
            follows = end if parts[-1].name == before_data else marker
            if follows.match(data, place) and stop <= len(data):
                parts.append(Part(name, data[place + 4 : stop]))
            else:
                found = end.search(data, place + 1)
                stop = found.start() if found else len(data)
                parts.append(Part(b"", data[place:stop]))
            place = stop
        return parts

    def join(parts: Sequence[Part]) -> bytes:
        return b"".join(map(joined, parts))

    def joined(part: Part) -> bytes:
        if not part.name:
            return part.content
        length = b"" if part.name in alone else _number(_length(part, 2), 2)
        return b"\xff" + part.name + length + part.content

    return Layout(split, join, tuple(bytes([each]) for each in names))


JPEG = _markers(b"\x01\xd8\xd9", b"\xda", rb"\xff[\x01-\xcf\xd8-\xfe]", bytes(range(0xC0, 0xFF)))
SEEKABLE = _markers(  # each restart interval is a part, and so is the marker behind it
    b"\x01\xd8\xd9" + RESTARTS, b"\xda", rb"\xff[\x01-\xfe]", bytes(range(0xC0, 0xFF))
)
CODE_STREAM = _markers(
    bytes(range(0x30, 0x40)) + b"\x4f\x92\x93\xd9", b"\x93", rb"\xff[\x90-\xfe]", bytes(range(0x4F, 0x94))
)


# --- PNG


def _split_png(data: bytes) -> list[Part]:
    parts, place = [Part(b"", data[:8])], 8
    while (end := place + 12 + int.from_bytes(data[place : place + 4], "big")) <= len(data):
        parts.append(Part(data[place + 4 : place + 8], data[place + 8 : end - 4]))
        place = end
    return parts if place == len(data) else [*parts, Part(b"", data[place:])]


def _join_png(parts: Sequence[Part]) -> bytes:
    return b"".join(
        _number(_length(part), 4) + part.name + part.content + _number(zlib.crc32(part.name + part.content), 4)
        if part.name
        else part.content
        for part in parts
    )


PNG = Layout(
    _split_png, _join_png, (b"eXIf", b"iCCP", b"tRNS", b"PLTE", b"acTL", b"fcTL", b"fdAT", b"zTXt", b"iTXt", b"sPLT")
)


# --- WebP


def _split_chunks(data: bytes) -> list[Part]:
    parts, place = [], 0
    while place + 8 <= len(data):
        size = int.from_bytes(data[place + 4 : place + 8], "little")
        if (end := place + 8 + size) > len(data):
            break
        parts.append(Part(data[place : place + 4], data[place + 8 : end]))
        place = end + size % 2
    return parts if place >= len(data) else [*parts, Part(b"", data[place:])]


def _join_chunks(parts: Sequence[Part]) -> bytes:
    return b"".join(
        part.name + _number(_length(part), 4, "little") + part.content + bytes(len(part.content) % 2)
        if part.name
        else part.content
        for part in parts
    )


def _split_webp(data: bytes) -> list[Part]:
    return [Part(b"", data[:12]), *_split_chunks(data[12:])]


def _join_webp(parts: Sequence[Part]) -> bytes:
    head, chunks = _concatenate(parts[:1]), _join_chunks(parts[1:])
    return head[:4] + _number(len(head[8:] + chunks), 4, "little") + head[8:] + chunks


_CHUNKS = Layout(_split_chunks, _join_chunks)
WEBP = Layout(
    _split_webp,
    _join_webp,
    (b"EXIF", b"XMP ", b"ICCP", b"ALPH", b"ANIM", b"ANMF", b"VP8 ", b"VP8L", b"VP8X"),
    {b"ANMF": (16, _CHUNKS)},
)


# --- JPEG 2000


def _split_boxes(data: bytes) -> list[Part]:
    parts, place = [], 0
    while place + 8 <= len(data):
        size = int.from_bytes(data[place : place + 4], "big") or len(data) - place
        if size < 8 or place + size > len(data):  # a size of 1 announces one of 64 bits
            break
        parts.append(Part(data[place + 4 : place + 8], data[place + 8 : place + size]))
        place += size
    return parts if place >= len(data) else [*parts, Part(b"", data[place:])]


def _join_boxes(parts: Sequence[Part]) -> bytes:
    return b"".join(
        _number(_length(part, 8), 4) + part.name + part.content if part.name else part.content for part in parts
    )


_HEADER_BOXES = Layout(_split_boxes, _join_boxes, (b"bpcc", b"pclr", b"cmap", b"cdef", b"res "))
BOXES = Layout(
    _split_boxes,
    _join_boxes,
    (b"uuid", b"xml ", b"jp2i"),
    {b"jp2h": (0, _HEADER_BOXES), b"jp2c": (0, CODE_STREAM)},
)


# --- TIFF

_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_MOST_TAGS = 100
_FORMS = {3: "H", 4: "I", 16: "Q"}
_PLACES = {b"\x01\x11": b"\x01\x17", b"\x01\x44": b"\x01\x45"}  # tags of strips' and tiles' offsets and sizes


def _tiff_forms(head: bytes) -> tuple[str, str, str, int]:
    """The byte order, the forms of an offset and of the number of entries, and where the first offset is."""
    order = ">" if head[:2] == b"MM" else "<"
    return (order, "Q", "Q", 8) if head[2:4] in (b"+\0", b"\0+") else (order, "I", "H", 4)


def _split_tiff(data: bytes) -> list[Part]:
    """The head, the first directory's entries, and the strips or tiles.

    An entry's name is its tag, most significant byte first; its content is its type and its values, in the file's byte
    order. The entry of offsets has no values: `_join_tiff` writes them.
    """
    order, offset, number, first = _tiff_forms(data)
    entry = f"{order}HH{offset}"
    size, width = struct.calcsize(entry), struct.calcsize(offset)
    parts, strips = [Part(b"", data[:first])], {}
    try:
        (start,) = struct.unpack_from(order + offset, data, first)
        (entries,) = struct.unpack_from(order + number, data, start)
        start += struct.calcsize(number)
        for place in range(start, start + min(entries, _MOST_TAGS) * (size + width), size + width):
            tag, kind, count = struct.unpack_from(entry, data, place)
            values = data[place + size : place + size + width]
            if (length := count * _SIZES.get(kind, 1)) > width:
                (behind,) = struct.unpack(order + offset, values)
                values = data[behind : behind + length]
            name, values = tag.to_bytes(2, "big"), values[:length]
            strips[name] = _unpack(order, kind, values)
            parts.append(Part(name, struct.pack(f"{order}H", kind) + (b"" if name in _PLACES else values)))
    except (struct.error, OverflowError):  # cut, or an offset beyond all files
        if len(parts) == 1:
            return [Part(b"", data)]
    for places, sizes in _PLACES.items():
        parts += [Part(b"", data[at : at + long]) for at, long in zip(strips.get(places, ()), strips.get(sizes, ()))]
    return parts


def _unpack(order: str, kind: int, values: bytes) -> tuple[int, ...]:
    form = _FORMS.get(kind)
    return struct.unpack(f"{order}{len(values) // _SIZES[kind]}{form}", values) if form else ()


def _join_tiff(parts: Sequence[Part]) -> bytes:
    if not parts:
        return b""
    head, entries = parts[0].content, [part for part in parts[1:] if part.name]
    order, offset, number, first = _tiff_forms(head)
    width = struct.calcsize(offset)
    data, places = head.ljust(first, b"\0")[:first] + bytes(width), []
    for strip in parts[1:]:
        if not strip.name:
            places.append(len(data))
            data += strip.content + bytes(len(strip.content) % 2)
    directory, behind = struct.pack(order + number, len(entries) % (1 << 16)), b""
    start = len(data) + len(directory) + len(entries) * (4 + 2 * width) + width
    for name, content, said in entries:
        (kind,) = struct.unpack_from(f"{order}H", content.ljust(2, b"\0"))
        values = content[2:]
        if name in _PLACES and not values:
            form = _FORMS.get(kind, offset)
            values = b"".join(
                _number(each, struct.calcsize(form), "big" if order == ">" else "little") for each in places
            )
        count = len(values) // _SIZES.get(kind, 1) if said is None else said % (1 << 8 * width)
        directory += struct.pack(f"{order}HH{offset}", int.from_bytes(name[:2], "big"), kind, count)
        if len(values) > width:
            values, behind = struct.pack(order + offset, start + len(behind)), behind + values + bytes(len(values) % 2)
        directory += values.ljust(width, b"\0")
    return (
        data[:first]
        + struct.pack(order + offset, len(data))
        + data[first + width :]
        + directory
        + bytes(width)
        + behind
    )


_TAGS = (
    256,
    257,
    258,
    259,
    262,
    266,
    273,
    274,
    277,
    278,
    279,
    284,
    292,
    317,
    320,
    322,
    323,
    324,
    325,
    330,
    338,
    339,
    347,
    530,
)
TIFF = Layout(_split_tiff, _join_tiff, tuple(tag.to_bytes(2, "big") for tag in _TAGS))


# --- BMP, PBM, PGM and PPM: parts without lengths

_BMP_FIELDS = {
    b"type": 2, b"file bytes": 4, b"reserved": 4, b"start": 4, b"header bytes": 4, b"width": 4, b"height": 4,
    b"planes": 2, b"bits": 2, b"coding": 4, b"data bytes": 4, b"resolution": 8, b"colours": 4, b"important": 4,
}  # fmt: skip


def _split_bmp(data: bytes) -> list[Part]:
    start, place, parts = max(54, int.from_bytes(data[10:14], "little")), 0, []
    for name, size in (*_BMP_FIELDS.items(), (b"palette", start - 54), (b"pixels", len(data))):
        parts.append(Part(name, data[place : place + size]))
        place += size
    return parts


_PNM_TOKEN = re.compile(rb"\s+|#[^\r\n]*|[^\s#]+")


def _split_pnm(data: bytes) -> list[Part]:
    left = [b"maxval", b"height", b"width", b"magic"][data[:2] in (b"P1", b"P4") :]
    parts, place = [], 0
    while left and (found := _PNM_TOKEN.match(data, place)):
        is_space = found[0][:1].isspace() or found[0].startswith(b"#")
        parts.append(Part(b"" if is_space else left.pop(), found[0]))
        place = found.end()
    return [*parts, Part(b"pixels", data[place:])]


def _concatenate(parts: Sequence[Part]) -> bytes:
    return b"".join(part.content for part in parts)


BMP = Layout(_split_bmp, _concatenate)
PNM = Layout(_split_pnm, _concatenate)


# --- tars

TAR_BLOCK_BYTES = 512
_RECORD = re.compile(rb"(\d{1,9}) ([^=]*)=")


def _split_tar(data: bytes) -> list[Part]:
    """Members; a content is the header and what it announces."""
    parts, place = [], 0
    while data[place + 257 : place + 262] == b"ustar":
        digits = re.match(rb"[0-7]*", data[place + 124 : place + 135])
        end = place + TAR_BLOCK_BYTES + int(digits[0] or b"0", 8)  # type: ignore[index]
        parts.append(Part(data[place + 156 : place + 157], data[place:end]))
        place = end + -end % TAR_BLOCK_BYTES
    return [*parts, Part(b"", data[place:])]


def _join_tar(parts: Sequence[Part]) -> bytes:
    return b"".join(_join_member(part) if part.name else part.content for part in parts)


def _join_member(part: Part) -> bytes:
    header = part.content[:TAR_BLOCK_BYTES].ljust(TAR_BLOCK_BYTES, b"\0")
    size = b"%011o\0" % (_length(part, -TAR_BLOCK_BYTES) % (1 << 33))
    data = header[:124] + size + header[136:156] + part.name[:1] + header[157:] + part.content[TAR_BLOCK_BYTES:]
    return with_tar_checksum(data) + bytes(-len(data) % TAR_BLOCK_BYTES)


def with_tar_checksum(data: bytes, place: int = 0) -> bytes:
    """A tar whose header at a place has the right checksum."""
    header = data[place : place + TAR_BLOCK_BYTES]
    checksum = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * ord(" "))
    return data[: place + 148] + checksum + data[place + 156 :]


def _split_records(data: bytes) -> list[Part]:
    parts, place = [], 0
    while (found := _RECORD.match(data, place)) and place + int(found[1]) > found.end():
        end = place + int(found[1])
        parts.append(Part(found[2], data[found.end() : end - 1]))
        place = end
    return parts if place >= len(data) else [*parts, Part(b"", data[place:])]


def _join_records(parts: Sequence[Part]) -> bytes:
    return b"".join(_join_record(part) if part.name else part.content for part in parts)


def _join_record(part: Part) -> bytes:
    """A record's length counts its own digits."""
    rest = b" " + part.name + b"=" + part.content + b"\n"
    length = len(rest)
    while len(b"%d" % length) + len(rest) > length:
        length += 1
    return b"%d" % (length if part.said is None else part.said) + rest


_RECORDS = Layout(_split_records, _join_records, (b"path", b"size", b"linkpath", b"GNU.sparse.realsize", b"hdrcharset"))
TAR = Layout(
    _split_tar,
    _join_tar,
    (b"0", b"1", b"2", b"5", b"7", b"x", b"g", b"L", b"K", b"S", b"V"),
    {b"x": (TAR_BLOCK_BYTES, _RECORDS), b"g": (TAR_BLOCK_BYTES, _RECORDS)},
)


# --- all of them


def layout_of(kind: str, data: bytes) -> Layout:
    """The layout of such a file."""
    if kind == "jpeg2000" and data.startswith(b"\xff\x4f"):
        return CODE_STREAM
    return LAYOUTS[kind]


LAYOUTS = {
    "jpeg": JPEG,
    "seekable": SEEKABLE,
    "png": PNG,
    "webp": WEBP,
    "tar": TAR,
}
