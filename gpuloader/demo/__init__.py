"""The demo: makes pictures, trains a small net on them through `GPULoader`, and evaluates it."""
