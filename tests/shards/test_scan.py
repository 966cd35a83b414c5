"""Scanning a tar that is damaged: what stands before the damage."""

import tarfile
from pathlib import Path

from making import write_samples

from gpuloader.shards import open_index, scan_to_damage


def test_a_whole_tar_has_no_damage(tmp_path: Path) -> None:
    [tar] = write_samples(tmp_path, 5, shards=1)
    index, damage = scan_to_damage(tar)
    assert damage is None
    assert index.digest() == open_index(tar).digest()


def test_the_members_before_the_damage_are_indexed_and_the_damage_is_named(tmp_path: Path) -> None:
    [tar] = write_samples(tmp_path, 5, shards=1)
    with tarfile.open(tar) as file:
        cut = file.getmember("000003.jpg").offset_data + 100
    tar.write_bytes(tar.read_bytes()[:cut])
    index, damage = scan_to_damage(tar)
    assert [index.key(row) for row in range(len(index))] == ["000000", "000001", "000002"]
    assert damage is not None
    assert damage.problem.startswith("truncated: a member of ")
    assert damage.offset < cut
    assert [item.name for item in index.left_out] == ["000003.cls"]
