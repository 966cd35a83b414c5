"""Index files that are damaged or forged, checksum and all, by each way to read one.

They are an `IndexFileError`, or an index that points into its shards alone; beside a shard they are made again.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from forging import damages, forgeries, parts_of, sealed, use, with_column
from hostile import mutated_bytes, mutated_json
from making import write_samples
from serving import Server
from synthetic import saved_index

from gpuloader import GPULoader
from gpuloader.errors import ConfigError, IndexFileError, ShardChangedError
from gpuloader.shards import (
    Arena,
    Index,
    ShardSet,
    index_file,
    merge_indexes,
    open_index,
    resolve_local,
    resolve_shards,
)
from gpuloader.shards.index import write_index
from gpuloader.shards.remote import RemoteShard, ShardCache, open_remote
from gpuloader.shards.scan import scan
from gpuloader.tools.check import check_shards
from gpuloader.tools.index import index_shards

FILE = "all.gpuset"
SHARDS = 4


class Reader(NamedTuple):
    """A right index file; what reads and uses data in its place, how many mutants it gets, and the store it is on."""

    whole: bytes
    read: Callable[[bytes], None]
    count: int
    server: Server | None = None


def of_one_shard(folder: Path, _: ExitStack) -> Reader:
    [shard] = write_samples(folder, 6, shards=1)
    open_index(shard)
    return Reader(index_file(shard).read_bytes(), lambda data: use(Index.parse_one(data, FILE)), 1000)


def of_several_shards(folder: Path, _: ExitStack) -> Reader:
    file, indexes = io.BytesIO(), list(map(scan, write_samples(folder, 12, shards=3)))
    write_index(file, indexes, indexes, ["a.tar", "b.tar", "c.tar"])
    return Reader(file.getvalue(), lambda data: use(Index.parse(data, FILE)), 500)


def mapped(folder: Path, stack: ExitStack) -> Reader:
    def read(data: bytes) -> None:
        (folder / FILE).unlink(missing_ok=True)  # a file that is mapped may not change
        (folder / FILE).write_bytes(data)
        use(Index.map(folder / FILE))

    return of_several_shards(folder, stack)._replace(read=read, count=100)


def merged(folder: Path, _: ExitStack) -> Reader:
    merge_indexes(resolve_local(write_samples(folder, 12, shards=SHARDS)), folder / FILE)

    def read(data: bytes) -> None:
        (folder / FILE).write_bytes(data)
        read_all(ShardSet.open(resolve_shards(folder / FILE)))

    return Reader((folder / FILE).read_bytes(), read, 30)


def merged_and_mapped(folder: Path, stack: ExitStack) -> Reader:
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    for module in ("index_files", "merged"):
        patch.setattr(f"gpuloader.shards.{module}.MOST_COPIED_BYTES", 0)
    return merged(folder, stack)


def merged_on_a_store(folder: Path, stack: ExitStack) -> Reader:
    write_samples(folder, 12, shards=SHARDS)
    server = stack.enter_context(Server(folder))
    url = f"{server.url}/{FILE}"
    index_shards([f"{server.url}/train-{{0000..0003}}.tar"], output=str(folder / FILE))

    def read(data: bytes) -> None:
        (folder / FILE).write_bytes(data)
        read_all(ShardSet.open(resolve_shards(url), cache=folder / "cache", cache_bytes=10**9))

    return Reader((folder / FILE).read_bytes(), read, 10, server)


def read_all(opened: ShardSet) -> None:
    use(opened.index)
    opened.read_images(np.arange(len(opened)), Arena())


ON_DISK = (of_one_shard, of_several_shards, mapped, merged, merged_and_mapped)


@pytest.fixture(params=[*ON_DISK, merged_on_a_store], ids=lambda make: make.__name__)
def reader(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Each of them, with an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    with ExitStack() as stack:
        made: Reader = request.param(tmp_path / "data", stack)
        made.read(made.whole)
        shutil.rmtree(tmp_path / "user", ignore_errors=True)
        yield made


def is_refused(reader: Reader, data: bytes) -> bool:
    """Whether it is no index; any other error goes on."""
    try:
        reader.read(data)
    except IndexFileError as error:
        said = str(error)
    except (ShardChangedError, ConfigError):  # it says another size or name of a shard
        return reader.read.__qualname__.startswith("merged")
    else:
        return False
    return FILE in said or "/gpuloader/set-" in said  # its own copy


def test_what_is_damaged_is_never_used_nor_kept(reader: Reader, tmp_path: Path) -> None:
    unlike = {str(n): data for n, data in enumerate(mutated_bytes(reader.whole, reader.count)) if data != reader.whole}
    for name, data in {**damages(reader.whole), **unlike}.items():
        assert is_refused(reader, data), name
        assert not list(tmp_path.glob("user/gpuloader/set-*")), name


def test_columns_and_headers_that_cannot_be_are_never_used(reader: Reader) -> None:
    assert [name for name, data in forgeries(reader.whole).items() if not is_refused(reader, data)] == []


def test_columns_changed_at_random_lead_nowhere_else(reader: Reader) -> None:
    """Right digests around any bytes."""
    parts = parts_of(reader.whole)
    for area in ("header", "table", "columns") if reader.count > 100 else ("table", "columns"):
        changed = mutated_bytes(getattr(parts, area), reader.count)
        wrong = [is_refused(reader, sealed(parts._replace(**{area: each}))) for each in changed]
        assert sum(wrong) > 0.3 * reader.count


# --- each value of one shard's


@pytest.fixture
def one(tmp_path: Path) -> Reader:
    return of_one_shard(tmp_path, ExitStack())


def test_no_byte_and_no_end_may_differ(one: Reader) -> None:
    whole, rng = one.whole, random.Random(0)
    changed = [whole[:at] + bytes([whole[at] ^ rng.randrange(1, 256)]) + whole[at + 1 :] for at in range(len(whole))]
    cut = [whole[:at] for at in range(len(whole))]
    assert all(is_refused(one, data) for data in changed + cut)


def test_headers_with_hostile_values(one: Reader) -> None:
    parts = parts_of(with_column(one.whole, "left_out_count", lambda _: np.ones(1)))
    header = json.loads(parts.header)
    header["left_out"] = [["a.txt", 512, "its key has no image", 0]]
    header["hidden"] = [3, ".x/a.jpg", 0]
    one.read(sealed(parts._replace(header=json.dumps(header).encode())))
    wrong = [is_refused(one, sealed(parts._replace(header=text.encode()))) for text in mutated_json(header)]
    assert len(wrong) > 600
    assert sum(wrong) > 0.85 * len(wrong)  # what is left changes names, numbers left out and the like


def test_columns_with_hostile_values(one: Reader) -> None:
    rng, wrong, counts = random.Random(0), [], json.loads(parts_of(one.whole).header)["counts"]
    for name, (dtype, counted) in {**Index.HEAD, **Index.COLUMNS}.items():
        kind = np.dtype("<i8" if dtype == "|V16" else dtype)
        limits = np.iinfo(kind)
        if not counts[counted]:
            continue
        values = (-1, 0, 1, 2, 3, 9, 511, 2**31 - 1, 2**31, 2**62, limits.max - 1, limits.max, limits.min)
        for value in 8 * [value for value in values if limits.min <= value <= limits.max]:

            def put(column: np.ndarray, kind: np.dtype = kind, value: int = value) -> np.ndarray:
                numbers = column.view(kind).copy()
                last = len(numbers) - 1
                numbers[rng.choice((0, last, rng.randint(0, last), slice(None)))] = value
                return numbers.view(column.dtype)

            wrong.append(is_refused(one, with_column(one.whole, name, put)))
    assert len(wrong) > 1000
    assert sum(wrong) > 0.4 * len(wrong)  # any label is a label, any byte may stand in a key, and any time is a time


# --- names


OUTSIDE = (
    *("../outside.tar", "/outside.tar", "a/../../outside.tar", "a/../outside.tar", "/train-0000.tar"),
    *("./train-0000.tar", "a//train-0000.tar", "a/./train-0000.tar", "a\0/train-0000.tar"),
)
OF_A_URL = (
    *("//other.host/x.tar", "http://other.host/x.tar", "a/%2e%2e/%2E%2E/outside.tar", "%2e%2e%2foutside.tar"),
    *("a/..", "..", "x.tar?y", "x#.tar", "a\\..\\..\\x.tar", "..%5coutside.tar", "..%255Coutside.tar"),
    # Clients drop tabs and line ends of a URL. Servers decode twice, and cut parameters and spaces.
    *(f".{drop}./outside.tar" for drop in ("\t", "\n", "\r", "\0", "\x7f", "\x85", "%09", "%0a")),
    *(f"{dots}/outside.tar" for dots in ("%2e%00.", "%252e%252e", "%25252e.", "..;", "..;a=b", "..%3B")),
    *(f"{dots}/outside.tar" for dots in (".. ", "..%20", " %2e. ;x")),
    *("a%2f%2fx.tar", "a/.../x.tar", "a/ /x.tar", "a/;x/x.tar", "a/%20"),
    f"%{'25' * 100_000}x.tar",  # decoding this until nothing changes would take minutes
)


@pytest.mark.parametrize("reader", [merged, merged_on_a_store], indirect=True, ids=["disk", "store"])
def test_names_do_not_leave_the_folder(reader: Reader, tmp_path: Path) -> None:
    parts, server = parts_of(reader.whole), reader.server
    names = json.loads(parts.header)["names"]
    shutil.copy(next(tmp_path.glob("data/train-0000.tar")), tmp_path / "outside.tar")
    if server is not None:
        server.asked.clear()
    absolute = str(tmp_path / "outside.tar")
    for name in (*OUTSIDE, absolute, names[1], *(OF_A_URL if server else ())):
        forged = parts.header.replace(json.dumps(names[0]).encode(), json.dumps(name).encode(), 1)
        assert forged != parts.header
        with pytest.raises(IndexFileError, match=r"not below its folder|names a shard twice"):
            reader.read(sealed(parts._replace(header=forged)))
    assert server is None or {asked for _, asked in server.asked} == {FILE}


@pytest.mark.parametrize("tag", ['"x", ', "3, "])
def test_a_tag_too_many_or_of_another_kind_is_an_error(tmp_path: Path, tag: str) -> None:
    with ExitStack() as stack:
        reader = merged_on_a_store(tmp_path, stack)
        parts = parts_of(reader.whole)
        header = parts.header.replace(b'"tags": [', b'"tags": [' + tag.encode())
        with pytest.raises(IndexFileError, match="wrong names or tags"):
            reader.read(sealed(parts._replace(header=header)))


def test_the_index_of_one_shard_is_no_merged_one_and_the_reverse(tmp_path: Path) -> None:
    reader = merged(tmp_path, ExitStack())
    with pytest.raises(IndexFileError, match="names a shard twice, or none"):
        reader.read(index_file(tmp_path / "train-0000.tar").read_bytes())
    with pytest.raises(IndexFileError, match="of 4 shards, not of one"):
        Index.parse_one(reader.whole, FILE)


# --- beside a shard


def test_the_shard_is_scanned_again(tmp_path: Path) -> None:
    [shard] = write_samples(tmp_path, 6, shards=1)
    open_index(shard)
    file, expected = index_file(shard), scan(shard).digest()
    whole = file.read_bytes()
    wrong = {**damages(whole), **forgeries(whole)}
    for name, data in wrong.items():
        file.write_bytes(data)
        assert open_index(shard).digest() == saved_index(shard).digest() == expected, name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train-0000.tar", "train-0000.tar.gpuidx"]
    file.write_bytes(wrong["header b'NaN'"])
    assert check_shards([shard], device_id=None).samples == 6
    file.write_bytes(wrong["header b'NaN'"])
    with GPULoader(shard, 2, None, preset="imagenet_eval") as loader:
        assert len(loader) == 3


def test_on_a_store_the_shard_is_scanned_then(tmp_path: Path) -> None:
    [shard] = write_samples(tmp_path / "served", 6, shards=1)
    open_index(shard)
    whole, expected = index_file(shard).read_bytes(), scan(shard).digest()
    wrong = {**damages(whole), **forgeries(whole)}
    wrong["of another size"] = with_column(whole, "shard_bytes", lambda sizes: sizes + 512)
    with Server(shard.parent) as server:
        for number, name in enumerate(("a page", "flipped at -2", "component_extension, above", "of another size")):
            index_file(shard).write_bytes(wrong[name])
            cache = ShardCache(tmp_path / str(number), 10**9)
            [(_, index)] = open_remote([RemoteShard(f"{server.url}/{shard.name}")], cache)
            assert index.digest() == expected, name
            assert server.sent_bytes[shard.name] == (number + 1) * shard.stat().st_size


# --- files that are large


def sparse(path: Path, size: int, start: bytes = b"") -> None:
    """It takes no room on the disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)


