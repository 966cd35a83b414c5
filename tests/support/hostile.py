"""What others may write into our files: hostile values in the place of each value, told apart by a seed alone."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from hypothesis import strategies as st

Path: TypeAlias = tuple[Any, ...]

DEEP = 5000
TEXTS = (
    *("null", "true", "0", "1", "-1", "0.5", "1e308", "1e999", "NaN", "-Infinity", '""', '"x"', "[]", "{}"),
    *(str(2**bits + more) for bits in (31, 32, 53, 63, 64, 200) for more in (-1, 0)),
    *(f"-{2**63}", "9" * 4300, "9" * 5000),  # the latter has more digits than Python reads or writes
    *(r'"\udc80"', r'"\ud800"', r'"\u0000\u001b[31m\n\u202e"', f'"{"x" * 10_000}"', f"[{'1,' * 999}1]"),
    *('[["a", 0, "b"]]', "[[0, null]]", '{"a": [{}]}', '{"": {"": ""}}'),
    *("[" * 200 + "]" * 200, "[" * DEEP + "]" * DEEP, '{"a":' * 200 + "0" + "}" * 200),
)
"""Hostile values as JSON; some that Python's `json` refuses."""


MOST_BYTES, _HEADER_BYTES = 1 << 18, 256
_EXTREMES = (0, 1, 2, 3, 0x11, 0x22, 0x41, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


def any_json(*keys: str, leaves: int = 30) -> st.SearchStrategy[Any]:
    """Values of JSON, whose objects have some of these keys."""
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    some = st.sampled_from(keys)
    return st.recursive(
        scalars, lambda x: st.lists(x, max_size=6) | st.dictionaries(some, x, max_size=6), max_leaves=leaves
    )


def _deep(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


def _read() -> Iterator[Any]:
    for text in TEXTS:
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            continue


ARRAYS = (
    *(np.array([1, 2]), np.array([[0]]), np.array(0), np.array([]), np.array(["x"], object), np.zeros((300, 300))),
    *(torch.tensor([1, 2]), torch.tensor(0), torch.tensor([]), np.int64(0), np.float64("nan")),
    *([np.array([1, 2])], {"x": torch.tensor([1, 2])}, [[0, np.array(["x", "y"])]]),
)
"""What compares element by element, or has no truth."""

VALUES = (
    *(*_read(), 10**5000, -(10**5000), 16**4096, _deep(DEEP), b"x", {1}, (1, "x"), {10**5000: 1}, object, ...),
    *ARRAYS,
)
"""Hostile values as they come out of pickles and other files than JSON."""


def paths(tree: object, start: Path = ()) -> Iterator[Path]:
    """The places of all values in mappings and lists."""
    yield start
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from paths(value, (*start, key))
    elif isinstance(tree, list):
        for place, value in enumerate(tree):
            yield from paths(value, (*start, place))


def replaced(tree: Any, path: Path, value: object) -> Any:  # noqa: ANN401
    """A tree with another value in a place."""
    if not path:
        return value
    copy = tree.copy()
    copy[path[0]] = replaced(tree[path[0]], path[1:], value)
    return copy


def removed(tree: Any, path: Path) -> Any:  # noqa: ANN401
    """A tree without the value in a place."""
    copy = tree.copy()
    if len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = removed(tree[path[0]], path[1:])
    return copy


def mutated_trees(tree: Any) -> Iterator[Any]:  # noqa: ANN401
    """Each value replaced by each of `VALUES`, and left out; and each mapping with a key too many."""
    for path in paths(tree):
        yield from (replaced(tree, path, value) for value in VALUES)
        if path:
            yield removed(tree, path)


def mutated_json(tree: Any) -> Iterator[str]:  # noqa: ANN401
    """The same as JSON, with `TEXTS`."""
    for path in paths(tree):
        before, after = json.dumps(replaced(tree, path, "@here@")).split('"@here@"')
        yield from (before + text + after for text in TEXTS)
        if path:
            yield json.dumps(removed(tree, path))


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """A part, short or long and often near the beginning, is missing, comes twice, or has other bytes."""
    start = rng.randrange(min(len(data), rng.choice((_HEADER_BYTES, MOST_BYTES))) + 1)
    end = rng.choice((start + rng.choice((1, 1, 2, 4, 8, 16, 100)), rng.randint(start, len(data))))
    part = data[start:end]
    number = rng.choice(_EXTREMES).to_bytes(8, rng.choice(("big", "little")))
    flipped = bytes(byte ^ (1 << rng.randrange(8) if rng.random() < 4 / len(part) else 0) for byte in part)
    within = (b"", part * 2, bytes(len(part)), b"\xff" * len(part), rng.randbytes(len(part)), flipped, flipped)
    numbers = (number[: len(part)], number[-len(part) :], part + number)
    return data[:start] + rng.choice((*within, *numbers)) + data[end:]


def mutated_bytes(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Changed bytes, again and again."""
    rng = random.Random(seed)
    yield from (change_bytes(data, rng) for _ in range(count))
