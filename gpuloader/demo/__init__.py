"""The demo: makes pictures, trains a small net on them through `GPULoader`, and evaluates it."""

from gpuloader.demo.run import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
