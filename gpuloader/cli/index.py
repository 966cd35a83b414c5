"""`gpuloader index`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuloader.base.text import counted
from gpuloader.cli.options import AsJson, Shards
from gpuloader.cli.printing import at_byte, print_json, say


def index(
    shards: Shards,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="Also write one index of all shards, which loaders open instead of one per shard."
        ),
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            help="The file of the merged index, *.gpuset; by default all.gpuset beside the shards. Implies --merge."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Indexes each shard that has no index, and prints the number of samples in each shard.

    A "left out" line names a member that belongs to no sample, up to 1,000 in each shard.

    The index of SHARD.tar is SHARD.tar.gpuidx; the index of a folder of pictures is FOLDER.gpuidx.

    A shard whose index cannot be saved, as on a full disk, is named; the exit status is then 1.

    Example: gpuloader index shards/train/
    """
    from gpuloader.errors import ConfigError
    from gpuloader.shards import (
        MERGED_FILE,
        Folder,
        ShardSet,
        has_merged,
        keep_beside,
        merge_indexes,
        merge_stored,
        resolve_local,
        resolve_shards,
        tars_in,
        user_path,
    )
    from gpuloader.shards.remote import RemoteShard
    from gpuloader.shards.remote.urls import remote_protocol

    stored = remote_protocol(shards[0]) is not None
    place = None if output is None else RemoteShard(output) if remote_protocol(output) else user_path(output)
    if place is None and merge and not stored:
        if len(shards) != 1 or not Path(shards[0]).is_dir():
            raise ConfigError(
                "index --merge: these shards are not one folder; name the file: --output FOLDER/NAME.gpuset"
            )
        place = Path(shards[0]) / MERGED_FILE
    # The tars in the folder, because its merged index may be out of date.
    listed: list[str | Path] = []
    mixed = not merge and place is None
    for name in shards:
        listed += (tars_in(Path(name), mixed) if has_merged(Path(name)) else ()) or [name]
    if mixed:
        shard_set = ShardSet.open([*resolve_shards(listed, mixed)], progress=True)
    elif isinstance(place, Path) and not stored:
        merge_indexes(resolve_local(listed), place)
        shard_set = ShardSet.open(resolve_shards(place))
    else:
        merged = merge_stored(resolve_shards(listed), place)
        shard_set, place = ShardSet.open(merged), place or merged.path
    shard_set.warn_of_hidden()
    causes: list[str] = []
    for shard in shard_set.shards:
        if isinstance(shard, Folder):
            try:
                keep_beside(shard)
            except ConfigError as error:
                causes.append(str(error))
    causes += [f"the index of {shard} could not be saved" for shard in shard_set.unsaved()]
    found: list[dict[str, Any]] = [
        {"shard": str(shard), "samples": len(shard_set.samples_of(number)), "left_out": [], "left_out_count": count}
        for number, (shard, count) in enumerate(zip(shard_set.shards, shard_set.index.left_out_count.tolist()))
    ]
    for member in shard_set.index.left_out:
        offset = 0 if isinstance(shard_set.shards[member.shard], Folder) else member.offset
        found[member.shard]["left_out"].append({"name": member.name, "offset": offset, "why": member.why})
    if as_json:
        print_json({"samples": len(shard_set), "shards": found})
    else:
        _print_text(found, len(shard_set), place)
    if causes:
        raise ConfigError(*causes, "make room on the disk, and run the command again")


def _print_text(found: Sequence[Mapping[str, Any]], samples: int, place: object) -> None:
    for each in found:
        say(f"{each['shard']}: {counted(each['samples'], 'sample')}")
        for item in each["left_out"]:
            say(f"  left out: {item['name']!r}{at_byte(item['offset'])}: {item['why']}")
        if more := each["left_out_count"] - len(each["left_out"]):
            say(f"  left out: {more:,} more")
    where = "" if place is None else f", merged into {place}"
    say(f"{counted(samples, 'sample')} in {counted(len(found), 'shard')}{where}")
