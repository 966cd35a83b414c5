"""Makes text for people: safe to print, numbers with their units, and hints for misspelt names."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from itertools import islice

MOST_CHARACTERS = 4000
"""The most characters of a message, because it may quote a file."""

_MOST_LINES = 40
_LONGEST_WORD = 1000  # such as a path
_MOST_COMPARED = 10_000  # names; a file may have any number of them, of any length
_COMPARED_CHARACTERS = 100
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


def printable(text: str) -> str:
    """Writes a text in one line; control characters, line ends and the like become escapes as in `repr`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def shorten(text: str, most_characters: int) -> str:
    """Shortens the middle of a text, to at most `most_characters`, 50 or more."""
    if len(text) <= most_characters:
        return text
    cut = f" ... ({len(text)} characters) ... "
    end = (most_characters - len(cut)) // 3
    return text[: most_characters - len(cut) - end] + cut + text[-end:]


def as_message(lines: Sequence[object]) -> str:
    """Joins the lines of a message, printable. Long words are shortened, and if that is not enough, all long lines."""
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 10], f"... ({len(lines)} lines) ...", *lines[-9:]]
    words = (_LONG_WORD.sub(lambda word: shorten(word[0], _LONGEST_WORD), str(line)) for line in lines)
    texts = [printable(shorten(text, MOST_CHARACTERS)) for text in words]
    if sum(map(len, texts)) + len(texts) > MOST_CHARACTERS:
        texts = [shorten(text, MOST_CHARACTERS // len(texts) - 1) for text in texts]
    return "\n".join(texts)


def make_printable(record: logging.LogRecord) -> bool:
    """Makes a log record's message printable: a filter for loggers, which lets all records pass."""
    record.msg, record.args = as_message([record.getMessage()]), None
    return True


def counted(count: int, noun: str, plural: str = "") -> str:
    """Writes a number with what it counts: 1 shard, 1,200 shards, 2 classes. By default, the plural adds an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_bytes(count: float) -> str:
    """Writes bytes in three digits: 45.9 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def natural_key(name: str) -> tuple[object, ...]:
    """Makes a key that sorts numbers in names by their size, and letters without their case: class2, Class10."""
    parts = re.split(r"([0-9]+)", name.lower())
    return tuple((len(part.lstrip("0")), part.lstrip("0")) if number % 2 else part for number, part in enumerate(parts))


def similar(name: str, allowed: Iterable[str], most: int = 1) -> list[str]:
    """Returns the allowed names that begin with "NAME_", otherwise at most this many of the most similar ones."""
    from difflib import get_close_matches  # here, because only errors need it

    names = list(islice(allowed, _MOST_COMPARED))
    longer = [each for each in names if each.startswith(f"{name}_")]
    return longer or get_close_matches(name[:_COMPARED_CHARACTERS], names, most)


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Makes a hint in parentheses for a wrong name, with a space before it; "" if no allowed name is similar."""
    near = similar(name, allowed)
    return f" (did you mean {either(near)}?)" if near else ""


def either(names: Sequence[str]) -> str:
    """Joins names as alternatives: "a, b or c"."""
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
