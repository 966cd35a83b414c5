"""The options of a pack, and what is allowed for each of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuloader.base.regular_file import read_regular
from gpuloader.base.values import is_integer
from gpuloader.errors import ConfigError
from gpuloader.images.mipmaps import LARGEST_SIDE
from gpuloader.pack.seekable import find_version
from gpuloader.plan import check_seed
from gpuloader.shards.class_names import MOST_CLASSES_BYTES, listed_names
from gpuloader.shards.paths import user_path

LEAST_BYTES = 2**20
"""The least size of a shard in bytes, unless it is given with a unit."""
SUBSAMPLING = "4:4:4"  # 4:2:0 costs 5 to 9 dB, because crops are about as small as what is made here
VALIDATION = "val"
_RECORDED = (
    *("samples_per_shard", "shard_bytes", "seed", "shuffle", "val_share", "prefix"),
    *("max_size", "quality", "decoded", "seekable"),
)


@dataclass(frozen=True)
class Options:
    """The options of `pack`, parsed and checked.

    Attributes:
        mipmaps: the pixels of the shorter sides of the smaller copies, the largest first.
        classes: the names that number the labels; `FoundNames` are ignored if the labels are numbers already.
    """

    samples_per_shard: int | None = None
    shard_bytes: int | None = None
    seed: int = 0
    shuffle: bool = True
    val_share: float = 0.0
    prefix: str = "train"
    max_size: int | None = None
    quality: int | None = None
    decoded: int | None = None
    seekable: bool = False
    mipmaps: tuple[int, ...] | None = None
    part: tuple[int, int] = (0, 1)
    workers: int | None = None
    ray: str | None = None
    classes: tuple[str, ...] | None = None
    images: Path | None = None
    tars_are_classes: bool = False

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name, (is_allowed, allowed) in _ALLOWED.items():
            value = getattr(self, name)
            if not ((value is None and getattr(Options, name) is None) or is_allowed(value, self)):
                raise ConfigError(f"{name}={value!r}: allowed {allowed}")
        for (name, other), cure in _NOT_BOTH.items():
            if {None, False}.isdisjoint((getattr(self, name), getattr(self, other))):
                raise ConfigError(f"{name} and {other} were both given: {cure}")
        if self.quality is not None and self.max_size is None and self.mipmaps is None:
            raise ConfigError(
                "quality was given without max_size or mipmaps: pictures that are not downsized are copied unchanged"
            )
        if self.seekable:
            find_version()

    def recorded(self) -> dict[str, Any]:
        """Returns the options that decide the shards, for a manifest; mipmaps and subsampling only if there are any."""
        content = {name: getattr(self, name) for name in _RECORDED}
        content |= {"seekable": find_version() if self.seekable else None}
        some = {"mipmaps": self.mipmaps, "subsampling": self.max_size and SUBSAMPLING}
        return content | {name: value for name, value in some.items() if value}


_Allowed = tuple[Callable[[Any, Options], object], str]


def _integer(most: int | None = None) -> _Allowed:
    allowed = "is an integer from 1 on" if most is None else f"is an integer from 1 to {most}"
    return (lambda value, _: is_integer(value, 1, most and most + 1)), allowed


_FLAG: _Allowed = (lambda flag, _: isinstance(flag, bool)), "are True and False"
_ALLOWED: Mapping[str, _Allowed] = {  # None is allowed where it is the default
    **dict.fromkeys(("shuffle", "seekable", "tars_are_classes"), _FLAG),
    **dict.fromkeys(("samples_per_shard", "shard_bytes"), _integer()),
    "val_share": (
        lambda share, _: (isinstance(share, float) or is_integer(share)) and 0 <= share < 1,
        "is a share from 0 up to, but not including, 1",
    ),
    "prefix": (
        lambda text, given: text and not set(text) & set("/\0.{}*?[]") and (text != VALIDATION or not given.val_share),
        "is the beginning of a file name without . / * ? or brackets, but not 'val' together with val_share",
    ),
    **dict.fromkeys(("max_size", "decoded"), _integer(LARGEST_SIDE)),
    "quality": _integer(100),
    "workers": (
        lambda number, given: is_integer(number, 1) and given.ray is None,
        "is an integer from 1 on; leave it out with ray",
    ),
}
_NOT_BOTH = {
    ("samples_per_shard", "shard_bytes"): "give one of them",
    ("max_size", "decoded"): "decoded downsizes, too; leave max_size out",
    ("seekable", "decoded"): "decoded pictures are no JPEGs; leave one out",
    ("mipmaps", "decoded"): "decoded pictures have no copies; leave one out",
}


def parse_bytes(size: int | str | None) -> int | None:
    """Returns the value of `shard_bytes` in bytes: it is a number, or text such as "256MiB"."""
    if size is None:
        return None
    from pydantic import ByteSize, TypeAdapter, ValidationError  # here, because it takes a while to import

    try:
        size_bytes = int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        raise ConfigError(f"shard_bytes={size!r}: allowed are bytes such as 256MiB, 1GB or 100000000") from None
    if size_bytes < LEAST_BYTES and not (isinstance(size, str) and any(map(str.isalpha, size))):
        raise ConfigError(
            f"shard_bytes={size!r}: a number without a unit counts bytes, and a shard of so few holds "
            f"about one picture: write '{size}MiB', or '{size}B' if you mean bytes"
        )
    return size_bytes


def parse_mipmaps(sides: str | Sequence[int] | None) -> tuple[int, ...] | None:
    """Returns the sides in `mipmaps`, a sequence or text such as "1024,512", the largest first."""
    if sides is None:
        return None
    given: Sequence[Any] = sides.split(",") if isinstance(sides, str) else sides if isinstance(sides, Sequence) else ()
    numbers = [int(side) if isinstance(side, str) and side.strip().isdecimal() else side for side in given]
    if not numbers or not all(is_integer(side, 1, LARGEST_SIDE + 1) for side in numbers):
        raise ConfigError(f"mipmaps={sides!r}: allowed are integers from 1 to {LARGEST_SIDE}, such as 1024,512")
    return tuple(sorted(set(numbers), reverse=True))


def parse_part(part: tuple[int, int]) -> tuple[int, int]:
    """Returns `part`: a number, and the number of parts."""
    index, parts = part if isinstance(part, (tuple, list)) and len(part) == 2 else (part, None)
    if not (is_integer(parts) and is_integer(index, 0, parts)):
        raise ConfigError(f"part={index}/{parts}: allowed is i/n with i from 0 to n - 1")
    return index, parts


def parse_classes(classes: str | os.PathLike[str] | Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns the names in `classes`, a list or a JSON file with one."""
    if classes is None:
        return None
    names: Any = classes
    if isinstance(classes, (str, os.PathLike)):
        try:
            names = listed_names(json.loads(read_regular(user_path(classes), MOST_CLASSES_BYTES)))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"classes={os.fspath(classes)!r} cannot be read: {error}: allowed is a JSON file with a list"
            ) from None
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"classes={classes!r}: allowed is a list of names, or a JSON file with one")
    if len(set(names)) < len(names):
        raise ConfigError(f"classes={classes!r}: a name occurs twice")
    return tuple(names)
