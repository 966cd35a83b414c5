"""Makes the mutants: each depends only on (seed, kind, number)."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from typing import TypeAlias

from fuzzing import parts, raw, seekable, words
from fuzzing.layouts import LAYOUTS, layout_of
from fuzzing.material import DATA, IMAGES, donors, material

KINDS = (*IMAGES, "seekable", *DATA)
MOST_BYTES = 1 << 18
Change: TypeAlias = Callable[[bytes, random.Random], bytes]


@cache
def mutators(kind: str) -> dict[str, tuple[Change, ...]]:
    """The ways to make mutants of a kind, by name, each with the changes that it chooses from.

    "bytes" knows nothing of the format. "parts" moves, takes and renames whole parts, "values" changes what is in them:
    both leave a structure that can be read. "mixed" does all of it.
    """
    changes: dict[str, tuple[Change, ...]] = {"bytes": (*raw.CHANGES, partial(_splice, kind))}
    if kind in LAYOUTS:
        changes["parts"] = tuple(partial(_change_parts, kind, move) for move in parts.MOVES)
        edits = [partial(parts.edit, how) for how in parts.EDITS]
        changes["values"] = tuple(partial(_change_parts, kind, edit) for edit in edits)
    changes["values"] = changes.get("values", ()) + _VALUES.get(kind, ())
    return {**changes, "mixed": sum(changes.values(), ())}


_VALUES: dict[str, tuple[Change, ...]] = {
    "seekable": (seekable.change_header,) * 6,
    "tar": (words.change_tar_field, words.change_word, words.change_tar_blocks),
    "index": (words.change_index_header,),
    "state": (words.change_value,),
    "recipe": (words.change_word, words.change_word, words.change_lines),
    "npy": (words.change_word,),
    "json": (words.change_value,),
    "annotations": (words.change_value, words.change_word, words.change_word),
}


def mutator_of(kind: str, number: int) -> str:
    """The name of the mutator that makes the mutant of this number: they take turns."""
    names = tuple(mutators(kind))
    return names[number % len(names)]


def mutant(kind: str, seed: int, number: int) -> bytes:
    """The mutant of this number."""
    rng = random.Random(f"{kind} {seed} {number}")
    mutator = mutator_of(kind, number)
    changes = mutators(kind)[mutator]
    whole = data = rng.choice(material(kind))
    times = rng.choice((2, 3, 4, 6) if mutator == "mixed" else (1, 1, 2, 3))
    while times > 0 or data == whole:
        data = rng.choice(changes)(data, rng)[:MOST_BYTES]
        times -= 1
    if rng.random() < 0.8:  # without right checksums and numbers, most mutants would be refused for that alone
        data = _with_checksums(kind, data)
    return data


def _with_checksums(kind: str, data: bytes) -> bytes:
    if kind == "png" or (kind == "annotations" and data.startswith(b"\x89PNG")):
        return LAYOUTS["png"].join(LAYOUTS["png"].split(data))
    if kind == "seekable":
        return seekable.with_restarts_in_order(data)
    return words.with_tar_checksums(data) if kind == "tar" else data


def _splice(kind: str, data: bytes, rng: random.Random) -> bytes:
    """The beginning of one and the end of another; of any image if it is one."""
    other = rng.choice(material(rng.choice(tuple(IMAGES)) if kind in IMAGES else kind))
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def _change_parts(kind: str, move: parts.Move, data: bytes, rng: random.Random) -> bytes:
    layout = layout_of(kind, data)
    alike = [file for file in donors(kind) if layout_of(kind, file) is layout]
    return parts.change(move, layout, data, rng.choice(alike), rng)
