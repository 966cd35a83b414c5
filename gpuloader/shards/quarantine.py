"""Reads and writes the quarantine file: known bad images, as JSON Lines.

    {"shard": "train-0003.tar", "key": "n01440764_10026", "offset": 1536, "cause": "a JPEG that is cut: ..."}

The shard is named without its folder, so that the file stays valid if the shards are moved. The offset is the position
of the image in the shard. For a folder of files, the shard is the file ("photos/cat/0001.jpg"), and the offset is 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gpuloader.base.atomic_files import atomic_file
from gpuloader.base.regular_file import read_regular
from gpuloader.errors import ConfigError, DataError, describe
from gpuloader.shards.folder import Folder
from gpuloader.shards.shard_set import ShardSet

_Entry: TypeAlias = tuple[str, str, int, str]
_TYPES = {"shard": str, "key": str, "offset": int, "cause": str}
_MOST_BYTES = 256 << 20  # a line takes about 150


def write_quarantine(path: Path, shards: ShardSet, bad: Mapping[int, str]) -> None:
    """Writes bad samples and their causes, sorted by id; an existing file is replaced in one step.

    Raises:
        ConfigError: the path is a folder or device, such as /dev/null.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is a folder or device: name a file")
    path = path.resolve()  # a link stays a link
    lines = []
    for sample, cause in sorted(bad.items()):
        shard, key, offset = _place(shards, sample)
        entry = {"shard": shard, "key": key, "offset": offset, "cause": cause}
        lines.append(json.dumps(entry) + "\n")
    with atomic_file(path) as file:
        file.write("".join(lines).encode())


def read_quarantine(path: Path, shards: ShardSet) -> dict[int, str]:
    """Reads the bad samples in a file, sample id -> cause.

    Raises:
        DataError: the file cannot be read, or a line names no sample of these shards.
    """
    try:
        lines = read_regular(path, _MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the quarantine file {path} cannot be read: {error}") from None
    entries = [_entry(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
    samples = _samples_at(shards, entries)
    causes: dict[int, str] = {}
    for number, (name, key, offset, cause) in enumerate(entries, start=1):
        if (name, key, offset) not in samples:
            raise DataError(
                f"{path}, line {number}: no shard {describe(name)} has an image with the key {describe(key)} at byte "
                f"{offset}: the file belongs to other shards, or these have changed"
            )
        causes |= dict.fromkeys(samples[name, key, offset], cause)
    return causes


def _entry(line: str, where: str) -> _Entry:
    """Returns the values of a line."""
    try:
        entry = json.loads(line)
        if not isinstance(entry, dict) or not all(type(entry.get(key)) is of for key, of in _TYPES.items()):
            raise ValueError("it needs " + ", ".join(f"{key} ({of.__name__})" for key, of in _TYPES.items()))
        if not 0 <= entry["offset"] < 2**63:
            raise ValueError(f"its offset is {describe(entry['offset'])}")
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: {line[:100]!r} is not an entry of a quarantine: {error}") from None
    return entry["shard"], entry["key"], entry["offset"], entry["cause"]


def _samples_at(shards: ShardSet, entries: Sequence[_Entry]) -> Mapping[tuple[str, str, int], list[int]]:
    """Returns the samples by (shard's name, key, offset), for all samples to which an entry may refer."""
    offsets: dict[str, set[int]] = {}
    for name, _, offset, _ in entries:
        offsets.setdefault(name, set()).add(offset)
    samples: dict[tuple[str, str, int], list[int]] = {}
    for number, shard in enumerate(shards.shards):
        ids = shards.samples_of(number)
        wanted = _starts_in(shard, offsets) if isinstance(shard, Folder) else offsets.get(shard.name, ())
        image_offsets = shards.index.column("image_offset", ids.start, ids.stop)
        for row in np.flatnonzero(np.isin(image_offsets, list(wanted))).tolist():
            samples.setdefault(_place(shards, ids[row]), []).append(ids[row])
    return samples


def _place(shards: ShardSet, sample: int) -> tuple[str, str, int]:
    """Returns (name of the shard or file, key, offset) of a sample, as in a quarantine file."""
    where = shards.locate(sample)
    shard = shards.shards[shards.shard_of(sample)]
    path = Path(where.shard)
    name = f"{shard.name}/{path.relative_to(shard.path)}" if isinstance(shard, Folder) else path.name
    return name, where.key, where.offset


def _starts_in(folder: Folder, names: Iterable[str]) -> list[int]:
    """Returns the offsets of the files of a folder that `names` has as "FOLDER/FILE"."""
    wanted = {name.removeprefix(f"{folder.name}/") for name in names if name.startswith(f"{folder.name}/")}
    listing = folder.listing
    numbers = range(len(listing)) if wanted else ()
    return [int(listing.start[number]) for number in numbers if listing.name(number) in wanted]
