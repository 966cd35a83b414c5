"""`verify`: compares what a GPU decodes and delivers with the CPU's results."""

from gpuloader.tools.verify.checks import CHECKS
from gpuloader.tools.verify.verification import Row, Verification, verify

__all__ = ["CHECKS", "Row", "Verification", "verify"]
