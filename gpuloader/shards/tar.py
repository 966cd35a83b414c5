"""Scans a tar file strictly: it validates every byte, or names the first wrong byte.

A tar file is a sequence of 512-byte blocks. A member is a header block, then its data, padded to full blocks:

    bytes      field      meaning
    0-99       name       up to the first NUL; GNU `L` and PAX `path` override it
    124-135    size       octal text, or base-256 if the first bit is set; PAX `size` overrides it
    148-155    checksum   sum of the header's bytes, unsigned or signed, with this field counted as spaces
    156        type       0, NUL and 7: a file; 5: a directory; 1, 2: links; 3, 4, 6: devices and pipes;
                          x, g: PAX records for the next member, for all later members; L, K: GNU long name, long link;
                          S: GNU sparse
    257-262    magic      "ustar" and NUL allow a prefix; GNU's "ustar  " does not
    345-499    prefix     the beginning of the name, followed by a slash

Two blocks of zeros end the archive; only zeros may follow. Sparse members, which `webdataset` and `tar` do not write by
default, are skipped and reported. An archive without the end blocks may have been cut between two members: it is read
to its end, and then gives a last member of kind MISSING_END.

References: POSIX.1-2017 `pax`, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from zlib import adler32

from gpuloader.base.regular_file import Read
from gpuloader.errors import TarError, describe

BLOCK_BYTES = 512
MAX_EXTENDED_HEADER_BYTES = 1 << 20
MISSING_END = "missing end of the archive"

_ZEROS = bytes(BLOCK_BYTES)
_ASCII = bytes(range(128))
_MODULUS = 65521
_FILES = frozenset(b"0\x007")
_KINDS = {b"1": "hard link", b"2": "symbolic link", b"3": "device", b"4": "device", b"6": "pipe", b"5": "directory"}
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}
_PACKED = "`gpuloader pack FOLDER SHARDS` makes shards of"
_OTHERS = {
    b"\xff\xd8\xff": f"a JPEG: {_PACKED} a folder of class folders",
    b"\x89PNG": f"a PNG: {_PACKED} a folder of class folders",
    b"PK\x03\x04": f"a ZIP archive: unpack it, then {_PACKED} its class folders",
    b"{": f"JSON: {_PACKED.replace('FOLDER', 'FILE')} an annotation file",
    b"PAR1": f"a Parquet file: {_PACKED} a folder written by Dataset.save_to_disk of Hugging Face's datasets",
}
_SPARSE = "GNU.sparse"
_MOST_DIGITS = 20
HEAD_BYTES = 1536
_READ_BYTES = 8192  # a header and the first bytes of a large member, or several small ones
_EMPTY_BYTES = 10_240  # the size of a tar without members, as tar writes it


class Member(NamedTuple):
    """One member of a tar.

    Attributes:
        name: the name in the tar; bytes that are not UTF-8 are surrogates.
        kind: "file", or another kind ("directory", "symbolic link", "sparse file", ...).
        offset: the byte offset of the data.
        size: the size of the data in bytes.
        head: the first min(size, 1536) bytes of the data.
    """

    name: str
    kind: str
    offset: int
    size: int
    head: bytes


def members(read: Read, total: int, shard: str) -> Iterator[Member]:
    """Yields the members of a tar of `total` bytes, in order; `shard` is its name in errors.

    Raises:
        TarError: at the first byte that does not match the format.
    """
    if total < BLOCK_BYTES:
        _check_others(read(total, 0), shard)
        raise TarError(shard, total, "not a tar file: it is empty or ends within its first block")
    position = 0
    records_for_all: dict[str, str] = {}
    records: dict[str, str] = {}
    long_name: bytes | None = None
    start, chunk = 0, b""
    while position < total:
        if position - start + BLOCK_BYTES + HEAD_BYTES > len(chunk):
            start, chunk = position, read(_READ_BYTES, position)
        header = chunk[position - start : position - start + BLOCK_BYTES]
        if len(header) < BLOCK_BYTES:
            raise TarError(shard, position, f"truncated: the header is cut after {len(header)} bytes")
        if header == _ZEROS:
            _check_end(read, shard, position, total)
            if position == 0 and total > _EMPTY_BYTES:
                raise TarError(shard, 0, "nothing but zeros, as after a full disk or a power cut; found")
            break
        _check_header(header, shard, position)
        kind_byte = header[156:157]
        size = _size(header[124:136], shard, position)
        extended = kind_byte in b"xgLK"
        if not extended and "size" in records:
            size = _decimal(records["size"], shard, position)
        if kind_byte in _KINDS:
            size = 0  # links, devices and directories have no data, whatever their size field says
        offset = position + BLOCK_BYTES
        if kind_byte == b"S":
            offset = _skip_sparse_map(read, shard, position, header)
        if (missing := offset + size - total) > 0:
            raise TarError(shard, position, f"truncated: a member of {size} bytes ends {missing} after the file")
        position_of_next = offset + -(-size // BLOCK_BYTES) * BLOCK_BYTES
        if extended:
            if size > MAX_EXTENDED_HEADER_BYTES:
                raise TarError(shard, position, f"an extended header of {size} bytes is too large")
            data = chunk[offset - start : offset - start + size]
            if len(data) < size:
                data = read(size, offset)
            if kind_byte == b"x":
                records = _pax_records(data, shard, offset)
            elif kind_byte == b"g":
                records_for_all |= _pax_records(data, shard, offset)
            elif kind_byte == b"L":
                long_name = data.rstrip(b"\0")
        else:
            merged = {**records_for_all, **records}
            name = merged["path"] if "path" in merged else _decode(long_name or _short_name(header))
            data_start = position + BLOCK_BYTES - start
            head = chunk[data_start : data_start + min(size, HEAD_BYTES)]
            yield Member(name, _kind(kind_byte, name, merged), offset, size, head)
            records, long_name = {}, None
        position = position_of_next
    else:
        if position > total:
            raise TarError(shard, total, "truncated: the last member's padding is cut")
        yield Member("", MISSING_END, total, 0, b"")
    if records or long_name is not None:
        raise TarError(shard, position, "truncated: the member after the extended header is missing")


def _check_header(header: bytes, shard: str, position: int) -> None:
    stored = header[148:156]
    text = stored.strip(b"\0 ")
    if text and not text.strip(b"01234567"):
        # The field itself counts as spaces. Most writers sum unsigned bytes, a few old ones signed bytes.
        wrong = int(text, 8) - _sum(header) + _sum(stored) - 8 * ord(" ")
        if wrong % _MODULUS == 0 or (wrong + 256 * len(header.translate(None, _ASCII))) % _MODULUS == 0:
            return
    for magic, name in _COMPRESSED.items():
        if header.startswith(magic):
            raise TarError(shard, position, f"compressed with {name}: unpack it, shards are plain tars; found")
    if position == 0:
        _check_others(header, shard)
        raise TarError(shard, position, "not a tar file: the header's checksum is wrong")
    raise TarError(shard, position, "the header's checksum is wrong")


def _check_others(beginning: bytes, shard: str) -> None:
    """Raises TarError if a file begins like another common format, such as JPEG or ZIP."""
    for magic, advice in _OTHERS.items():
        if beginning.startswith(magic):
            raise TarError(shard, 0, f"not a tar, but {advice}; found")
    if shard.lower().endswith(".csv"):
        raise TarError(shard, 0, f"not a tar, but a table: {_PACKED.replace('FOLDER', 'TABLE.csv')} it; found")


def _sum(data: bytes) -> int:
    """Returns the sum of the bytes modulo 65521: the lower half of Adler-32 (RFC 1950), minus one; fast, in C."""
    return (adler32(data) & 0xFFFF) - 1


def _check_end(read: Read, shard: str, position: int, total: int) -> None:
    """Checks that only zeros follow the first block of zeros."""
    while position < total:
        chunk = read(1 << 20, position)
        if rest := chunk.lstrip(b"\0"):
            raise TarError(
                shard,
                position + len(chunk) - len(rest),
                "data after the end of the archive (were tars concatenated? join them with `tar -A`)",
            )
        if not chunk:
            break
        position += len(chunk)


def _skip_sparse_map(read: Read, shard: str, position: int, header: bytes) -> int:
    offset = position + BLOCK_BYTES
    more = header[482]
    while more:
        block = read(BLOCK_BYTES, offset)
        if len(block) < BLOCK_BYTES:
            raise TarError(shard, offset, "truncated: the map of a sparse file is cut")
        more = block[504]
        offset += BLOCK_BYTES
    return offset


def _kind(kind_byte: bytes, name: str, records: dict[str, str]) -> str:
    if kind_byte == b"S" or _SPARSE in records:
        return "sparse file"
    if kind_byte[0] in _FILES:
        return "directory" if name.endswith("/") else "file"  # v7 tars mark directories by their slash
    return _KINDS.get(kind_byte, f"member of type {kind_byte!r}")


def _short_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].split(b"\0", 1)[0]):
        return prefix + b"/" + name
    return name


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _size(field: bytes, shard: str, position: int) -> int:
    if field[0] == 0xFF:
        raise TarError(shard, position, "a negative size")
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    text = field.split(b"\0", 1)[0].strip(b" ")
    if text.strip(b"01234567"):
        raise TarError(shard, position, f"a size that is not octal: {field!r}")
    return int(text or b"0", 8)


def _decimal(text: str, shard: str, position: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS:
        raise TarError(
            shard, position, f"a PAX size that is not a number of at most {_MOST_DIGITS} digits: {describe(text)}"
        )
    return int(text)


def _pax_records(data: bytes, shard: str, offset: int) -> dict[str, str]:
    """Parses records "LENGTH KEY=VALUE\\n", where LENGTH is of the whole record; returns the relevant ones.

    It keeps only one record of a sparse file, so that a member has few records.
    """
    records = {}
    start = 0
    while start < len(data):
        digits, _, _ = data[start : start + _MOST_DIGITS].partition(b" ")
        end = start + int(digits) if digits.isdigit() else start
        key, equals, value = data[start + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or end > len(data) or data[end - 1 : end] != b"\n":
            raise TarError(shard, offset + start, "a PAX record that cannot be read")
        if key in (b"path", b"size"):
            records[key.decode()] = _decode(value)
        elif key.startswith(_SPARSE.encode()):
            records[_SPARSE] = ""
        start = end
    return records
