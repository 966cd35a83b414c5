"""Tells the splits of a data set, such as train and val, by the names of folders and shards."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuloader.errors import ConfigError

SPLITS = frozenset(("train", "val", "valid", "validation", "test"))
"""The names of folders that are splits of a data set, not classes."""

_NUMBER = re.compile("(?<![0-9])[0-9]+([-_]of[-_][0-9]+)?$")
_OF_SPLIT = re.compile(rf"(?:.*[-_])?({'|'.join(SPLITS)})[-_.]?\*?", re.DOTALL)


def check_one_split(folder: str, names: Iterable[str]) -> None:
    """Checks that the tars of a folder, `names` in it, are called after one split at most; other names are free.

    Raises:
        ConfigError: they are called after several, such as `train-0000.tar` and `val-0000.tar`.
    """
    patterns = dict.fromkeys(_NUMBER.sub("*", name.removesuffix(".tar")) for name in names)
    found = {of[1]: name for name in patterns if (of := _OF_SPLIT.fullmatch(name.rpartition("/")[2]))}
    if len(found) > 1:
        one = found.get("train") or next(iter(found.values()))
        give = f"give {folder}/{one}.tar for one of them, or {folder}/*.tar for all"
        if folder.startswith(("http://", "https://")):  # which cannot list objects
            give = "name the shards of one of them, in braces or a list"
        raise ConfigError(f"{folder} has the splits {', '.join(found)}: {give}")
