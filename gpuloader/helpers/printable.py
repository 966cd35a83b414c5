"""Text for people: nothing in it is obeyed by a terminal, or turns the order of its letters around."""

from __future__ import annotations

import logging


def printable(text: str) -> str:
    """A text in one line, with the escapes of `repr` in the place of control characters, line ends and the like."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def make_printable(record: logging.LogRecord) -> bool:
    """A filter of loggers, which lets all records pass."""
    record.msg, record.args = printable(record.getMessage()), None
    return True
