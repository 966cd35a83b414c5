"""Packing: any source of labelled pictures to WebDataset shards."""

from gpuloader.shards.pack.packing import PackResult, pack
from gpuloader.shards.pack.writing import LeftOutPicture

__all__ = ["LeftOutPicture", "PackResult", "pack"]
