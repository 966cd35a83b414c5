"""The `tar` argument -> the list of shards."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from braceexpand import braceexpand
from fsspec.utils import get_protocol

from gpuloader.errors import ConfigError, ShardNotFoundError
from gpuloader.shards.index_files import INDEX_SUFFIX

Tar: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
"""A file, a folder of `*.tar`, a glob, a brace pattern (`train-{0000..0147}.tar`), or several of those."""


def resolve_shards(tar: Tar) -> list[Path]:
    """The shards in their order: as listed, as the braces count, by name within a folder or glob.

    Raises:
        ShardNotFoundError: nothing is there, with what to do about it.
        ConfigError: a URL, a pattern that cannot be read, or a shard that is named twice.
    """
    sources = [tar] if isinstance(tar, (str, os.PathLike)) or not isinstance(tar, Iterable) else list(tar)
    if not all(isinstance(source, (str, os.PathLike)) for source in sources):
        raise ConfigError(f"tar={tar!r}: allowed is a path, a folder, a pattern, or a list of those")
    shards = [shard for source in sources for shard in _expand(os.fspath(source))]
    if not shards:
        raise ShardNotFoundError(f"tar={tar!r} names no shard")
    seen: set[Path] = set()
    for shard in shards:
        if shard in seen:
            raise ConfigError(f"the shard {shard} is named twice: name it once, every sample counts once in an epoch")
        seen.add(shard)
    return shards


def _expand(source: str) -> list[Path]:
    if (protocol := get_protocol(source)) != "file":
        raise ConfigError(f"{source}: {protocol}:// is not read yet: copy the shards to a local or mounted folder")
    source = source.removeprefix("file://")
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        return _some(
            sorted(file for file in path.glob("*.tar") if not file.is_dir()), f"no *.tar in the folder {source}"
        )
    if "{" in source:
        try:
            return [shard for part in braceexpand(source) for shard in _expand(part)]
        except ValueError as error:
            raise ConfigError(f"the brace pattern {source!r} cannot be read: {error}") from None
    if glob.has_magic(source):
        found = sorted(map(Path, glob.glob(str(path), recursive=True)))
        shards = [shard for shard in found if not shard.is_dir() and shard.suffix != INDEX_SUFFIX]
        return _some(shards, f"no file matches {source}")
    raise ShardNotFoundError(f"no such file: {source}{_hint(path)}")


def _some(shards: list[Path], problem: str) -> list[Path]:
    if not shards:
        raise ShardNotFoundError(f"{problem}: check the path (relative to {Path.cwd()}), or name the shards in a list")
    return shards


def _hint(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (there is no folder {path.parent} either)"
    near = difflib.get_close_matches(path.name, [other.name for other in path.parent.iterdir()], n=3)
    return f"; near that name are {', '.join(sorted(near))}" if near else f"; the folder {path.parent} has no such name"
