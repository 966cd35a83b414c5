"""A folder is read as the tar that GNU tar makes of it: the same files in the same order, and the same samples."""

from __future__ import annotations

import os
import shutil
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bad_images import turned
from command_line import where_modes_hold
from making import encoded, jpeg, picture, saved, tar_of, write_tree

from gpuloader.errors import DataError
from gpuloader.shards import index_file, open_index
from gpuloader.shards.folder import Folder, list_files
from gpuloader.shards.index import LEFT_OUT_KEPT
from gpuloader.shards.scan import scan, scan_folder

JPEG = jpeg(8, 12)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder, in a folder of its own."""
    (tmp_path / "photos").mkdir()
    return tmp_path / "photos"


@pytest.fixture
def photos(root: Path) -> Path:
    """Five samples in two classes."""
    files = {f"{name}/{i}.jpg": jpeg(20 + i, 30, seed=i) for name, i in zip("aabbb", range(5), strict=True)}
    return write_tree(root, {**files, **{f"{Path(name).with_suffix('.cls')}": b"3" for name in files}})


# --- the list of files


def listed(folder: Path) -> list[tuple[str, int]]:
    listing = list_files(folder)
    return [(f"./{listing.name(number)}", int(listing.size[number])) for number in range(len(listing))]


def in_tar(tar: Path) -> list[tuple[str, int]]:
    """The files of a tar, as Python reads it."""
    with tarfile.open(tar, errors="surrogateescape") as file:
        return [(member.name, member.size) for member in file if member.isreg()]


@pytest.mark.parametrize(
    "names",
    [
        ["b.jpg", "a.jpg"],
        ["a/x.jpg", "a-b/x.jpg", "a.jpg"],  # folder by folder: a/x, a-b/x, a.jpg
        ["a/b/c/d.jpg", "a/b.jpg", "a/b/c.jpg", "a/b/c-.jpg", "a.b/c.jpg"],
        ["A.jpg", "a.JPG", "b.JpEg", "B.jpg"],
        [".hidden.jpg", "..more.jpg", "__MACOSX", "@eaDir"],
        ["with space.jpg", " .jpg", "line\nend.jpg", "tab\t.jpg", "\x1b[31m.jpg", "back\\slash.jpg", '"quoted".jpg'],
        ["é.jpg", "e\u0301.jpg", "z.jpg", "日本.jpg", "\U0001f431.jpg"],
        [os.fsdecode(b"latin-\xe9.jpg"), os.fsdecode(b"\xff/\xfe.jpg"), "utf-8-é.jpg"],  # by bytes, not by letters
        ["x" * 200 + ".jpg", f"{'d' * 90}/{'e' * 90}/{'f' * 200}.jpg", "x" * 100, "x" * 99 + "/y"],
        ["no extension", "two.dots.jpg", "-", "--sort", "@list", "*", "[a].jpg", "{a}.jpg"],
        [],
    ],
    ids=lambda names: ascii(" ".join(names))[1:30],
)
def test_the_files_come_in_the_order_of_tar(root: Path, names: list[str]) -> None:
    write_tree(root, {name: b"x" * number for number, name in enumerate(names)})
    (root / "empty folder").mkdir()
    assert listed(root) == in_tar(tar_of(root, root.with_suffix(".tar")))
    assert len(listed(root)) == len(names)


def test_links_are_followed_and_each_file_counts_wherever_it_is(root: Path, tmp_path: Path) -> None:
    write_tree(root, {"a/1.jpg": b"1", "b/2.jpg": b"22", "empty.jpg": b""})
    write_tree(tmp_path / "elsewhere", {"deep/3.jpg": b"333"})
    (root / "c").symlink_to("a")
    (root / "d").symlink_to(tmp_path / "elsewhere")
    (root / "4.jpg").symlink_to("b/2.jpg")
    (root / "5.jpg").symlink_to("4.jpg")
    (root / "b" / "6.jpg").hardlink_to(root / "a" / "1.jpg")
    assert listed(root) == in_tar(tar_of(root, tmp_path / "a.tar"))
    assert [name for name, _ in listed(root)] == [
        *("./4.jpg", "./5.jpg", "./a/1.jpg", "./b/2.jpg", "./b/6.jpg", "./c/1.jpg", "./d/deep/3.jpg", "./empty.jpg")
    ]


@pytest.mark.parametrize("target", [".", "..", "../..", "../../photos"])
def test_a_folder_that_contains_itself_is_an_error_that_names_the_link(root: Path, target: str) -> None:
    write_tree(root, {"a/1.jpg": JPEG})
    (root / "a" / "again").symlink_to(target)
    with pytest.raises(DataError, match=r"photos/a/again.* is again within itself, because of a link: remove the link"):
        list_files(root)


@pytest.mark.parametrize(
    ("pictures", "links"),
    [
        (1, 20),
        (1, 2000),  # links to a small folder, as many as you like
        (2000, 55),  # 110,000 again; links count as files that are there
    ],
)
def test_links_to_one_folder_are_no_loop(root: Path, pictures: int, links: int) -> None:
    write_tree(root, {f"a/{number}.jpg": b"" for number in range(pictures)})
    for number in range(links):
        (root / f"link-{number}").symlink_to("a")
    assert len(list_files(root)) == pictures * (1 + links)


@pytest.mark.slow(kept=0)
def test_links_that_double_the_folders_at_each_step_come_to_an_end(root: Path) -> None:
    for number in range(40):
        (root / f"{number}").mkdir()
        for name in "ab":
            (root / f"{number}" / name).symlink_to(f"../{number + 1}")
    write_tree(root, {"40/1.jpg": JPEG})
    with pytest.raises(DataError, match="allowed are 100,000, and 10 for each of the 122 that are there"):
        list_files(root)


@pytest.mark.parametrize("place", ["photos", ".cache/photos", "@eaDir", "a/__MACOSX/.photos"])
def test_hidden_folders_are_left_out_below_the_folder_that_is_given(tmp_path: Path, place: str) -> None:
    shown = ["a/1.jpg", "a.b/1.jpg", "eaDir/1.jpg", "x__MACOSX/1.jpg", "x@eaDir/.1.jpg", "~/1.jpg"]
    hidden = [".x/1.jpg", "..y/1.jpg", "a/.../1.jpg", "__MACOSX/a/1.jpg", "a/b/@eaDir/1.jpg/2.jpg", "a/.x/1.cls"]
    root = write_tree(tmp_path / place, dict.fromkeys([*shown, *hidden], JPEG))
    (root / ".links").mkdir()
    (root / ".links" / "again").symlink_to("..")
    (root / ".links" / "nowhere.jpg").symlink_to("nowhere")
    listing = list_files(root)
    assert sorted(map(listing.name, range(len(listing)))) == sorted(shown)
    assert (listing.others, listing.hidden) == ([], (6, "..y/1.jpg"))
    assert sorted(listing.top_folders) == ["a", "a.b", "eaDir", "x@eaDir", "x__MACOSX", "~"]


def test_what_is_no_file_is_named_with_the_cause(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(root, {"1.jpg": JPEG})
    (root / "broken.jpg").symlink_to("nowhere")
    (root / "itself.jpg").symlink_to("itself.jpg")
    os.mkfifo(root / "pipe.jpg")
    (root / "null.jpg").symlink_to("/dev/null")
    monkeypatch.chdir(root)  # the address of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.jpg")
    expected = {
        "broken.jpg": "No such file or directory",
        "itself.jpg": "Too many levels of symbolic links",
        "null.jpg": "a device, not a file",
        "pipe.jpg": "a pipe, not a file",
        "socket.jpg": "a socket, not a file",
    }
    assert dict(list_files(root).others) == expected
    index = scan_folder(Folder(root))
    assert {item.name: item.why for item in index.left_out} == {f"./{name}": why for name, why in expected.items()}
    assert index.left_out_count == len(expected)
    assert [index.key(row) for row in range(len(index))] == ["./1"]


def test_names_and_paths_of_any_length_are_listed_or_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of over 4,096 bytes exists, but the system opens it in steps alone."""
    write_tree(root, {f"{'é' * 125}.jpg"[:255]: JPEG, "1.jpg": JPEG, "\x1b[31mred\n.jpg": JPEG})
    monkeypatch.chdir(root)
    for _ in range(20):
        Path("d" * 255).mkdir()
        os.chdir("d" * 255)
    Path("deep.jpg").write_bytes(JPEG)
    monkeypatch.chdir(root.parent)
    folder = Folder(Path("photos"))
    assert len(folder.listing) == 3
    [(name, why)] = folder.listing.others
    assert name.startswith("ddd")
    assert len(name) > 3000
    assert why == "File name too long"
    index = scan_folder(folder)
    assert (len(index), index.left_out_count) == (3, 1)
    assert max(len(item.name) for item in index.left_out) <= 500


