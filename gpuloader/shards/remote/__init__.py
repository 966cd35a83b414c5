"""Shards on stores (S3, Google Cloud Storage, HTTP, Hugging Face), downloaded to a cache before they are needed."""

from gpuloader.shards.remote.ahead import Ahead, Need, warn_of_repeats
from gpuloader.shards.remote.cache import CacheStats, ShardCache, close_shard
from gpuloader.shards.remote.indexes import NO_TIME
from gpuloader.shards.remote.opening import open_remote
from gpuloader.shards.remote.store import Entry, RemoteShard
from gpuloader.shards.remote.waiting import Wanted, check_wanted

__all__ = [
    "NO_TIME",
    "Ahead",
    "CacheStats",
    "Entry",
    "Need",
    "RemoteShard",
    "ShardCache",
    "Wanted",
    "check_wanted",
    "close_shard",
    "open_remote",
    "warn_of_repeats",
]
