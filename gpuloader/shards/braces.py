"""Expands brace patterns, such as `train-{0000..0147}.tar`."""

from __future__ import annotations

import re

from braceexpand import braceexpand

from gpuloader.errors import ConfigError, describe
from gpuloader.shards.remote.urls import without_secrets

MOST_NAMES = 1_000_000

_INNERMOST = re.compile(r"\{([^{}]*)\}")
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")


def expand_braces(pattern: str) -> list[str]:
    """Returns the names of a brace pattern, in order.

    Raises:
        ConfigError: the pattern is invalid, or may have more than `MOST_NAMES` names.
    """
    try:
        if most_names(pattern) <= MOST_NAMES:
            return list(braceexpand(pattern))
        problem = f"may stand for more than {MOST_NAMES:,} names: list the shards, or pack larger ones"
    except (ValueError, RecursionError):  # the message has the pattern, with its secrets
        problem = "cannot be read: check its braces and numbers (write \\{ for a brace in a name)"
    raise ConfigError(f"the brace pattern {describe(without_secrets(pattern), 500)} {problem}")


def most_names(pattern: str) -> int:
    """Returns an upper bound of the number of names, so that a short pattern cannot fill the memory."""
    names = 1
    for inside in _INNERMOST.findall(pattern):
        if numbers := _NUMBERS.fullmatch(inside):
            names *= abs(int(numbers[2]) - int(numbers[1])) // (int(numbers[3] or 1) or 1) + 1
        else:
            names *= 64 if ".." in inside else inside.count(",") + 1
    around = _INNERMOST.sub("", pattern)
    return names << around.count(",") if "{" in around else names
