"""`verify`: whether a GPU decodes and delivers what it should. Each check has a file of its name."""

from gpuloader.tools.verify.checks import CHECKS, verify
from gpuloader.tools.verify.result import Looks, Outcome, Row, Subject, Verification

__all__ = ["CHECKS", "Looks", "Outcome", "Row", "Subject", "Verification", "verify"]
