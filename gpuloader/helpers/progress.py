"""The progress bar of long work, and lines above it, on stderr."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gpuloader.helpers.printable import printable


def progress_bar(shown: bool) -> Progress:
    """What is done of how much, and the time that is left: a context; `add_task` and `advance` count in it."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not shown,
    )


def say(bar: Progress, line: str) -> None:
    """A line, above the bar where that is shown."""
    bar.console.print(printable(line), soft_wrap=True, highlight=False, markup=False)
