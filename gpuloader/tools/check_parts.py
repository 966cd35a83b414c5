"""Merges what the parts of a check found, so that they count as one check of all shards."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gpuloader.errors import ConfigError, DataError
from gpuloader.helpers.regular_file import read_regular
from gpuloader.helpers.text import counted
from gpuloader.helpers.values import is_integer
from gpuloader.loading.argument_types import AnyFields
from gpuloader.recipe import Recipe
from gpuloader.shards import ShardIndex
from gpuloader.shards.data_digest import DataDigest
from gpuloader.tools.check_targets import Problem

Found: TypeAlias = tuple[dict[int, str], dict[int, list[tuple[Problem, str]]]]
"""The bad samples with their causes, and what is wrong with the targets of others."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function, in its repr
_MOST_BYTES = 256 << 20


def describe_arguments(fields: AnyFields, recipe: Recipe) -> str:
    """Says what decides about the result of a check, apart from the shards."""
    return _ADDRESS.sub("", f"fields={fields or ()!r}, orientation={recipe.orientation!r}")


def describe_data(indexes: Sequence[ShardIndex]) -> str:
    """Identifies the content of shards, in their order."""
    digest = sum((index.data_digest for index in indexes), DataDigest())
    shard_bytes = sum(index.shard_bytes for index in indexes)
    return f"{counted(digest.samples, 'sample')}, {shard_bytes:,} bytes, digest {digest}"


def read_parts(folder: Path, indexes: Sequence[ShardIndex], arguments: str) -> Found:
    """Returns what the parts found, of which a folder has the results; by the samples' ids among all shards.

    Args:
        folder: has a JSON file for each part.
        indexes: of all shards.
        arguments: those of all parts, described.

    Raises:
        ConfigError: parts are missing, doubled, of other data or made with other arguments.
        DataError: a file is no result.
    """
    found = [_read(file) for file in sorted(folder.glob("*.json"))]
    if not found:
        raise ConfigError(f"{folder} has no *.json: write the results of all parts there, with --part I/N --json")
    count = found[0].count
    parts: dict[int, _Part] = {}
    for part in found:
        other = parts.setdefault(part.number, part) if part.count == count else found[0]
        if other is not part:
            raise ConfigError(f"{other} and {part} do not fit together: keep one result of each part of one check")
    if missing := [f"{number}/{count}" for number in range(count) if number not in parts]:
        raise ConfigError(f"{folder} has no result of part {', '.join(missing)}: run each with --json")
    ends = np.cumsum([0, *map(len, indexes)])
    bad: dict[int, str] = {}
    wrong: dict[int, list[tuple[Problem, str]]] = {}
    for part in parts.values():
        for name, of_part, here in (
            ("data", part.data, describe_data(indexes[part.number :: count])),
            ("arguments", part.arguments, arguments),
        ):
            if of_part != here:
                raise ConfigError(
                    f"{part} has other {name}, {of_part}; here it would have {here}: give the shards and options of "
                    f"the parts, or run the part again"
                )
        own = range(part.number, len(indexes), count)
        samples = np.concatenate([np.arange(0), *(np.arange(ends[n], ends[n + 1]) for n in own)])
        bad |= {int(samples[row]): cause for row, cause in part.bad}
        for row, problem, said in part.wrong:
            wrong.setdefault(int(samples[row]), []).append((problem, said))
    return bad, dict(sorted(wrong.items()))


@dataclass(frozen=True)
class _Part:
    """What is used of a part's `CheckResult`, and the file in which it is."""

    file: Path
    number: int
    count: int
    data: str
    arguments: str
    bad: list[tuple[int, str]]
    wrong: list[tuple[int, Problem, str]]

    def __str__(self) -> str:
        return f"{self.file} (part {self.number}/{self.count})"


def _read(file: Path) -> _Part:
    try:
        content = json.loads(read_regular(file, _MOST_BYTES))
        (number, count), samples = content["part"], content["samples"]
        bad = [(each["sample"], each["cause"]) for each in content["bad"]]
        wrong = [(each["sample"], each["problem"], each["said"]) for each in content["wrong"]]
        data, arguments = content["data"], content["arguments"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{file} is no result of `gpuloader check --json`: {error}: run the part again") from None
    if not (is_integer(number, 0, count) and all(is_integer(row, 0, samples) for row, *_ in (*bad, *wrong))):
        raise DataError(f"{file} is no result of `gpuloader check --json`: its numbers do not fit: run the part again")
    return _Part(file, number, count, data, arguments, bad, wrong)
