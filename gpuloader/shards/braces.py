"""Brace patterns, such as `train-{0000..0147}.tar`: how much they stand for is counted before they are expanded."""

from __future__ import annotations

import re
from typing import TypeAlias

from braceexpand import braceexpand

from gpuloader.errors import ConfigError, describe
from gpuloader.shards.remote.urls import without_secrets

MOST_NAMES = 1_000_000
MOST_CHARACTERS = 1 << 28
MOST_LEVELS = 32
_MOST_RANGE = 60  # characters

_PARTS = re.compile(r"[{},]|(?:[^\\{},]|\\.?)+", re.DOTALL)  # a backslash takes the next character's meaning away
_INTEGERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?$")
_LETTERS = re.compile(r"[A-Za-z]\.\.[A-Za-z](?:\.\.-?\d+)?$")

_Amount: TypeAlias = tuple[int, int]
"""How many names, and the most characters that they have together."""


def expand_braces(pattern: str) -> list[str]:
    """Returns the names that a pattern stands for, in order.

    Raises:
        ConfigError: it cannot be read, or stands for more than `MOST_NAMES` names or `MOST_CHARACTERS` characters, or
            has more than `MOST_LEVELS` braces within each other.
    """
    try:
        count_names(pattern)
        return list(braceexpand(pattern))
    except ValueError as error:
        raise ConfigError(f"the brace pattern {describe(without_secrets(pattern), 500)} {error}") from None


def count_names(pattern: str) -> _Amount:
    """Counts what a pattern stands for; raises ValueError if that is too much, or if its braces do not fit."""
    begins: list[int] = []  # where the open braces are
    before: list[_Amount] = []  # for each of them: what the parts before its last comma stand for
    now: list[_Amount] = [(1, 0)]  # what the part since then stands for, and first the same outside of all braces
    for part in _PARTS.finditer(pattern):
        what = part[0]
        if what == "{":
            begins.append(part.end())
            before.append((0, 0))
            now.append((1, 0))
            if len(begins) > MOST_LEVELS:
                raise ValueError(f"has more than {MOST_LEVELS} braces within each other: name the shards in a list")
        elif what == "," and begins:
            before[-1], now[-1] = _either(before[-1], now[-1]), (1, 0)
        elif what == "}":
            if not begins:
                raise ValueError("cannot be read: a closing brace has no opening one (write \\} for one in a name)")
            inside = pattern[begins.pop() : part.start()]
            others, last = before.pop(), now.pop()
            now[-1] = _both(now[-1], _either(others, last) if others[0] else _count_expression(inside, last))
        else:
            now[-1] = _both(now[-1], (1, len(what)))
        if now[-1][0] > MOST_NAMES or now[-1][1] > MOST_CHARACTERS:
            raise ValueError(
                f"stands for too much: allowed are {MOST_NAMES:,} names of together {MOST_CHARACTERS:,} characters; "
                f"correct its numbers, or pack larger shards"
            )
    if begins:
        raise ValueError("cannot be read: an opening brace has no closing one (write \\{ for one in a name)")
    return now[0]


def _count_expression(inside: str, as_pattern: _Amount) -> _Amount:
    """Counts what braces without a comma stand for: a range, or themselves around what is inside."""
    if _LETTERS.match(inside):
        names = sum(1 for _ in braceexpand(f"{{{inside}}}"))
        return names, names
    if numbers := _INTEGERS.match(inside):
        if len(inside) > _MOST_RANGE:
            raise ValueError(f"cannot be read: a range of numbers has more than {_MOST_RANGE} characters")
        first, last, step = int(numbers[1]), int(numbers[2]), int(numbers[3] or 1) or 1
        names = abs(last - first) // step + 1
        return names, names * max(len(numbers[1]), len(numbers[2]))
    return _both(as_pattern, (1, len("{}")))


def _either(one: _Amount, other: _Amount) -> _Amount:
    return one[0] + other[0], one[1] + other[1]


def _both(first: _Amount, then: _Amount) -> _Amount:
    return first[0] * then[0], first[1] * then[0] + then[1] * first[0]
