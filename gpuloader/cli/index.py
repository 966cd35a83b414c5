"""`gpuloader index`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpuloader.base.text import counted
from gpuloader.cli.options import AsJson, Shards
from gpuloader.cli.printing import at_byte, finish, say
from gpuloader.cli.signatures import from_tool
from gpuloader.errors import ConfigError


@from_tool("gpuloader.tools.index.index_shards", "merge", "output")
def index(shards: Shards, run: Callable[..., Any], as_json: AsJson = False) -> None:
    """Indexes each shard that has no index, and prints the number of samples in each shard.

    A "left out" line names a member that belongs to no sample, up to 1,000 in each shard.

    The index of SHARD.tar is SHARD.tar.gpuidx; the index of a folder of pictures is FOLDER.gpuidx.

    A shard whose index cannot be saved, as on a full disk, is named; the exit status is then 1.

    Example: gpuloader index shards/train/
    """
    rows, place, unsaved = run(shards)
    result = {"samples": sum(row["samples"] for row in rows), "shards": rows}
    finish(result, as_json, partial(_print, "" if place is None else f", merged into {place}"))
    if unsaved:
        raise ConfigError(*unsaved, "make room on the disk, and run the command again")


def _print(merged: str, result: dict[str, Any]) -> None:
    for row in result["shards"]:
        say(f"{row['shard']}: {counted(row['samples'], 'sample')}")
        for item in row["left_out"]:
            say(f"  left out: {item['name']!r}{at_byte(item['offset'])}: {item['why']}")
        if more := row["left_out_count"] - len(row["left_out"]):
            say(f"  left out: {more:,} more")
    say(f"{counted(result['samples'], 'sample')} in {counted(len(result['shards']), 'shard')}{merged}")
