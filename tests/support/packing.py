"""Helpers that make sources of pictures, and read back what was packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from making import jpeg
from webdataset import tariterators

CLASSES = ("cat", "dog", "emu")


def write_class_folders(folder: Path, count: int = 30, size: tuple[int, int] = (24, 32)) -> Path:
    """Picture i is CLASSES[i % 3]/i.jpg."""
    for i in range(count):
        path = folder / CLASSES[i % len(CLASSES)] / f"{i:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(*size, seed=i))
    return folder


def samples_of(shards: Sequence[Path] | Path) -> list[dict[str, Any]]:
    """What webdataset reads, in order, without its own entries; of a folder, all shards by name."""
    samples = []
    for path in sorted(shards.glob("*.tar")) if isinstance(shards, Path) else shards:
        with path.open("rb") as stream:
            files = tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
            for sample in tariterators.group_by_keys(files):
                samples.append({name: value for name, value in sample.items() if name == "__key__" or name[0] != "_"})
    return samples


def content(folder: Path) -> Mapping[str, bytes]:
    """Every file below a folder, the hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
