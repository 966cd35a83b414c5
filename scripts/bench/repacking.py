"""Makes seekable shards of plain ones, by `gpuloader pack --seekable`, and measures what that takes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from processes import tree_cpu_seconds
from systems.tars import Images, made_of, members

from gpuloader.errors import DataError
from gpuloader.pack import pack
from gpuloader.pack.seekable import find_version


def repack(shards: Sequence[Path], work: Path) -> tuple[list[Path], dict[str, Any]]:
    """A seekable shard for each shard, with the same samples in the same order; and what it took to make them.

    They are made in the folder `work` if they are not there yet.

    Raises:
        ConfigError: `jpegtran` is missing; it says how to install it.
        DataError: a sample was left out, or got another place.
    """
    folder, version = made_of(shards, work, ".seekable"), find_version()
    facts = folder / "facts.json"
    if not facts.exists():
        shutil.rmtree(folder, ignore_errors=True)
        seconds = _pack(shards, folder, seekable=True)
        with TemporaryDirectory(dir=work) as plain:
            plain_seconds = _pack(shards, Path(plain), seekable=False)
        found = _compare(shards, _packed(folder))
        per_1000 = 1000 / found["images"]
        found["packing_cpu_seconds_per_1000"] = {"plain": plain_seconds * per_1000, "seekable": seconds * per_1000}
        facts.write_text(json.dumps(found | {"jpegtran": version}))
    return _packed(folder), json.loads(facts.read_text())


def _pack(shards: Sequence[Path], folder: Path, *, seekable: bool) -> float:
    """Packs each shard into one; returns the CPU time, of `jpegtran` too."""
    started = tree_cpu_seconds()
    for number, shard in enumerate(shards):
        samples = len(members(shard))  # at most
        pack(shard, folder / f"{number:06d}", seekable=seekable, shuffle=False, samples_per_shard=samples, workers=1)
    return tree_cpu_seconds() - started


def _packed(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.tar"))


def _compare(shards: Sequence[Path], packed: Sequence[Path]) -> dict[str, Any]:
    """How many images there are, how many of them are other bytes now, and all their bytes."""
    if [_names(shard) for shard in shards] != [_names(shard) for shard in packed]:
        raise DataError("the seekable shards have other samples or another order: give shards without bad images")
    plain, seekable = Images(shards), Images(packed)
    rewritten, sizes_bytes = 0, {"plain": 0, "seekable": 0}
    for number in range(len(plain)):
        before, after = plain[number], seekable[number]
        rewritten += before != after
        sizes_bytes["plain"] += len(before)
        sizes_bytes["seekable"] += len(after)
    return {"images": len(plain), "rewritten": rewritten, "bytes": sizes_bytes}


def _names(shard: Path) -> list[str]:
    return [member.name for member in members(shard) if member.name.endswith((".jpg", ".jpeg"))]
