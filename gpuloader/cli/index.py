"""`gpuloader index`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from gpuloader.cli.options import AsJson, Shards
from gpuloader.cli.printing import at_byte, print_json, say
from gpuloader.helpers.text import counted


def index(shards: Shards, as_json: AsJson = False) -> None:
    """Makes the index of each shard that lacks one, and says what is in the shards. It names the first 1,000
    members that are in no sample. The index of a folder of pictures is FOLDER.gpuidx beside it.

    Example: gpuloader index shards/train/
    """
    from gpuloader.shards import Folder, ShardSet, keep_beside, resolve_shards

    shard_set = ShardSet.open(resolve_shards(shards), progress=True)
    for shard in shard_set.shards:
        if isinstance(shard, Folder):
            keep_beside(shard)
    left_out: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for member in shard_set.index.left_out:
        offset = 0 if isinstance(shard_set.shards[member.shard], Folder) else member.offset
        left_out[member.shard].append({"name": member.name, "offset": offset, "why": member.why})
    found: list[dict[str, Any]] = [
        {
            "shard": str(shard),
            "samples": len(shard_set.samples_of(number)),
            "left_out": left_out[number],
            "left_out_count": shard_set.index.left_out_count.item(number),
        }
        for number, shard in enumerate(shard_set.shards)
    ]
    if as_json:
        print_json({"samples": len(shard_set), "shards": found})
        return
    for each in found:
        say(f"{each['shard']}: {counted(each['samples'], 'sample')}")
        for item in each["left_out"]:
            say(f"  left out: {item['name']!r}{at_byte(item['offset'])}: {item['why']}")
        if more := each["left_out_count"] - len(each["left_out"]):
            say(f"  left out: {more:,} more")
    say(f"{counted(len(shard_set), 'sample')} in {counted(len(found), 'shard')}")
