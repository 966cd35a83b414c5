"""The progress bar for long work, and lines above it, on stderr. rich is imported only if a bar is shown."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from threading import Timer
from typing import TYPE_CHECKING, TypeVar

from gpuloader.base.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")

_SILENT_SECONDS, _SAID_AGAIN_SECONDS = 2, 30
_log = logging.getLogger("gpuloader")


class ProgressLog:
    """A log of the progress of long work: after 2 seconds, and then every 30.

    Args:
        text: the message, with a %s for each value of `reached`.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._says = time.monotonic() + _SILENT_SECONDS

    def reached(self, *values: object) -> None:
        """Logs these values if a message is due."""
        if time.monotonic() > self._says:
            _log.warning(self._text, *values)
            self._says = time.monotonic() + _SAID_AGAIN_SECONDS


@contextmanager
def say_if_long(text: str, *values: object, level: int = logging.WARNING) -> Iterator[None]:
    """Logs this text, with its values, if the block takes more than 2 seconds; what is no warning after 10."""
    timer = Timer(10 if level < logging.WARNING else _SILENT_SECONDS, _log.log, (level, text, *values))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def count_long(items: Iterable[Item], total: int, title: str, shown: bool) -> Iterator[Item]:
    """Yields the items, and reports their number after 2 seconds: in the log, or in a terminal by a bar if `shown`."""
    work, late = ProgressLog("%s: %s of %s"), time.monotonic() + _SILENT_SECONDS
    shown = shown and sys.stderr.isatty()
    with ExitStack() as stack:
        bar = None
        for number, item in enumerate(items):
            if bar is None and shown and time.monotonic() > late:
                bar = stack.enter_context(progress_bar(True))
                bar.add_task(title, total=total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=number)
            elif not shown:
                work.reached(title, number, total)
            yield item


def progress_bar(shown: bool) -> Progress:
    """Returns a bar of the work done and the time left, a context manager; count with `add_task` and `advance`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    in_notebook = None if find_spec("ipywidgets") else False  # without it, rich would warn in a notebook: print instead
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True, force_jupyter=in_notebook),
        disable=not shown,
    )


def say(bar: Progress, line: str) -> None:
    """Prints a line; if the bar is shown, above it."""
    bar.console.print(printable(line), soft_wrap=True, highlight=False, markup=False)
