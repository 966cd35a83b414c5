"""cellmap_data's loader, for any data set."""

from gpuloader.data.cellmap import CellMapDataLoader

__all__ = ["CellMapDataLoader"]