def test_a_head_of_gigabytes_is_not_read(one: Reader, tmp_path: Path) -> None:
    """The file is as long as its head says."""
    start = one.whole[:8] + (10 << 30).to_bytes(8, "little") + one.whole[16:56]

    def read(count: int, offset: int) -> bytes:
        assert count <= 2 << 30
        return start[offset : offset + count]

    with pytest.raises(IndexFileError, match="a head of 53,687,091,200 bytes"):
        Index(read, 60 << 30, "an index")
    sparse(tmp_path / "all.gpuset", 60 << 30, start)
    with pytest.raises(IndexFileError, match="a head of 53,687,091,200 bytes"):
        resolve_shards(tmp_path)


def test_no_index_of_a_scan_is_too_large_to_be_read(tmp_path: Path) -> None:
    """Members that are nothing but name, each byte of which is six in the header."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(1200):
            tar.addfile(tarfile.TarInfo(os.fsdecode(b"%d.jpg" % number + b"\xff" * (90 if number % 2 else 3000))))
            tar.addfile(tarfile.TarInfo(os.fsdecode(b".%d" % number + b"\xff" * 3000)))
        tar.addfile(tarfile.TarInfo("a.jpg"), io.BytesIO())
    open_index(tmp_path / "a.tar")
    assert len(saved_index(tmp_path / "a.tar")) == 1
