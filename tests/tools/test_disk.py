"""How fast shards can be read."""

from pathlib import Path

import pytest

from gpuloader.shards import Folder
from gpuloader.tools.disk import DiskSpeed, measure_disk


@pytest.mark.parametrize(
    ("sizes", "read_bytes"),
    [([1 << 20], 128 << 10), ([1000], 1000), ([10, 200 << 10], 128 << 10), ([0, 1000], 1000), ([1000] * 100, 1000)],
)
def test_shards_of_any_size_are_measured(tmp_path: Path, sizes: list[int], read_bytes: int) -> None:
    shards = [tmp_path / f"{number}.tar" for number in range(len(sizes))]
    for shard, size in zip(shards, sizes, strict=True):
        shard.write_bytes(bytes(size))
    speed = measure_disk(shards, seconds=0.05)
    assert speed.read_bytes == read_bytes
    assert speed.bytes_per_second > 0
    assert speed.reads_per_second > 0


def test_empty_shards_are_read_at_no_speed(tmp_path: Path) -> None:
    (tmp_path / "a.tar").touch()
    speed = measure_disk([tmp_path / "a.tar"], seconds=0.05)
    assert isinstance(speed, DiskSpeed)
    assert (speed.bytes_per_second, speed.read_bytes) == (0.0, 0)


@pytest.mark.parametrize(("sizes", "read_bytes"), [([1000] * 100, 1000), ([0, 3000], 1500), ([5], 5)])
def test_the_files_of_a_folder_are_read_whole(tmp_path: Path, sizes: list[int], read_bytes: int) -> None:
    for number, size in enumerate(sizes):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(size))
    speed = measure_disk([Folder(tmp_path)], seconds=5)
    assert speed.read_bytes == read_bytes
    assert min(speed.bytes_per_second, speed.reads_per_second) > 0
