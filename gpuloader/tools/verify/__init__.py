"""`verify`: whether a GPU decodes and delivers what it should."""

from gpuloader.tools.verify.checks import CHECKS
from gpuloader.tools.verify.verification import Row, Verification, verify

__all__ = ["CHECKS", "Row", "Verification", "verify"]
