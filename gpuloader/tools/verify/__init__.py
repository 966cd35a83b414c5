"""`verify`: whether a GPU decodes and delivers what it should."""

from gpuloader.tools.verify.checks import CHECKS
from gpuloader.tools.verify.result import Looks, Outcome, Row, Subject, Verification
from gpuloader.tools.verify.verifying import verify

__all__ = ["CHECKS", "Looks", "Outcome", "Row", "Subject", "Verification", "verify"]
