"""The values that a loader takes beside plain arguments. Each checks itself; in YAML it is a mapping of its fields."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar

import numpy as np

from gpuloader.errors import ConfigError
from gpuloader.loading.world import World
from gpuloader.shards import user_path

SubsetOf: TypeAlias = (
    Collection[int] | Collection[str] | slice | Callable[[dict[str, Any]], Collection[bool]] | os.PathLike[str] | str
)
"""Ids, keys, a file or a pattern of keys, a slice, or a function of the columns."""
Weights: TypeAlias = Literal["balanced"] | Mapping[int, float] | Collection[float]

_MOST_THREADS = 1024
_MOST_PREFETCH = 64


@dataclass(frozen=True, eq=False)
class Sampling:
    """Which samples an epoch has, and how often each comes.

    Attributes:
        subset: the samples to use: their ids, or keys; a file of keys (a `Path`, or text that ends in ".txt"); a
            pattern of keys, such as "cat/*"; a slice; or a function that takes the index's columns (arrays `label`,
            `height`, `width`, `size_bytes`, `shard`) and gives a bool for each sample. None for all.
        weights: how often samples come: a weight for each sample, {label: weight}, or "balanced" for all labels alike.
            None for once each.
        replacement: whether a sample can come again in an epoch, with `weights`.
        steps_per_epoch: ends each epoch after that many steps; None for all of the data.

    Example:
        >>> from gpuloader import Sampling
        >>> Sampling(weights="balanced", steps_per_epoch=100).replacement
        True
    """

    subset: SubsetOf | None = None
    weights: Weights | None = None
    replacement: bool = True
    steps_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.replacement, (bool, np.bool_)):
            raise ConfigError(f"Sampling(replacement={self.replacement!r}): allowed are True and False")
        _set(self, "steps_per_epoch", as_python_integer(self.steps_per_epoch))


@dataclass(frozen=True)
class LabelFrom:
    """Where labels are, and what they are called.

    Attributes:
        place: "cls", "json:NAME" (or "json:OUTER.INNER"), "folder", None for images only, or "auto" for the first of
            "cls", "folder" and None that the data has.
        classes: the names of the labels, label i naming the i-th: they number labels that are text, and folders. None
            takes those of `classes.json` beside the shards, and the sorted names of folders.

    Example:
        >>> from gpuloader import LabelFrom
        >>> LabelFrom("json:animal.kind", classes=["cat", "dog"]).classes
        ['cat', 'dog']
    """

    place: str | None = "cls"
    classes: Sequence[str] | None = None


@dataclass(frozen=True)
class BadImages:
    """What happens to images that cannot be decoded.

    Attributes:
        replace: whether a replacement that the plan draws takes their place; else they are errors.
        max_share: the share of the data that may be bad where they are replaced, in [0, 1]; one image always may. Each
            rank counts the bad images that it met.
        known: a file of images that are known to be bad, as `write_quarantine` and `gpuloader check` write it. They are
            replaced from the start, also where `replace` is False, and do not count for `max_share`.

    Example:
        >>> from gpuloader import BadImages
        >>> BadImages(replace=True, max_share=0.001)
        BadImages(replace=True, max_share=0.001, known=None)
    """

    replace: bool = False
    max_share: float = 0.01
    known: str | Path | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.replace, (bool, np.bool_)):
            raise ConfigError(f"BadImages(replace={self.replace!r}): allowed are True and False")
        if not _is_share(self.max_share):
            raise ConfigError(f"BadImages(max_share={self.max_share!r}): allowed is a share of the data in [0, 1]")
        if not isinstance(self.known, (str, os.PathLike, type(None))):
            raise ConfigError(f"BadImages(known={self.known!r}): allowed is the path of a file, or None")


@dataclass(frozen=True)
class Decoder:
    """How decoding goes about its work. Nothing here changes the order of samples.

    Attributes:
        num_threads: decoding threads; None takes this process's share of the cores that it may use, on a GPU at most 8.
        prefetch: batches decoded before they are asked for, 1 to 64; one more than that are read ahead of those.
        hw_load: the share of the JPEGs, in [0, 1], that a GPU's JPEG engines decode, where there are any; None takes 1,
            or 0 where engines decode wrongly. Between them an image's decoder depends on the batch that it is in, and
            decoders may round differently. It plays no part on a CPU.
        hybrid_huffman_threshold: the pixels above which the GPU decodes a part of the Huffman codes, of JPEGs that no
            engine decodes; those of the part that is decoded count, not all of the image's. None takes DALI's default,
            1,000,000. It plays no part on a CPU.
        region: whether only that part is decoded that a crop needs; else the whole image, which is then cut. Pixels are
            the same. None is True, but on a GPU where that fails.

    On a GPU, what None stands for is tried at the first loader, in a process of its own, and kept in the user's cache
    folder for that kind of GPU, the driver, DALI and nvImageCodec; `gpuloader doctor` shows it.

    Example:
        >>> from gpuloader import Decoder
        >>> Decoder(num_threads=4).prefetch
        2
    """

    num_threads: int | None = None
    prefetch: int = 2
    hw_load: float | None = None
    hybrid_huffman_threshold: int | None = None
    region: bool | None = None

    def __post_init__(self) -> None:
        for name in ("num_threads", "prefetch", "hybrid_huffman_threshold"):
            _set(self, name, as_python_integer(getattr(self, name)))
        if self.num_threads is not None:
            _check_one_to(_MOST_THREADS, "Decoder(num_threads=", self.num_threads)
        _check_one_to(_MOST_PREFETCH, "Decoder(prefetch=", self.prefetch)
        if self.hw_load is not None and not _is_share(self.hw_load):
            raise ConfigError(f"Decoder(hw_load={self.hw_load!r}): allowed is a share in [0, 1], or None")
        if not isinstance(self.region, (bool, np.bool_, type(None))):
            raise ConfigError(f"Decoder(region={self.region!r}): allowed are True, False and None")
        threshold = self.hybrid_huffman_threshold
        if threshold is not None and not is_integer(threshold, 2**31):
            raise ConfigError(
                f"Decoder(hybrid_huffman_threshold={threshold!r}): allowed is an integer from 0 to 2**31 - 1, or None"
            )

    @property
    def dali_options(self) -> dict[str, float]:
        """Those of DALI's decoder that are given, by DALI's names."""
        options = {"hw_decoder_load": self.hw_load, "hybrid_huffman_threshold": self.hybrid_huffman_threshold}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def graph_options(self) -> dict[str, Any]:
        """What `gpuloader.pipelines.recipe_pipeline` takes of it."""
        return {"decoder_options": self.dali_options, "region": self.region is None or bool(self.region)}


@dataclass(frozen=True)
class Cache:
    """Where shards from URLs are kept.

    Attributes:
        folder: for all processes of the machine; None for one in the user's cache folder.
        max_bytes: the most that they take there, at least the size of the largest shard; those used longest ago are
            removed. None for half of what is free there.

    Example:
        >>> from gpuloader import Cache
        >>> Cache("/scratch/shards", max_bytes=500 * 10**9).folder
        '/scratch/shards'
    """

    folder: str | Path | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        _set(self, "max_bytes", as_python_integer(self.max_bytes))
        if not isinstance(self.folder, (str, os.PathLike, type(None))):
            raise ConfigError(f"Cache(folder={self.folder!r}): allowed is the path of a folder, or None")
        if self.max_bytes is not None and not (is_integer(self.max_bytes, 2**63) and self.max_bytes):
            raise ConfigError(f"Cache(max_bytes={self.max_bytes!r}): allowed is an integer of at least 1, or None")

    @property
    def path(self) -> Path | None:
        """The folder, where one is named."""
        return None if self.folder is None else user_path(self.folder)


_Value = TypeVar("_Value", Sampling, LabelFrom, BadImages, Decoder, Cache, World)


def as_value(kind: type[_Value], name: str, given: object) -> _Value:
    """The value that is given under that name, a mapping made into one.

    Raises:
        ConfigError: it is something else, or a mapping with keys that are no fields of it.
    """
    if isinstance(given, kind):
        return given
    allowed = [field.name for field in fields(kind) if field.init]
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{name}={given!r}: allowed is a {kind.__name__}({', '.join(f'{each}=' for each in allowed)}), "
            f"or a mapping of those"
        )
    for key in given:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(allowed)}"
            raise ConfigError(f"{name}: {kind.__name__} has no {key!r}; {hint}")
    needed = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]
    if missing := [each for each in needed if each not in given]:
        raise ConfigError(f"{name}={given!r}: {', '.join(missing)} is missing; give all of {', '.join(needed)}")
    return kind(**given)


def as_python_integer(value: Any) -> Any:  # noqa: ANN401
    """Numpy's integers as Python's, so that they can be compared and kept as JSON."""
    return value.item() if isinstance(value, np.integer) else value


def is_integer(value: object, end: int) -> TypeGuard[int]:
    """Whether it is an integer in [0, end)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _check_one_to(most: int, name: str, value: int) -> None:
    if not is_integer(value, most + 1) or value == 0:
        raise ConfigError(f"{name}{value!r}): allowed is an integer from 1 to {most}")


def _set(value: object, name: str, to: object) -> None:
    object.__setattr__(value, name, to)
