"""The CPU's kernels: what happens to pixels there, compiled."""
