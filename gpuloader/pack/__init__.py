"""Packs any source of labelled pictures into WebDataset shards."""

from gpuloader.pack.packing import PackResult, pack
from gpuloader.pack.shard_writer import LeftOutPicture

__all__ = ["LeftOutPicture", "PackResult", "pack"]
