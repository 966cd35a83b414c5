"""How fast shards can be read."""

from pathlib import Path

import pytest

from gpuloader.shards import Folder
from gpuloader.tools.disk import measure_disk


@pytest.mark.parametrize(("size", "read_bytes"), [(1 << 20, 128 << 10), (1000, 1000), (0, 0)])
def test_shards_of_any_size_are_measured(tmp_path: Path, size: int, read_bytes: int) -> None:
    shards = [tmp_path / f"{number}.tar" for number in range(3)]
    for shard in shards:
        shard.write_bytes(bytes(size))
    per_second, mean_bytes = measure_disk(shards, seconds=0.05)
    assert (mean_bytes, per_second > 0) == (read_bytes, True)


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_the_files_of_a_folder_are_read_whole(tmp_path: Path, seconds: float) -> None:
    for number in range(9):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(200_000))
    assert measure_disk([Folder(tmp_path)], seconds)[1] == 200_000
