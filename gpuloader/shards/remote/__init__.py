"""Shards on stores (S3, Google Cloud Storage, HTTP, Hugging Face), downloaded to a cache before they are needed."""

from gpuloader.shards.remote.cache import CacheStats, ShardCache, close_shard
from gpuloader.shards.remote.cancellation import WantedCallback, check_wanted
from gpuloader.shards.remote.indexes import NO_TIME
from gpuloader.shards.remote.opening import open_remote
from gpuloader.shards.remote.prefetcher import Prefetcher, ShardSchedule, warn_of_repeats
from gpuloader.shards.remote.store import Entry, RemoteShard

__all__ = [
    "NO_TIME",
    "CacheStats",
    "Entry",
    "Prefetcher",
    "RemoteShard",
    "ShardCache",
    "ShardSchedule",
    "WantedCallback",
    "check_wanted",
    "close_shard",
    "open_remote",
    "warn_of_repeats",
]
