"""Packing onto a store: the files of a local pack, also after a kill and in parts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lifecycles import loader, records
from making import jpeg
from packing import content, write_class_folders

from gpuloader import Cache
from gpuloader.errors import ConfigError, RemoteError, StateError
from gpuloader.pack import pack
from gpuloader.shards.remote.requests import Requests

URL = "s3://bucket/packed/"
OPTIONS: dict[str, Any] = {"samples_per_shard": 6, "val_share": 0.3, "workers": 1}


needs_jpegtran = pytest.mark.needs_program("jpegtran")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 pictures in class folders, and one that is bad. To be read only."""
    source = write_class_folders(tmp_path_factory.mktemp("source") / "photos", 12)
    (source / "dog" / "cut.jpg").write_bytes(jpeg(24, 32)[:-30])
    return source


@pytest.fixture(scope="module")
def local(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a pack writes into a folder."""
    folder = tmp_path_factory.mktemp("local")
    pack(photos, folder, **OPTIONS)
    return folder


@pytest.fixture(scope="module")
def expected(local: Path) -> Mapping[str, bytes]:
    """The content of its files."""
    return content(local)


@pytest.fixture(autouse=True)
def _empty(s3: Any) -> Iterator[None]:  # noqa: ANN401
    yield
    if s3.exists("bucket/packed"):
        s3.rm("bucket/packed", recursive=True)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def objects(s3: Any) -> dict[str, bytes]:  # noqa: ANN401
    """Every object of the destination."""
    return {path.removeprefix("bucket/packed/"): s3.cat_file(path) for path in s3.find("bucket/packed")}


def without_indexes(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith(".gpuidx")}


def test_the_store_has_the_files_of_a_local_pack_and_indexes(
    s3: Any,  # noqa: ANN401
    photos: Path,
    local: Path,
    expected: Mapping[str, bytes],
    temporary: Path,
) -> None:
    result = pack(photos, URL.rstrip("/"), **OPTIONS)
    files = objects(s3)
    assert without_indexes(files) == expected
    assert {name for name in files if name.endswith(".gpuidx")} == {f"{name}.gpuidx" for name in result.shards}
    again = pack(photos, local, **OPTIONS)
    assert replace(result, destination=local, written=0) == again
    assert (result.destination, result.written, len(result.left_out)) == (URL, len(result.shards), 1)
    assert pack(photos, URL, **OPTIONS) == replace(result, written=0)
    assert list(temporary.iterdir()) == []


def test_a_loader_reads_them_by_their_indexes(
    s3: Any,  # noqa: ANN401
    photos: Path,
    local: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack(photos, URL, **OPTIONS)
    with loader(local) as near:
        batches = [records(batch) for batch in near]
    monkeypatch.setattr("gpuloader.shards.remote.opening.scan_parts", None)
    monkeypatch.setattr("gpuloader.shards.remote.opening.scan_descriptor", None)
    with loader(URL, cache=Cache(tmp_path / "cache")) as far:
        assert [records(batch) for batch in far] == batches


def test_the_same_call_goes_on_after_an_interrupt_and_keeps_finished_shards(
    s3: Any,  # noqa: ANN401
    photos: Path,
    expected: Mapping[str, bytes],
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tars = [name for name in expected if name.endswith(".tar")]
    upload, begun = Requests.upload, []

    def interrupted(requests: Requests, file: Path) -> None:
        begun.extend([file.name] if file.suffix == ".tar" else [])
        if len(begun) == 2:
            raise KeyboardInterrupt
        upload(requests, file)

    with monkeypatch.context() as patch:
        patch.setattr(Requests, "upload", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pack(photos, URL, **OPTIONS)
    assert list(temporary.iterdir()) == []
    finished, half = begun
    files = objects(s3)
    assert finished in files
    assert half not in files
    assert f"{half}.gpuidx" in files
    s3.pipe(f"bucket/packed/{finished}", b"of another size")  # would be written again if it was not kept
    assert pack(photos, URL, **OPTIONS).written == len(tars) - 1
    assert without_indexes(objects(s3)) == {**expected, finished: b"of another size"}


def test_parts_together_write_what_one_writes(s3: Any, photos: Path, expected: Mapping[str, bytes]) -> None:  # noqa: ANN401
    first = pack(photos, URL, part=(1, 2), **OPTIONS)
    assert first.missing
    last = pack(photos, URL, part=(0, 2), **OPTIONS)
    assert (last.missing, last.samples, last.written) == ((), 12, len(first.missing))
    assert without_indexes(objects(s3)) == expected


def test_a_list_of_a_half_shard_does_not_outlive_it(s3: Any, tmp_path: Path) -> None:  # noqa: ANN401
    source = write_class_folders(tmp_path / "photos", 3)
    s3.pipe("bucket/packed/left_out/train-000000.jsonl", b'{"name": "a", "key": "a", "why": "cut"}\n')
    assert pack(source, URL, workers=1).left_out == ()


def test_another_pack_is_refused_by_url(s3: Any, photos: Path) -> None:  # noqa: ANN401
    pack(photos, URL, **OPTIONS)
    before = objects(s3)
    with pytest.raises(StateError, match=r"^s3://bucket/packed/pack-val.json: another pack .*seed was 0, is 1"):
        pack(photos, URL, seed=1, **OPTIONS)
    s3.pipe("bucket/packed/old-000000.tar", b"")
    with pytest.raises(StateError, match=r"^s3://bucket/packed has tars that no pack wrote, such as old-000000.tar"):
        pack(photos, URL, **OPTIONS)
    s3.rm("bucket/packed/old-000000.tar")
    assert objects(s3) == before


def test_another_pack_that_begins_at_the_same_time_is_found(
    s3: Any,  # noqa: ANN401
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upload = Requests.upload

    def overtaken(requests: Requests, file: Path) -> None:
        upload(requests, file)
        if file.name == "pack-train.json":
            s3.pipe("bucket/packed/pack-train.json", file.read_bytes().replace(b'"seed": 0', b'"seed": 9'))

    monkeypatch.setattr(Requests, "upload", overtaken)
    with pytest.raises(StateError, match="seed was 9, is 0"):
        pack(photos, URL, **OPTIONS)


def test_labels_are_numbered_by_the_stores_classes(s3: Any, tmp_path: Path) -> None:  # noqa: ANN401
    source = write_class_folders(tmp_path / "photos", 3)
    assert pack(source, URL, workers=1).classes == ("cat", "dog", "emu")
    (source / "cat" / "000.jpg").unlink()
    (source / "cat").rmdir()
    assert pack(source, URL, prefix="val", workers=1).classes == ("cat", "dog", "emu")
    with loader("s3://bucket/packed/val-000000.tar", 2, cache=Cache(tmp_path / "cache")) as batches:
        assert sorted(label for batch in batches for label in batch["label"].tolist()) == [1, 2]


@needs_jpegtran
def test_jpegs_are_counted_in_the_stores_indexes(s3: Any, photos: Path) -> None:  # noqa: ANN401
    pack(photos, URL, part=(0, 2), seekable=True, **OPTIONS)
    result = pack(photos, URL, part=(1, 2), seekable=True, **OPTIONS)
    assert (result.missing, result.jpegs, result.seekable) == ((), 12, 12)


def test_a_failed_upload_is_tried_again(
    s3: Any,  # noqa: ANN401
    photos: Path,
    expected: Mapping[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upload, tried = Requests.upload, set()

    def unreliable(requests: Requests, file: Path) -> None:
        if file.name not in tried:
            tried.add(file.name)
            raise OSError("the connection was reset")
        upload(requests, file)

    monkeypatch.setattr(Requests, "upload", unreliable)
    pack(photos, URL, **OPTIONS)
    assert without_indexes(objects(s3)) == expected


def test_a_listing_that_fails_is_not_an_empty_one(s3: Any, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    def fails(requests: Requests) -> None:
        raise OSError("the connection was reset")

    monkeypatch.setattr(Requests, "list_folder", fails)
    with pytest.raises(RemoteError, match=r"s3://bucket/packed/: OSError: the connection was reset \(5 tries\)"):
        pack(photos, URL, **OPTIONS)
    assert objects(s3) == {}


def test_a_small_file_that_is_too_large_is_refused(s3: Any, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    monkeypatch.setattr("gpuloader.pack.destination.MOST_CLASSES_BYTES", 100)
    s3.pipe("bucket/packed/left_out/train-000000.jsonl", b" " * 101)
    with pytest.raises(RemoteError, match=r"left_out/train-000000.jsonl: it is missing, .* or has more than 100 bytes"):
        pack(photos, URL, **OPTIONS)


def test_a_bucket_that_is_missing_is_said(s3: Any, photos: Path) -> None:  # noqa: ANN401
    with pytest.raises(RemoteError, match=r"^s3://elsewhere/classes.json: the store has no such bucket"):
        pack(photos, "s3://elsewhere/", **OPTIONS)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "https://me:secret@example.org/a/?key=secret",
            r"^https://example.org/a/: https:// cannot be written to: give",
        ),
        ("ftp://example.org/a/", "ftp:// is not supported"),
        ("s3://bucket/a-{0..9}/", "allowed is the URL of one folder"),
        ("s3://bucket/*/", "allowed is the URL of one folder"),
    ],
)
def test_urls_that_are_no_folder_to_write_to_are_refused(photos: Path, url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        pack(photos, url, **OPTIONS)
