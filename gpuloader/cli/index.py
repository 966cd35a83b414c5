"""`gpuloader index`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuloader.base.text import counted
from gpuloader.cli.options import AsJson, Shards
from gpuloader.cli.printing import at_byte, print_json, say
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
    samples = sum(row["samples"] for row in rows)
    if as_json:
        print_json({"samples": samples, "shards": rows})
    else:
        for row in rows:
            say(f"{row['shard']}: {counted(row['samples'], 'sample')}")
            for item in row["left_out"]:
                say(f"  left out: {item['name']!r}{at_byte(item['offset'])}: {item['why']}")
            if more := row["left_out_count"] - len(row["left_out"]):
                say(f"  left out: {more:,} more")
        where = "" if place is None else f", merged into {place}"
        say(f"{counted(samples, 'sample')} in {counted(len(rows), 'shard')}{where}")
    if unsaved:
        raise ConfigError(*unsaved, "make room on the disk, and run the command again")
