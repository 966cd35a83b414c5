"""Changes files part by part: parts go, come again, move, or come from another file; or their contents change.

What comes out has a structure that a parser can follow, so that damage reaches the code behind it. In half of the
cases, a part that consists of parts, such as a frame of an animation, is changed within.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from fuzzing import raw
from fuzzing.layouts import Layout, Part

Move: TypeAlias = Callable[[list[Part], list[Part], Layout, random.Random], list[Part]]
"""Makes other parts of a file's parts, with those of another file of the format at hand."""
Edit: TypeAlias = Callable[[Part, random.Random], Part]

_MOST_UNPACKED_BYTES = 1 << 18


def change(move: Move, layout: Layout, data: bytes, donor: bytes, rng: random.Random) -> bytes:
    """A file after a move; parts may come from the donor."""
    return layout.join(_change(move, layout, layout.split(data), layout.split(donor), rng))


def _change(move: Move, layout: Layout, parts: list[Part], others: list[Part], rng: random.Random) -> list[Part]:
    composed = [place for place, part in enumerate(parts) if part.name in layout.inner]
    if composed and rng.random() < 0.5:
        place = rng.choice(composed)
        name, content, said = parts[place]
        start, inner = layout.inner[name]
        theirs = rng.choice([part for part in others if part.name == name] or [parts[place]])
        within = _change(move, inner, inner.split(content[start:]), inner.split(theirs.content[start:]), rng)
        return [*parts[:place], Part(name, content[:start] + inner.join(within), said), *parts[place + 1 :]]
    return move(parts, others, layout, rng) if parts else others


def _place(parts: Sequence[Part], rng: random.Random) -> int:
    """Any part's place, but not that of a signature."""
    return rng.choice([place for place, part in enumerate(parts) if place or part.name] or [0])


def _insert(parts: list[Part], new: Sequence[Part], rng: random.Random) -> list[Part]:
    place = rng.randrange(not parts[0].name, len(parts) + 1)
    return [*parts[:place], *new, *parts[place:]]


# --- moves


def drop(parts: list[Part], others: list[Part], layout: Layout, rng: random.Random) -> list[Part]:
    """A part is missing."""
    place = _place(parts, rng)
    return parts[:place] + parts[place + 1 :]


def repeat(parts: list[Part], others: list[Part], layout: Layout, rng: random.Random) -> list[Part]:
    """A part comes again, once or often."""
    return _insert(parts, [parts[_place(parts, rng)]] * rng.choice((1, 1, 1, 3, 30)), rng)


def move(parts: list[Part], others: list[Part], layout: Layout, rng: random.Random) -> list[Part]:
    """A part stands elsewhere."""
    place = _place(parts, rng)
    return _insert(parts[:place] + parts[place + 1 :] or others, [parts[place]], rng)


def divide(parts: list[Part], others: list[Part], layout: Layout, rng: random.Random) -> list[Part]:
    """A part becomes two."""
    place = _place(parts, rng)
    name, content, _ = parts[place]
    at = rng.randrange(len(content) + 1)
    return [*parts[:place], Part(name, content[:at]), Part(name, content[at:]), *parts[place + 1 :]]


def take(parts: list[Part], others: list[Part], layout: Layout, rng: random.Random) -> list[Part]:
    """A part of another file is put in."""
    return _insert(parts, [others[_place(others, rng)]], rng)


def take_damaged(parts: list[Part], others: list[Part], layout: Layout, rng: random.Random) -> list[Part]:
    """A part of another file is put in, with another content or length."""
    return _insert(parts, [rng.choice(EDITS)(others[_place(others, rng)], rng)], rng)


def replace(parts: list[Part], others: list[Part], layout: Layout, rng: random.Random) -> list[Part]:
    """A part is another file's, of the same name if there is one."""
    place = _place(parts, rng)
    others = others[not others[0].name :] or others
    same = [other for other in others if other.name == parts[place].name]
    return [*parts[:place], rng.choice(same or others), *parts[place + 1 :]]


def rename(parts: list[Part], others: list[Part], layout: Layout, rng: random.Random) -> list[Part]:
    """A part with a name has that of another."""
    named = [place for place, part in enumerate(parts) if part.name]
    if not named:
        return parts
    place = rng.choice(named)
    names = {part.name for part in (*parts, *others)} | set(rng.sample(layout.names, min(3, len(layout.names))))
    return [*parts[:place], parts[place]._replace(name=rng.choice(sorted(names - {b""}))), *parts[place + 1 :]]


def graft(parts: list[Part], others: list[Part], layout: Layout, rng: random.Random) -> list[Part]:
    """The first parts are of one file, the last of another."""
    return parts[: _place(parts, rng) + 1] + others[_place(others, rng) :]


# --- contents


def _set_content(part: Part, rng: random.Random) -> Part:
    return part._replace(content=rng.choice((raw.flip, raw.set_first_number, raw.set_number))(part.content, rng))


def _resize(part: Part, rng: random.Random) -> Part:
    content = part.content
    return part._replace(
        content=rng.choice(
            (
                b"",
                content[: rng.randrange(len(content) + 1)],
                content[rng.randrange(len(content) + 1) :],
                content + rng.randbytes(rng.choice((1, 4, 100))),
                content + content,
            )
        )
    )


def _lie(part: Part, rng: random.Random) -> Part:
    return part._replace(said=rng.choice((*raw.EXTREMES, *(len(part.content) + more for more in (-4, -1, 1, 4, 12)))))


def _repack(part: Part, rng: random.Random) -> Part:
    """What is packed (RFC 1950) within a part is damaged, and packed again."""
    for start in (0, 4, part.content.find(b"\0\0") + 2):
        with suppress(zlib.error):
            unpacked = zlib.decompressobj().decompress(part.content[start:], _MOST_UNPACKED_BYTES)
            at = rng.randrange(len(unpacked) + 1)
            unpacked = rng.choice(
                (
                    b"",
                    unpacked[:at],
                    unpacked + unpacked[:at],
                    unpacked[:at] + rng.randbytes(len(unpacked) - at),
                    raw.blank(unpacked, rng),
                    raw.flip(unpacked, rng),
                )
            )
            return part._replace(content=part.content[:start] + zlib.compress(unpacked, 1))
    return _set_content(part, rng)


EDITS: tuple[Edit, ...] = (_set_content, _set_content, _resize, _lie, _repack, _repack)


def edit(how: Edit, parts: list[Part], others: list[Part], layout: Layout, rng: random.Random) -> list[Part]:
    """A part's content or length is damaged."""
    place = _place(parts, rng)
    return [*parts[:place], how(parts[place], rng), *parts[place + 1 :]]


MOVES: tuple[Move, ...] = (drop, repeat, move, divide, take, take_damaged, replace, replace, rename, graft)
