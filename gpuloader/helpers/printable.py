"""Makes text safe to print: short, obeyed by no terminal, and with its letters in order."""

from __future__ import annotations

import logging
from collections.abc import Sequence

MOST_CHARACTERS = 3000
"""The length of a message. What is quoted in it may come from a file, and be of any length."""

_FEWEST_CHARACTERS = 100  # of a line, if a message has many


def printable(text: str) -> str:
    """A text in one line; control characters, line ends and the like become escapes as in `repr`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def shorten(text: str, most_characters: int) -> str:
    """A text of at most `most_characters`, 50 or more: a longer one keeps its beginning and its end."""
    if len(text) <= most_characters:
        return text
    cut = f" ... ({len(text)} characters) ... "
    end = (most_characters - len(cut)) // 3
    return text[: most_characters - len(cut) - end] + cut + text[-end:]


def as_message(lines: Sequence[object]) -> str:
    """The lines of a message, printable; if they are too long together, the long ones are shortened."""
    texts = [printable(shorten(str(line), MOST_CHARACTERS)) for line in lines]
    if sum(map(len, texts)) + len(texts) > MOST_CHARACTERS:
        share = max(_FEWEST_CHARACTERS, MOST_CHARACTERS // len(texts) - 1)
        texts = [shorten(text, share) for text in texts]
    return shorten("\n".join(texts), MOST_CHARACTERS)


def make_printable(record: logging.LogRecord) -> bool:
    """A filter for loggers; it lets all records pass."""
    record.msg, record.args = as_message([record.getMessage()]), None
    return True
