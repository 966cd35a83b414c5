"""The CPU's kernels: compiled functions that process pixels."""
