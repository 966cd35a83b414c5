"""Makes text safe to print: short, obeyed by no terminal, and with its letters in order."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

MOST_CHARACTERS = 4000
"""The length of a message. What is quoted in it may come from a file, and be of any length."""

_MOST_LINES = 40
_LONGEST_WORD = 1000  # such as a path
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


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
    """The lines of a message, printable; long words are shortened, and if that is not enough, all that is long."""
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 10], f"... ({len(lines)} lines) ...", *lines[-9:]]
    words = (_LONG_WORD.sub(lambda word: shorten(word[0], _LONGEST_WORD), str(line)) for line in lines)
    texts = [printable(shorten(text, MOST_CHARACTERS)) for text in words]
    if sum(map(len, texts)) + len(texts) > MOST_CHARACTERS:
        texts = [shorten(text, MOST_CHARACTERS // len(texts) - 1) for text in texts]
    return "\n".join(texts)


def make_printable(record: logging.LogRecord) -> bool:
    """A filter for loggers; it lets all records pass."""
    record.msg, record.args = as_message([record.getMessage()]), None
    return True
