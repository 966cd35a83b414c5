"""Shards: plain tars, the index of their samples, and their readers."""

from gpuloader.shards.class_names import read_class_names
from gpuloader.shards.folder import Folder
from gpuloader.shards.index import Index
from gpuloader.shards.index_files import LocalShard, index_file, keep_beside, open_index, open_indexes, open_set
from gpuloader.shards.labels import (
    ClassOrder,
    Labels,
    every,
    make_labels,
    needs_labels,
    read_names,
    resolve_place,
)
from gpuloader.shards.merged import MERGED_FILE, has_merged, merge_indexes, merge_stored
from gpuloader.shards.paths import Shard, Tar, resolve_local, resolve_shards, tars_in, user_path
from gpuloader.shards.quarantine import read_quarantine, write_quarantine
from gpuloader.shards.readers import EncodedImage
from gpuloader.shards.remote import CacheStats, Prefetcher, WantedCallback
from gpuloader.shards.scan import scan_to_damage
from gpuloader.shards.shard_set import Arena, ShardSet
from gpuloader.shards.shared_arrays import shared

__all__ = [
    "MERGED_FILE",
    "Arena",
    "CacheStats",
    "ClassOrder",
    "EncodedImage",
    "Folder",
    "Index",
    "Labels",
    "LocalShard",
    "Prefetcher",
    "Shard",
    "ShardSet",
    "Tar",
    "WantedCallback",
    "every",
    "has_merged",
    "index_file",
    "keep_beside",
    "make_labels",
    "merge_indexes",
    "merge_stored",
    "needs_labels",
    "open_index",
    "open_indexes",
    "open_set",
    "read_class_names",
    "read_names",
    "read_quarantine",
    "resolve_local",
    "resolve_place",
    "resolve_shards",
    "scan_to_damage",
    "shared",
    "tars_in",
    "user_path",
    "write_quarantine",
]
