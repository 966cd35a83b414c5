"""The demonstration: pictures made, a small net trained on them through `GPULoader`, and evaluated."""

from gpuloader.demo.run import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
