"""The CPU's kernels: compiled functions that process pixels, and one that reads images."""
