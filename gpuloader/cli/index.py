"""`gpuloader index`."""

from __future__ import annotations

from dataclasses import asdict

from gpuloader.cli.options import AsJson, Shards
from gpuloader.cli.printing import print_json, say
from gpuloader.helpers.text import counted


def index(shards: Shards, as_json: AsJson = False) -> None:
    """Makes the index of each shard that lacks one, and says what is in the shards.

    Example: gpuloader index shards/train/
    """
    from gpuloader.shards import ShardSet, resolve_shards

    shard_set = ShardSet.open(resolve_shards(shards), progress=True)
    if as_json:
        print_json(
            {
                "samples": len(shard_set),
                "shards": [
                    {
                        "shard": str(shard),
                        "samples": len(shard_index),
                        "left_out": [asdict(item) for item in shard_index.left_out],
                        "left_out_count": shard_index.left_out_count,
                    }
                    for shard, shard_index in shard_set.indexes
                ],
            }
        )
        return
    for shard, shard_index in shard_set.indexes:
        say(f"{shard}: {counted(len(shard_index), 'sample')}")
        for item in shard_index.left_out:
            say(f"  left out: {item.name!r} at byte {item.offset}: {item.why}")
        if more := shard_index.left_out_count - len(shard_index.left_out):
            say(f"  left out: {more:,} more")
    say(f"{counted(len(shard_set), 'sample')} in {counted(len(shard_set.indexes), 'shard')}")
