"""What the fuzzer feeds to parsers: tars, index files, states, recipes, and components of samples: arrays and JSON."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from bad_images import GOOD
from hostile import TEXTS, mutated_bytes, paths, removed, replaced
from making import saved, write_shard

from gpuloader import ConfigError, DataError, GPULoader, PresetError, StateError
from gpuloader.collators import REFUSALS, Collator, as_arrays, as_json, padded, stacked
from gpuloader.plan import Draws
from gpuloader.recipe import load_preset, preset_names, preset_text
from gpuloader.shards import ShardIndex, array_gate, open_index
from gpuloader.shards.scan import scan_bytes

Examine: TypeAlias = Callable[[bytes], bool]
"""Whether a parser takes the data, and all that is asked of it then works; it raises what is no error of ours."""

_COLLATORS = (as_arrays, stacked, padded)
_TAR_BLOCK_BYTES = 512
_TAR_FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
_NUMBERS = (
    "0",
    "-1",
    "1e999",
    "nan",
    "-0.0",
    "0.5",
    "3",
    "255",
    "8193",
    "100000000",
    f"{2**31}",
    f"{2**64}",
    "9" * 5000,
)
_WORDS = (
    "null",
    "true",
    "no",
    "[]",
    "{}",
    "[1, 2]",
    "{0: 32, 5: 64}",
    "&a",
    "*a",
    "!!x",
    "1:59:59",
    "RandAugment",
    "x",
)
_SIZES = np.array([1, 64, 3000]), np.array([70, 48, 40])


# --- what is whole


@cache
def seeds(kind: str) -> tuple[bytes, ...]:
    """Whole data to start from."""
    return {
        "tar": _tars,
        "index": lambda: tuple(_index_body(tar) for tar in _tars()),
        "state": _states,
        "recipe": lambda: tuple(preset_text(name).encode() for name in preset_names()),
        "npy": _arrays,
        "json": lambda: (
            b'{"label": 3, "caption": "a \\u00e9", "box": [0.5, 1e3, -2, null], "of": {"a": [true, {}]}}',
        ),
    }[kind]()


def _tars() -> tuple[bytes, ...]:
    members = [
        ("a.jpg", GOOD[:900]),
        ("a.cls", b"7"),
        ("a.json", b"{}"),
        ("folder/b.npy", saved(np.zeros((2, 3, 3), np.uint8))),
        ("folder/b.cls", b"x"),
        (f"{'c' * 90}/{'d' * 60}.png", b""),
        ("\u00e9.jpg", GOOD[:700]),
        ("README", b"no image"),
    ]
    tars = []
    for tar_format in _TAR_FORMATS:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tar_format) as tar:
            for name, data in members:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            link = tarfile.TarInfo("d.jpg")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
        tars.append(file.getvalue())
    return tuple(tars)


def _index_body(tar: bytes) -> bytes:
    """An index file without its checksum, which comes last."""
    return _scanned(tar).to_bytes()[:-32]


def _states() -> tuple[bytes, ...]:
    """What a loader of `_loader` saves, early and late, with a bad image."""
    with tempfile.TemporaryDirectory() as folder, _loader(Path(folder)) as loader:
        state = loader.state_dict()
    later = {**state, "epoch": 3, "delivered": 1, "quarantine": [[0, "cut"]]}
    return json.dumps(state).encode(), json.dumps(later).encode()


def _arrays() -> tuple[bytes, ...]:
    arrays = (
        np.zeros((4, 5, 3), np.uint8),
        np.arange(10, dtype=np.float32),
        np.ones((2, 3), ">i8"),
        np.array(["ab", "c"]),
        np.zeros(3, [("a", "<i4"), ("b", "<f8")]),
        np.float64(1),
    )
    return (*map(saved, arrays), saved(arrays[1], (2, 0)), saved(arrays[1], (3, 0)))


# --- what is damaged


def mutate(kind: str, data: bytes, rng: random.Random) -> bytes:
    """The data with a mutation or two that suit its format."""
    for _ in range(rng.choice((1, 1, 2))):
        data = rng.choice(_MUTATIONS[kind])(data, rng) if data else data
    return _with_tar_checksums(data) if kind == "tar" and rng.random() < 0.8 else data


def _change_bytes(data: bytes, rng: random.Random) -> bytes:
    return next(mutated_bytes(data, 1, rng.getrandbits(64)))


def _change_first_bytes(data: bytes, rng: random.Random) -> bytes:
    return _change_bytes(data[:128], rng) + data[128:]


def _change_value(data: bytes, rng: random.Random) -> bytes:
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


def _change_index_header(data: bytes, rng: random.Random) -> bytes:
    end = 16 + int.from_bytes(data[8:16], "little")
    header = _change_value(data[16:end], rng)
    header += b" " * (-len(header) % 8)
    return data[:8] + len(header).to_bytes(8, "little") + header + data[end:]


def _change_word(data: bytes, rng: random.Random) -> bytes:
    """A word or number in a text is another of it, or a hostile one."""
    words = list(re.finditer(rb"[\w.+-]+", data))
    if not words:
        return data
    start, end = rng.choice(words).span()
    new = rng.choice(words)[0] if rng.random() < 0.4 else rng.choice((*_NUMBERS, *_WORDS)).encode()
    return data[:start] + new + data[end:]


def _change_lines(data: bytes, rng: random.Random) -> bytes:
    """A line is missing, comes many times, stands elsewhere or deeper."""
    lines = data.splitlines(keepends=True)
    place = rng.randrange(len(lines))
    line = lines[place]
    match rng.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines[place:place] = [line] * rng.choice((1, 3, 100))
        case 2:
            lines.insert(rng.randrange(len(lines)), lines.pop(place))
        case _:
            lines[place] = b"  " * rng.choice((1, 2, 40)) + line
    return b"".join(lines)


def _change_tar_field(data: bytes, rng: random.Random) -> bytes:
    """A field of a header is another: name, mode, size, time, type, link, magic, prefix."""
    headers = _tar_headers(data)
    if not headers:
        return data
    start, size = rng.choice(((0, 100), (100, 8), (124, 12), (124, 12), (124, 12), (136, 12), (156, 1), (157, 100),
                              (257, 8), (345, 155)))  # fmt: skip
    place = rng.choice(headers) + start
    value = rng.choice(
        (
            b"%o" % rng.choice((0, 1, 511, 512, 513, 2**32, 2**33 - 1)),
            bytes([0x80]) + rng.randbytes(size),
            b"\xff" * size,
            rng.choice((b"x", b"g", b"L", b"K", b"S", b"1", b"2", b"5", b"7", b"V", b"\0")),
            rng.choice((b"a.jpg", b"../../a.jpg", b"/a.b.jpg", b".jpg", b"a.\xff\xfe", b"./", b"a.JPG")),
            rng.randbytes(size),
        )
    )
    return data[:place] + value[:size].ljust(size, b"\0") + data[place + size :]


def _change_tar_blocks(data: bytes, rng: random.Random) -> bytes:
    """A block of 512 bytes is missing, comes twice or is another."""
    place = rng.randrange(-(-len(data) // _TAR_BLOCK_BYTES)) * _TAR_BLOCK_BYTES
    block = data[place : place + _TAR_BLOCK_BYTES]
    instead = rng.choice((b"", 2 * block, bytes(_TAR_BLOCK_BYTES), rng.randbytes(_TAR_BLOCK_BYTES), block + block[:7]))
    return data[:place] + instead + data[place + _TAR_BLOCK_BYTES :]


_MUTATIONS: dict[str, tuple[Callable[[bytes, random.Random], bytes], ...]] = {
    "tar": (_change_bytes, _change_tar_field, _change_tar_field, _change_tar_field, _change_tar_blocks, _change_word),
    "index": (_change_bytes, _change_bytes, _change_index_header),
    "state": (_change_bytes, _change_value, _change_value),
    "recipe": (_change_bytes, _change_word, _change_word, _change_word, _change_lines),
    "npy": (_change_bytes, _change_first_bytes, _change_first_bytes, _change_word, _change_word),
    "json": (_change_bytes, _change_value),
}


def _tar_headers(data: bytes) -> list[int]:
    return [place for place in range(0, len(data), _TAR_BLOCK_BYTES) if data[place + 257 : place + 262] == b"ustar"]


def _with_tar_checksums(data: bytes) -> bytes:
    """What looks like a header has a right checksum; else most tars would be refused for that alone."""
    result = bytearray(data)
    for place in _tar_headers(data):
        header = data[place : place + _TAR_BLOCK_BYTES]
        checksum = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * ord(" "))
        result[place + 148 : place + 156] = checksum
    return bytes(result)


# --- what is made of it


def examiners(folder: Path) -> dict[str, Examine]:
    """What tries the data of each format; it may write into the folder, which must be empty."""
    loader = _loader(folder)
    recipe = folder / "recipe.yaml"

    def takes_state(data: bytes) -> bool:
        try:
            state: Any = json.loads(data)
        except (ValueError, RecursionError):  # as any program finds that reads it
            return False
        loader.load_state_dict(state)
        loader.state_dict()
        return True

    def takes_recipe(data: bytes) -> bool:
        recipe.write_bytes(data)
        preset = load_preset(recipe)
        try:
            arrays = preset.arrays(Draws(1, 2, np.arange(3)), *_SIZES)
        except ConfigError:  # a blur that does not fit into the image
            return False
        assert all(np.isfinite(array).all() for array in arrays.values()), "a drawn number is not finite"
        return True

    return {
        "tar": _refusing(DataError, _takes_tar),
        "index": _refusing(DataError, _takes_index),
        "state": _refusing(StateError, takes_state),
        "recipe": _refusing(PresetError, takes_recipe),
        "npy": _takes_array,
        "json": _refusing(REFUSALS, _takes_json),
    }


def _refusing(errors: type[Exception] | tuple[type[Exception], ...], takes: Examine) -> Examine:
    def examine(data: bytes) -> bool:
        try:
            return takes(data)
        except errors:
            return False

    return examine


def _loader(folder: Path) -> GPULoader:
    """A loader of two samples."""
    shard = write_shard(folder / "a.tar", [{"__key__": key, "jpg": GOOD} for key in "ab"])
    open_index(shard)  # without a progress bar
    return GPULoader(shard, 2, None, preset="imagenet_eval", label_from=None)


def _scanned(tar: bytes) -> ShardIndex:
    return scan_bytes(lambda size, place: tar[place : place + size], len(tar), 0, "a.tar")


def _takes_tar(data: bytes) -> bool:
    _use(_scanned(data), len(data))
    return True


def _takes_index(data: bytes) -> bool:
    index = ShardIndex.parse(data + hashlib.blake2b(data, digest_size=32).digest(), "a.gpuidx")
    _use(index, index.shard_bytes)
    return True


def _use(index: ShardIndex, size_bytes: int) -> None:
    """All that the library asks an index; it may not reach outside the shard."""
    keys = index.all_keys()
    assert [index.key(row) for row in range(len(index))] == keys, "keys differ"
    places = [index.component(row, extension) for row in range(len(index)) for extension in index.extensions]
    places += zip(index.image_offset.tolist(), index.image_size.tolist(), strict=True)
    assert all(place is None or 0 <= place[0] <= sum(place) <= size_bytes for place in places), "outside the shard"
    assert len(index.decoded()) == len(keys), "other lengths"
    index.digest()
    ShardIndex.parse(index.to_bytes(), "a.gpuidx")


def _takes_array(data: bytes) -> bool:
    """As an image, and as a field by each collator."""
    array_gate(np.frombuffer(data, np.uint8))
    return any([_refusing(REFUSALS, partial(_collates, collate))(data) for collate in _COLLATORS])  # noqa: C419 - all


def _collates(collate: Collator, data: bytes) -> bool:
    collate([data, data])
    return True


def _takes_json(data: bytes) -> bool:
    as_json([data])
    return True
