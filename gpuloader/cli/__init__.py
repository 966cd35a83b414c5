"""The command line: each command calls a library function and prints its result."""

from gpuloader.cli.app import main

__all__ = ["main"]
