"""The quarantine's file: images that are known to be bad, as JSON Lines.

    {"shard": "train-0003.tar", "key": "n01440764_10026", "offset": 1536, "cause": "a JPEG that is cut: ..."}

The shard is named without its folder, so that the file is good wherever the shards lie; the offset is that of the
image's bytes in the shard.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gpuloader.errors import ConfigError, DataError
from gpuloader.shards.shard_set import ShardSet

_TYPES = {"shard": str, "key": str, "offset": int, "cause": str}


def write_quarantine(path: Path, shards: ShardSet, bad: Mapping[int, str]) -> None:
    """Writes bad samples with their causes, in the order of their ids, over the file that is there at once.

    Raises:
        ConfigError: a folder or device is there, such as /dev/null, which must not be replaced.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: a folder or device is there; name a file")
    path = path.resolve()  # a link stays one
    lines = []
    for sample, cause in sorted(bad.items()):
        place = shards.place(sample)
        entry = {"shard": Path(place.shard).name, "key": place.key, "offset": place.offset, "cause": cause}
        lines.append(json.dumps(entry) + "\n")
    part = path.with_name(f".{path.name}.part")
    part.write_text("".join(lines))
    part.replace(path)


def read_quarantine(path: Path, shards: ShardSet) -> dict[int, str]:
    """The samples that a file names, with their causes.

    Raises:
        DataError: the file cannot be read, or a line of it names no sample of these shards.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the quarantine file {path} cannot be read: {error}") from None
    found: dict[int, str] = {}
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or not all(isinstance(entry.get(key), of) for key, of in _TYPES.items()):
                raise ValueError("it needs " + ", ".join(f"{key} ({of.__name__})" for key, of in _TYPES.items()))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {line[:100]!r} is no entry of a quarantine: {error}") from None
        samples = _samples_at(shards, entry["shard"], entry["key"], entry["offset"])
        cause: str = entry["cause"]
        if not samples:
            raise DataError(
                f"{path}, line {number}: no shard {entry['shard']!r} has an image of the key {entry['key']!r} at byte "
                f"{entry['offset']}: the file is of other shards, or of these before they changed"
            )
        found |= dict.fromkeys(samples, cause)
    return found


def _samples_at(shards: ShardSet, name: str, key: str, offset: int) -> list[int]:
    samples, start = [], 0
    for shard, index in shards.indexes:
        if shard.name == name:
            rows = np.flatnonzero(index.image_offset == offset).tolist()
            samples += [start + row for row in rows if index.key(row) == key]
        start += len(index)
    return samples
