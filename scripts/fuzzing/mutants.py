"""Makes the mutants: each depends only on (seed, kind, number)."""

from __future__ import annotations

import json
import random
import re
import zlib
from contextlib import suppress
from functools import partial

from forging import parts_of, sealed
from hostile import MOST_BYTES, TEXTS, change_bytes, paths, removed, replaced

from fuzzing.formats import FORMATS, PNG, in_order, with_tar_checksums
from fuzzing.material import KINDS, donors, material

_NUMBERS = ("0", "-1", "1e999", "nan", "1e-300", "0.5", "255", "8193", "1e7", f"{2**31}", f"{2**64}", "9" * 5000)
_WORDS = ("null", "true", "[]", "{}", "[1, 2]", '"x"')
_MOST_UNPACKED_BYTES = 1 << 18


def mutant(kind: str, seed: int, number: int) -> bytes:
    """The mutant of this number."""
    rng = random.Random(f"{kind} {seed} {number}")
    changes = _CHANGES[kind]
    whole = data = rng.choice(material(kind))
    times = rng.choice((1, 1, 1, 2, 4))
    while times > 0 or data == whole:
        data = rng.choice(changes)(data, rng)[:MOST_BYTES]
        times -= 1
    return _with_checksums(kind, data) if rng.random() < 0.8 else data


def _with_checksums(kind: str, data: bytes) -> bytes:
    """Without right checksums and numbers, most mutants would be refused for that alone."""
    if data.startswith(b"\x89PNG"):
        return PNG.join(PNG.split(data))
    repair = {"seekable": in_order, "tar": with_tar_checksums}.get(kind)
    return repair(data) if repair else data


def splice(kind: str, data: bytes, rng: random.Random) -> bytes:
    """The beginning of one and the end of another."""
    other = rng.choice(donors(kind))
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def change_parts(kind: str, data: bytes, rng: random.Random) -> bytes:
    """A part is missing, comes often, stands elsewhere, comes from another file, or has another content."""
    split, join = FORMATS[kind]
    parts, others = split(data) or [b""], split(rng.choice(donors(kind)))
    place, target = rng.randrange(len(parts)), rng.randrange(len(parts) + 1)
    match rng.randrange(7):
        case 0:
            del parts[place]
        case 1:
            parts[target:target] = [parts[place]] * rng.choice((1, 1, 3, 30))
        case 2:
            parts.insert(target, parts.pop(place))
        case 3:
            parts.insert(target, rng.choice(others))
        case 4:
            same = [other for other in others if _name(kind, other) == _name(kind, parts[place])]
            parts[place] = rng.choice(same or others)
        case 5:
            parts[place] = repack(parts[place], rng)
        case _:
            parts[place] = change_bytes(parts[place], rng)
    return join(parts)


def _name(kind: str, part: bytes) -> bytes:
    return {"png": part[4:8], "webp": part[:4], "tar": part[156:157]}.get(kind, part[:2])


def repack(part: bytes, rng: random.Random) -> bytes:
    """What is packed (RFC 1950) within a part is changed, and packed again."""
    for start in (8, 12, part.find(b"\0\0") + 2):  # of IDAT, fdAT and iCCP
        with suppress(zlib.error):
            unpacked = zlib.decompressobj().decompress(part[start:-4], _MOST_UNPACKED_BYTES)
            return part[:start] + zlib.compress(change_bytes(unpacked, rng), 1) + part[-4:]
    return change_bytes(part, rng)


def change_value(data: bytes, rng: random.Random) -> bytes:
    """A value of JSON is another one, or absent."""
    try:
        tree = json.loads(data)
        path = rng.choice(list(paths(tree)))
    except (ValueError, RecursionError):  # a mutation before has seen to that
        return data
    if path and rng.random() < 0.1:
        return json.dumps(removed(tree, path)).encode()
    before, _, after = json.dumps(replaced(tree, path, "@here@")).partition('"@here@"')
    return (before + rng.choice(TEXTS) + after).encode("utf-8", "surrogatepass")


def change_index(data: bytes, rng: random.Random) -> bytes:
    """A value in an index's header is another one, or bytes of its columns, with right digests."""
    parts = parts_of(data)
    area, change = rng.choice((("header", change_value), ("header", change_bytes), ("columns", change_bytes)))
    return sealed(parts._replace(**{area: change(getattr(parts, area), rng)}))


def change_word(data: bytes, rng: random.Random) -> bytes:
    """A word or number in a text is another of it, or a hostile one."""
    words = list(re.finditer(rb"[\w.+-]+", data))
    if not words:
        return data
    start, end = rng.choice(words).span()
    new = rng.choice(words)[0] if rng.random() < 0.4 else rng.choice((*_NUMBERS, *_WORDS)).encode()
    return data[:start] + new + data[end:]


_TEXT = {
    "annotations": (change_value, change_word, change_word),
    "index": (change_index, change_index),
    "tar": (change_word,),
}
_CHANGES = {
    kind: (
        change_bytes,
        change_bytes,
        partial(splice, kind),
        *[partial(change_parts, kind)] * (3 if kind in FORMATS else 0),
        *_TEXT.get(kind, ()),
    )
    for kind in KINDS
}
