"""The command line: each command is a call of a library function, and printing what it gave."""

from gpuloader.cli.app import main

__all__ = ["main"]