def test_files_that_come_and_go_while_a_folder_is_listed_do_not_matter_to_the_others(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the names of a folder were read, one file is gone, and a folder became a file."""
    names_of = os.listdir

    def changing(folder: str) -> list[str]:
        names = names_of(folder)
        if folder == f"{photos}/a":
            (photos / "a" / "0.jpg").unlink()
            shutil.rmtree(photos / "b")
            (photos / "b").write_bytes(b"")
        return names

    monkeypatch.setattr(os, "listdir", changing)
    listing = list_files(photos)
    assert listing.others == [("a/0.jpg", "No such file or directory")]
    assert [listing.name(number) for number in range(len(listing))] == ["a/0.cls", "a/1.cls", "a/1.jpg", "b"]


PROGRAM = """
import sys
from pathlib import Path
from gpuloader.errors import DataError
from gpuloader.shards import open_index
from gpuloader.shards.folder import Folder
try:
    index = open_index(Folder(Path(sys.argv[1])))
    print(len(index), *[f"{item.name} ({item.why})" for item in index.left_out])
except DataError as error:
    print(error)
"""


def test_a_folder_that_may_not_be_read_is_an_error(root: Path) -> None:
    write_tree(root, {"1.jpg": JPEG, "closed/2.jpg": JPEG})
    (root / "closed").chmod(0)
    said = where_modes_hold().run(PROGRAM, root).stdout
    (root / "closed").chmod(0o755)
    assert "photos/closed cannot be read (Permission denied): check your permissions, or leave the folder out" in said


def test_a_file_that_may_not_be_read_is_named_and_left_out_until_it_may(root: Path) -> None:
    """Its size, times and inode stay as they are when it is allowed."""
    write_tree(root, {"1.jpg": JPEG, "2.jpg": JPEG, "3.jpg": JPEG})
    (root / "2.jpg").chmod(0)
    for _ in range(2):
        assert where_modes_hold().run(PROGRAM, root).stdout == "2 ./2.jpg (Permission denied)\n"
    (root / "2.jpg").chmod(0o644)
    assert where_modes_hold().run(PROGRAM, root).stdout == "3\n"


# --- its samples


SAMPLES = {
    "pairs": {
        f"{i:04d}.{ext}": data for i in range(3) for ext, data in {"jpg": jpeg(9 + i, 9), "cls": b"%d" % i}.items()
    },
    "classes": {"b/1.jpg": JPEG, "a/1.jpg": JPEG, "a-b/1.png": encoded(picture(5, 6), "PNG"), "a.jpg": JPEG},
    "formats": {
        "1.png": encoded(picture(5, 6), "PNG"),
        "2.webp": encoded(picture(5, 6), "WEBP"),
        "3.bmp": encoded(picture(5, 6), "BMP"),
        "4.tiff": encoded(picture(5, 6), "TIFF"),
        "5.npy": saved(np.zeros((4, 3, 3), np.uint8)),
    },
    "upper case": {"a.JPG": JPEG, "b.Jpeg": JPEG, "a.CLS": b"7"},
    "components": {"a.jpg": JPEG, "a.json": b"{}", "a.mask.png": encoded(picture(8, 12), "PNG"), "a.txt": b""},
    "turned": {"a.jpg": encoded(picture(10, 20), "JPEG", exif=turned(6))},
    "far headers": {"a.jpg": JPEG[:2] + b"\xff\xe1\xff\xff" + bytes(65533) + JPEG[2:]},
    "wrong": {"a.jpg": b"", "b.jpg": b"no image", "c.jpg": JPEG[:40], "d.jpg": JPEG, "d.cls": b"x", "e.cls": b"1" * 99},
    "one key": {"a.1.jpg": JPEG, "a.2.jpg": JPEG, "b.jpg": JPEG, "b.png": encoded(picture(5, 6), "PNG")},
    "no samples": {"a": JPEG, ".b.jpg": JPEG, "c.txt": b"", "d.cls": b"1"},
    "hidden": {"a/1.jpg": JPEG, ".x/1.jpg": JPEG, "a/@eaDir/1.jpg": JPEG, "__MACOSX/._1.jpg": b"", ".x/1.cls": b""},
    "names": {os.fsdecode(b"\xff/\xe9.jpg"): JPEG, "x" * 200 + ".jpg": JPEG, "line\nend.jpg": JPEG},
}


@pytest.mark.parametrize("files", SAMPLES.values(), ids=SAMPLES.keys())
def test_the_index_of_a_folder_is_that_of_its_tar(root: Path, files: dict[str, bytes]) -> None:
    write_tree(root, files)
    folder, tar = Folder(root), tar_of(root, root.with_suffix(".tar"))
    index, expected = scan_folder(folder), scan(tar)
    for name in ("image_size", "height", "width", "orientation", "traits", "label"):
        assert index.column(name).tolist() == expected.column(name).tolist(), name
    assert [index.key(row) for row in range(len(index))] == [expected.key(row) for row in range(len(expected))]
    assert [index.facts[name] for name in ("data_digest", "hidden")] == [
        expected.facts[name] for name in ("data_digest", "hidden")
    ]
    assert index.extensions == expected.extensions
    assert [(item.name, item.why) for item in index.left_out] == [(item.name, item.why) for item in expected.left_out]
    assert index.left_out_count == expected.left_out_count
    content = tar.read_bytes()
    for row in range(len(index)):
        pairs = zip(index.components(row), expected.components(row), strict=True)
        for (extension, offset, size), (expected_extension, expected_offset, expected_size) in pairs:
            assert (extension, size) == (expected_extension, expected_size)
            assert folder.read(size, offset) == content[expected_offset : expected_offset + size]


# --- its index file


def test_a_folder_has_one_index_however_it_is_named(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (photos.parent / "link").symlink_to(photos)
    monkeypatch.chdir(photos)
    names = (photos, Path(), Path("../photos"), photos.parent / "link")
    assert len({index_file(Folder(name)) for name in names}) == 1


def test_an_index_is_not_made_again_while_nothing_changes(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = open_index(Folder(photos))
    before = index_file(Folder(photos)).stat()
    (photos / "a" / "0.jpg").chmod(0o600)
    (photos.parent / "link").hardlink_to(photos / "a" / "1.jpg")
    assert open_index(Folder(photos)).digest() == first.digest()
    assert index_file(Folder(photos)).stat().st_ino == before.st_ino
    assert caplog.text == ""


def replace_by_another(file: Path) -> None:
    """As large and as old."""
    new, before = file.with_suffix(".new"), file.stat()
    new.write_bytes(file.read_bytes())
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(file)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "a" / "9.jpg").write_bytes(JPEG),
        lambda root: (root / "a" / "0.cls").unlink(),
        lambda root: (root / "b" / "3.jpg").write_bytes(JPEG),
        lambda root: (root / "b" / "3.cls").rename(root / "b" / "3.txt"),
        lambda root: os.utime(root / "b" / "4.jpg", ns=(1, 1)),
        lambda root: replace_by_another(root / "a" / "1.jpg"),
        lambda root: (root / "notes").write_bytes(b""),
        lambda root: write_tree(root, {".x/1.jpg": JPEG}),
    ],
    ids=["added", "removed", "resized", "renamed", "made older", "replaced", "no image", "hidden"],
)
def test_the_index_of_a_folder_that_changed_is_made_again(
    photos: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], object]
) -> None:
    open_index(Folder(photos))
    change(photos)
    again, expected = open_index(Folder(photos)), scan_folder(Folder(photos))
    assert (again.digest(), again.facts) == (expected.digest(), expected.facts)
    said = f"{photos} changed since it was indexed: it is indexed again"
    assert [record.getMessage() for record in caplog.records if "indexed" in record.getMessage()] == [said]
    caplog.clear()
    open_index(Folder(photos))
    assert caplog.text == ""


def test_an_index_that_names_all_that_was_left_out_is_used_again(root: Path) -> None:
    """It is larger than the folder that it is of."""
    write_tree(root, {"1.jpg": b""})
    for number in range(LEFT_OUT_KEPT + 1):
        (root / f"{number:0200d}{chr(0x1F431) * 10}").symlink_to("nowhere")
    assert open_index(Folder(root)).left_out_count == LEFT_OUT_KEPT + 1
    before = index_file(Folder(root)).stat()
    assert open_index(Folder(root)).left_out_count == LEFT_OUT_KEPT + 1
    assert index_file(Folder(root)).stat().st_ino == before.st_ino
