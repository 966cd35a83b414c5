"""The strict scan of tars, against `tarfile` and the `tar` command."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from hostile import mutated_bytes
from making import tar_by_command, write_tree
from tar_bytes import END, extended, forged, padded, record

from gpuloader import GPULoader
from gpuloader.errors import TarError
from gpuloader.shards.tar import MISSING_END, Member, members

NAMES = [
    "a.jpg",
    "folder/b.jpg",
    "./c.jpg",
    "../outside.jpg",  # a name and nothing more: no path is ever opened from it
    "/absolute.jpg",
    "two words.jpg",
    "grüße/日本.jpg",
    "not-utf8-\udcff.jpg",
    "prefix/" * 14 + "d.jpg",  # 103 bytes: ustar splits it, GNU and PAX extend it
]
LONG_NAMES = [*NAMES, "e" * 300 + ".jpg", "f/" * 2000 + "g.jpg"]


def scanned(path: Path) -> list[Member]:
    with path.open("rb") as file:
        return list(members(partial(os.pread, file.fileno()), path.stat().st_size, str(path)))


def scanned_bytes(folder: Path, content: bytes) -> list[Member]:
    path = folder / "scanned.tar"
    path.write_bytes(content)
    return scanned(path)


def error_of(folder: Path, content: bytes) -> TarError:
    with pytest.raises(TarError) as caught:
        scanned_bytes(folder, content)
    assert 0 <= caught.value.offset <= len(content)
    assert str(folder / "scanned.tar") in str(caught.value)
    return caught.value


def assert_equals_tarfile(path: Path) -> None:
    """Names, offsets and sizes of all files, in their order."""
    with tarfile.open(path) as tar:
        expected = [(info.name, info.offset_data, info.size) for info in tar if info.isfile() and not info.issparse()]
    found = [member for member in scanned(path) if member.kind == "file"]
    assert [(member.name, member.offset, member.size) for member in found] == expected
    content = path.read_bytes()
    for member in found:
        assert member.head == content[member.offset : member.offset + member.size][: len(member.head)]
        assert len(member.head) >= min(member.size, 1536)


def info_of(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, linkname: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, linkname
    return info


def written(path: Path, tar_format: int, infos: Iterable[tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w", format=tar_format, errors="surrogateescape") as tar:
        for number, info in enumerate(infos):
            tar.addfile(info, io.BytesIO(bytes([number % 255 + 1]) * info.size))
    return path


# What tars are made of.


@pytest.mark.parametrize(
    ("tar_format", "names"),
    [(tarfile.USTAR_FORMAT, NAMES), (tarfile.GNU_FORMAT, LONG_NAMES), (tarfile.PAX_FORMAT, LONG_NAMES)],
    ids=["ustar", "gnu", "pax"],
)
def test_members_are_those_of_tarfile(tmp_path: Path, tar_format: int, names: list[str]) -> None:
    sizes = [0, 1, 511, 512, 513, 1536, 1537, 5000]
    infos = [info_of(name, size) for name in names for size in sizes]
    path = written(tmp_path / "a.tar", tar_format, infos)
    assert_equals_tarfile(path)
    assert [member.size for member in scanned(path)] == sizes * len(names)


@pytest.mark.parametrize("tar_format", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_tars_of_the_tar_command_are_read(tmp_path: Path, tar_format: str) -> None:
    names = ("b.jpg", "deep/er/c.jpg", "deep/d.cls")
    folder = write_tree(tmp_path / "folder", {name: name.encode() * 300 for name in names})
    (folder / "empty").mkdir()
    (folder / "hard.jpg").hardlink_to(folder / "b.jpg")
    (folder / "soft.jpg").symlink_to("b.jpg")
    path = tar_by_command(folder, tmp_path / "a.tar", f"--format={tar_format}", "--sort=name")
    assert_equals_tarfile(path)
    assert {member.name: member.kind for member in scanned(path)} == {
        "./": "directory",
        "./b.jpg": "file",
        "./deep/": "directory",
        "./deep/d.cls": "file",
        "./deep/er/": "directory",
        "./deep/er/c.jpg": "file",
        "./empty/": "directory",
        "./hard.jpg": "hard link",
        "./soft.jpg": "symbolic link",
    }


@pytest.mark.parametrize(
    ("kind", "meaning"),
    [
        (tarfile.AREGTYPE, "file"),
        (tarfile.CONTTYPE, "file"),
        (tarfile.DIRTYPE, "directory"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "pipe"),
        (b"V", "member of type b'V'"),
    ],
)
@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_each_type_of_member_is_named_and_the_next_one_is_found(
    tmp_path: Path, kind: bytes, meaning: str, tar_format: int
) -> None:
    infos = [info_of("special", kind=kind, linkname="target"), info_of("next.jpg", 700)]
    path = written(tmp_path / "a.tar", tar_format, infos)
    first, second = scanned(path)
    assert (first.name.rstrip("/"), first.kind, first.size) == ("special", meaning, 0)
    with tarfile.open(path) as tar:
        assert second[:4] == ("next.jpg", "file", tar.getmembers()[1].offset_data, 700)


def test_the_times_of_an_incremental_gnu_tar_are_no_prefix(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(b"x" * 700)
    options = ["--format=gnu", f"--listed-incremental={tmp_path / 'state'}"]
    path = tar_by_command(folder, tmp_path / "a.tar", *options)
    names = subprocess.run(["tar", "-tf", path], capture_output=True, check=True, text=True).stdout.splitlines()
    found = scanned(path)
    assert [member.name for member in found] == names == ["./", "./a.jpg"]
    assert found[1].kind == "file"
    assert path.read_bytes()[found[1].offset :].startswith(b"x" * 700)


def test_a_v7_tar_marks_a_directory_by_its_slash(tmp_path: Path) -> None:
    first, second = scanned_bytes(tmp_path, forged(b"a.jpg/", kind=b"\0", magic=b"") + forged() + END)
    assert (first.kind, second.kind) == ("directory", "file")
    with tarfile.open(tmp_path / "scanned.tar") as tar:
        assert [info.isdir() for info in tar] == [True, False]


@pytest.mark.parametrize("holes", [1, 6, 60])  # its map is in the header for 4 pieces, then in blocks of 21
@pytest.mark.parametrize(
    "options",
    [
        ["--format=oldgnu"],
        ["--format=gnu"],
        *(["--format=pax", f"--sparse-version={version}"] for version in ("0.0", "0.1", "1.0")),
    ],
    ids=" ".join,
)
def test_a_sparse_file_is_passed_over(tmp_path: Path, options: list[str], holes: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with (folder / "holes.jpg").open("wb") as file:
        for _ in range(holes):
            file.write(b"x" * 4096)
            file.seek(1 << 16, os.SEEK_CUR)
        file.truncate(file.tell())
    (folder / "next.jpg").write_bytes(b"y" * 600)
    path = tar_by_command(folder, tmp_path / "a.tar", "-S", "--sort=name", *options)
    assert path.stat().st_size < holes * (1 << 16)
    assert [member.kind for member in scanned(path)] == ["directory", "sparse file", "file"]
    assert_equals_tarfile(path)


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["base-256", "pax"])
def test_a_member_above_8_gib_is_passed_over_without_reading_it(tmp_path: Path, tar_format: int) -> None:
    path = tmp_path / "a.tar"
    size = (9 << 30) + 100
    first = info_of("large.npy", size).tobuf(tar_format)
    with path.open("wb") as file:
        file.write(first)
        file.seek(-(-size // 512) * 512, os.SEEK_CUR)
        file.write(forged(b"next.jpg", size=3) + padded(b"abc") + END)
    assert path.stat().st_blocks * 512 < 1 << 20  # a file with a hole: the test takes no room
    large, following = scanned(path)
    assert large[:4] == ("large.npy", "file", len(first), size)
    assert following[:2] == ("next.jpg", "file")
    with tarfile.open(path) as tar:
        assert [(info.offset_data, info.size) for info in tar] == [large[2:4], following[2:4]]


@pytest.mark.parametrize(
    "content",
    [
        forged(size=b"\x80" + bytes(10) + b"\x05") + padded(b"12345"),  # base-256 though it would fit in octal
        forged(size=b"         5\0") + padded(b"12345"),
        forged(size=b"000000000005") + padded(b"12345"),  # no NUL behind the number
        forged(kind=b"\0", size=5, magic=b"") + padded(b"12345"),  # v7
        forged(b"\xff\xfe\xfd.jpg", size=5) + padded(b"12345"),
        forged(b"\xff\xfe\xfd.jpg", size=5, signed=True) + padded(b"12345"),  # as Sun's tar summed
        forged(b"n" * 100, size=5, prefix=b"p" * 155) + padded(b"12345"),  # both fields full
        extended(b"x", record(b"size", b"5") + record(b"path", b"b.jpg")) + forged() + padded(b"12345"),
        extended(b"x", record(b"size", b"5")) + forged(size=600) + padded(b"12345"),
        pytest.param(
            extended(b"x", record(b"size", b"5")) + extended(b"L", b"l" * 600) + forged() + padded(b"12345"),
            marks=pytest.mark.skipif(sys.version_info >= (3, 14), reason="there tarfile loses the member that follows"),
        ),
        extended(b"x", record(b"path", b"\xff.jpg")) + forged(size=5) + padded(b"12345"),
        extended(b"g", record(b"comment", b"to all\nof them")) + forged(size=5) + padded(b"12345"),
        extended(b"L", b"l" * 600 + b"\0") + extended(b"K", b"k" * 600) + forged(size=5) + padded(b"12345"),
        extended(b"K", b"k" * 600) + extended(b"L", b"l" * 600) + forged(size=5) + padded(b"12345"),
    ],
)
def test_forged_headers_mean_what_tarfile_says(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(content + forged(b"next.jpg", size=1) + padded(b"1") + END)
    assert_equals_tarfile(path)
    assert [member.size for member in scanned(path)] == [5, 1]


def test_a_global_record_holds_for_all_members_that_follow(tmp_path: Path) -> None:
    content = forged(b"before.jpg") + extended(b"g", record(b"path", b"all.jpg")) + forged(b"1.jpg") + forged(b"2.jpg")
    names = [member.name for member in scanned_bytes(tmp_path, content + END)]
    assert names == ["before.jpg", "all.jpg", "all.jpg"]
    with tarfile.open(tmp_path / "scanned.tar") as tar:
        assert names == tar.getnames()


def test_only_the_next_member_is_named_by_an_extended_header(tmp_path: Path) -> None:
    long_name, path_record = extended(b"L", b"long.jpg\0"), extended(b"x", record(b"path", b"pax.jpg"))
    found = scanned_bytes(tmp_path, b"".join((long_name, forged(), forged(), path_record, forged(), forged(), END)))
    assert [member.name for member in found] == ["long.jpg", "a.jpg", "pax.jpg", "a.jpg"]


# Where tars end.


def three_members() -> bytes:
    """Members of three formats: a PAX name, a GNU name, a plain one."""
    parts = []
    for name, size, tar_format in (
        ("p" * 120, 700, tarfile.PAX_FORMAT),
        ("g" * 120, 512, tarfile.GNU_FORMAT),
        ("u.jpg", 3, tarfile.USTAR_FORMAT),
    ):
        parts += [info_of(name, size).tobuf(tar_format), padded(b"d" * size)]
    return b"".join(parts)


@pytest.mark.parametrize("end", [512, 1024, 10240], ids=lambda count: f"{count} zeros")
def test_an_archive_ends_with_any_number_of_zero_blocks(tmp_path: Path, end: int) -> None:
    assert [member.size for member in scanned_bytes(tmp_path, three_members() + bytes(end))] == [700, 512, 3]


def test_an_archive_without_end_blocks_is_read_and_a_last_member_says_so(tmp_path: Path) -> None:
    whole = three_members()
    *found, end = scanned_bytes(tmp_path, whole)
    assert found == scanned_bytes(tmp_path, whole + END)
    assert end == ("", MISSING_END, len(whole), 0, b"")


def test_the_padding_of_the_last_member_belongs_to_it(tmp_path: Path) -> None:
    error = error_of(tmp_path, forged(size=3) + b"abc" + bytes(508))
    assert "padding is cut" in str(error)
    assert error.offset == 1023


@pytest.mark.parametrize("size", [0, 1, 511])
@pytest.mark.parametrize("fill", [b"\0", b"x"])
def test_less_than_a_block_is_no_tar(tmp_path: Path, size: int, fill: bytes) -> None:
    assert "not a tar file" in str(error_of(tmp_path, fill * size))


def scanned_or_error(path: Path) -> tuple[list[Member], TarError | None]:
    found = []
    with path.open("rb") as file:
        try:
            found.extend(members(partial(os.pread, file.fileno()), path.stat().st_size, str(path)))
        except TarError as error:
            return found, error
    return found, None


def test_a_cut_tar_gives_an_error_or_says_that_its_end_is_missing(tmp_path: Path) -> None:
    whole = three_members()
    *full, _ = scanned_bytes(tmp_path, whole)
    ends = {member.offset + len(padded(bytes(member.size))) for member in full}
    path = tmp_path / "cut.tar"
    for cut in range(128, len(whole) + 1, 128):
        path.write_bytes(whole[:cut])
        found, error = scanned_or_error(path)
        complete = [member for member in full if member.offset + member.size <= cut]
        if cut in ends:
            assert error is None
            assert found == [*complete, ("", MISSING_END, cut, 0, b"")]
        else:
            assert error is not None
            assert 0 <= error.offset <= cut
            assert [member for member in found if member.kind == "file"] == complete


@pytest.mark.parametrize("end", [b"", END], ids=["cut", "ended"])
@pytest.mark.parametrize("kind", [b"x", b"L"])
def test_an_extended_header_without_its_member_is_an_error(tmp_path: Path, kind: bytes, end: bytes) -> None:
    error = error_of(tmp_path, forged() + extended(kind, record(b"path", b"lost.jpg")) + end)
    assert "truncated" in str(error)


# What is no plain tar.


@pytest.mark.parametrize("rows", [3, 1000])
@pytest.mark.parametrize("name", ["table.csv", "TABLE.CSV"])
def test_a_table_is_packed_first(tmp_path: Path, name: str, rows: int) -> None:
    (tmp_path / name).write_text("file,label\n" + "a.jpg,3\n" * rows)
    with pytest.raises(TarError, match=r"a table: `gpuloader pack TABLE\.csv SHARDS`"):
        GPULoader(tmp_path / name, 2, "cpu")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xd8\xff\xe0", "not a tar, but a JPEG: `gpuloader pack FOLDER SHARDS` makes shards of a folder of"),
        (b"\x89PNG\r\n", "not a tar, but a PNG: `gpuloader pack FOLDER SHARDS` makes shards"),
        (b"PK\x03\x04", "not a tar, but a ZIP archive: unpack it, then `gpuloader pack FOLDER SHARDS`"),
        (b'{"images": [', "not a tar, but JSON: `gpuloader pack FILE SHARDS` makes shards of an annotation file"),
        (b"PAR1", "not a tar, but a Parquet file: `gpuloader pack FOLDER SHARDS` makes shards of a folder"),
        (b"\x1f\x8b\x08", "compressed with gzip: unpack it"),
        (b"BZh9", "compressed with bzip2"),
        (b"\xfd7zXZ\0", "compressed with xz"),
        (b"\x28\xb5\x2f\xfd", "compressed with zstandard"),
    ],
)
def test_what_is_given_in_the_place_of_a_tar_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in str(error_of(tmp_path, content.ljust(5000, b"\1")))
    if "not a tar" in says:  # of less than a block, too
        assert says in str(error_of(tmp_path, content.ljust(64, b"\1")))


@pytest.mark.parametrize(
    ("content", "offset", "problem"),
    [
        (bytes(range(256)) * 20, 0, "not a tar file"),
        (forged() + forged()[:-1] + b"x" + END, 512, "checksum is wrong"),
        (forged(size=9) + padded(b"123456789") + b"\0" * 511 + b"x", 1024, "checksum is wrong"),  # zeros, but for one
        (forged() + END + forged() + END, 1536, "join them with `tar -A`"),  # two tars put one behind the other
        (forged() + END + bytes(5 << 20) + b"x", 1536 + (5 << 20), "data after the end"),
        (forged(size=b"\xff" * 12), 0, "negative size"),
        (forged(size=b"00000000009"), 0, "not octal"),
        (forged(size=b"\x80" + b"\xff" * 11), 0, "truncated"),
        (forged(size=9999) + padded(b"1"), 0, "truncated: a member of 9999 bytes"),
        (forged(size=100) + padded(b"x" * 1000) + END, 1024, "checksum is wrong"),  # says less than there is
        (forged(size=(1 << 20) + 1, kind=b"x") + bytes(2 << 20), 0, "too large"),
        (forged(kind=b"S")[:482] + b"\x01" + bytes(29), 0, "checksum is wrong"),
        (bytes(10_752), 0, "nothing but zeros"),  # one block more than an empty tar has
    ],
)
def test_what_cannot_be_explained_is_an_error_with_its_offset(
    tmp_path: Path, content: bytes, offset: int, problem: str
) -> None:
    error = error_of(tmp_path, content)
    assert error.offset == offset
    assert problem in str(error)


@pytest.mark.parametrize(
    "data",
    [
        b"17 path=b.jpg\n",  # longer than it is
        b"0 path=b.jpg\n",
        b"14 path:b.jpg\n",
        b"14 path=b.jpgX",
        b"999999999999999999999 a=b\n",
        b"14 path=b.jpg\n0 a=b\n",  # the second one
        b"14 path=b.jpg\n\0\0\0",
        record(b"size", b"-5"),
        record(b"size", b""),
        record(b"size", "٣".encode()),  # a digit, but none of ASCII
        record(b"size", b"9" * 5000),  # more digits than Python reads
    ],
)
def test_a_pax_record_that_cannot_be_read_is_an_error(tmp_path: Path, data: bytes) -> None:
    error = error_of(tmp_path, extended(b"x", data) + forged() + END)
    assert "PAX" in str(error)


def test_any_bytes_changed_give_an_error_or_members_within_the_file(tmp_path: Path) -> None:
    path, errors = tmp_path / "changed.tar", []
    for content in mutated_bytes(three_members() + END, 300):
        path.write_bytes(content)
        found, error = scanned_or_error(path)
        assert error is None or 0 <= error.offset <= len(content)
        assert all(0 <= member.offset <= member.offset + member.size <= len(content) for member in found)
        errors.append(error)
    assert 0 < errors.count(None) < 300
