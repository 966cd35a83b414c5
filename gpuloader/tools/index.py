"""`index`: makes the indexes of shards, and merges them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def index_shards(
    shards: Sequence[str], merge: bool = False, output: str | None = None
) -> tuple[list[dict[str, Any]], Path | RemoteShard | None, list[str]]:
    """Makes missing indexes; returns a row for each shard, the place of the merged index, and what could not be saved.

    Args:
        shards: paths, folders, patterns or URLs.
        merge: also write one index of all shards, which loaders open instead of one per shard.
        output: the file of the merged index, *.gpuset; by default all.gpuset beside the shards. Implies `merge`.

    Raises:
        ConfigError: the place of the merged index is not known, or is not allowed.
        DataError: there is no shard, or a shard or an index is damaged.
    """
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
        opened = ShardSet.open([*resolve_shards(listed, mixed)], progress=True)
    elif isinstance(place, Path) and not stored:
        merge_indexes(resolve_local(listed), place)
        opened = ShardSet.open(resolve_shards(place))
    else:
        merged = merge_stored(resolve_shards(listed), place)
        opened, place = ShardSet.open(merged), place or merged.path
    opened.warn_of_hidden()
    unsaved: list[str] = []
    rows: list[dict[str, Any]] = []
    for number, (shard, count) in enumerate(zip(opened.shards, opened.index.left_out_count.tolist())):
        samples = len(opened.samples_of(number))
        rows.append({"shard": str(shard), "samples": samples, "left_out": [], "left_out_count": count})
        if isinstance(shard, Folder):
            try:
                keep_beside(shard)
            except ConfigError as error:
                unsaved.append(str(error))
    unsaved += [f"the index of {shard} could not be saved" for shard in opened.unsaved()]
    for member in opened.index.left_out:
        offset = 0 if isinstance(opened.shards[member.shard], Folder) else member.offset
        rows[member.shard]["left_out"].append({"name": member.name, "offset": offset, "why": member.why})
    return rows, place, unsaved
