"""Makes text safe to print: a terminal obeys nothing in it, and no character reverses the order of letters."""

from __future__ import annotations

import logging


def printable(text: str) -> str:
    """A text in one line; control characters, line ends and the like become escapes as in `repr`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def make_printable(record: logging.LogRecord) -> bool:
    """A filter for loggers; it lets all records pass."""
    record.msg, record.args = printable(record.getMessage()), None
    return True
