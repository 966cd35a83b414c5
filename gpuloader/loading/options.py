"""The argument values of a loader that have fields. Each checks itself; in YAML it is a mapping of its fields."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from gpuloader.errors import ConfigError
from gpuloader.helpers.text import did_you_mean
from gpuloader.helpers.values import as_python_integer, is_integer
from gpuloader.loading.buckets import Buckets
from gpuloader.shards import ClassOrder, user_path

SubsetOf: TypeAlias = (
    Collection[int] | Collection[str] | slice | Callable[[dict[str, Any]], Collection[bool]] | os.PathLike[str] | str
)
"""Ids, keys, a file or a pattern of keys, a slice, or a function of the columns."""
Weights: TypeAlias = Literal["balanced"] | Mapping[int, float] | Mapping[str, float] | Collection[float]

_BOOLS = (bool, np.bool_)
_PATHS = (str, os.PathLike, type(None))
_MOST_THREADS = 1024
_MOST_PREFETCH = 64


@dataclass(frozen=True, eq=False)
class Sampling:
    """Which samples an epoch has, and how often each occurs.

    Attributes:
        subset: the samples to use: their ids or keys; a file of keys (a `Path`, or a string that ends in ".txt"); a
            pattern of keys, such as "cat/*"; a slice; or a function that takes the index's columns (arrays `label`,
            `height`, `width`, `size_bytes`, `shard`) and returns a bool for each sample. None uses all.
        weights: how often samples occur: a weight for each sample, {label or class name: weight}, or "balanced" for all
            labels equally often. None takes each sample once.
        replacement: with `weights`: whether a sample can occur twice in an epoch.
        steps_per_epoch: ends each epoch after this number of steps; None uses all of the data.
        require: extensions of components, such as ["txt"]: samples that lack one of them are left out.
        buckets: a `Buckets`, or a list of (height, width): each batch has images of one aspect ratio, in that size.
            None gives all batches the recipe's size.

    Example:
        >>> from gpuloader import Sampling
        >>> Sampling(weights="balanced", steps_per_epoch=100).replacement
        True
    """

    subset: SubsetOf | None = None
    weights: Weights | None = None
    replacement: bool = True
    steps_per_epoch: int | None = None
    require: Collection[str] = ()
    buckets: Buckets | Mapping[str, Any] | Sequence[tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        _check(isinstance(self.replacement, _BOOLS), "Sampling(replacement", self.replacement, "are True and False")
        _set(self, "steps_per_epoch", as_python_integer(self.steps_per_epoch))
        require = None if isinstance(self.require, str) or not isinstance(self.require, Iterable) else self.require
        if require is None or not all(isinstance(each, str) for each in require):
            raise ConfigError(f"Sampling(require={self.require!r}): allowed is a list of extensions, such as ['txt']")
        _set(self, "require", tuple(each.lower().removeprefix(".") for each in require))
        if isinstance(self.buckets, Sequence):
            _set(self, "buckets", Buckets(sizes=self.buckets))
        elif self.buckets is not None:
            _set(self, "buckets", as_value(Buckets, "buckets", self.buckets))


@dataclass(frozen=True)
class LabelFrom:
    """Where labels come from, and the names of the classes.

    Attributes:
        place: "cls", "json:NAME" (or "json:OUTER.INNER"), "folder" (the image's folder), "folder:top" (the uppermost
            folder on the way to the image), None for images only, "auto" for the first of "cls", "folder" and None that
            the data has, or "default" for "auto" with folders of pictures, and for "cls" with shards; see `GPULoader`.
        classes: the names of the classes, entry i for label i; they number labels that are text, and folders. None
            takes them from `classes.json` beside the shards or in the folder of pictures, or from the sorted names of
            the folders.
        order: how the names of folders are sorted: "name" as torchvision does, so that "10" is before "2"; "natural"
            as timm does, by the numbers in them and without case.

    Example:
        >>> from gpuloader import LabelFrom
        >>> LabelFrom("json:animal.kind", classes=["cat", "dog"]).classes
        ['cat', 'dog']
    """

    place: str | None = "default"
    classes: Sequence[str] | None = None
    order: ClassOrder = "name"


@dataclass(frozen=True)
class BadImages:
    """What happens to images that cannot be decoded, and to those beside which a field cannot be parsed.

    Attributes:
        replace: whether a bad image is replaced by a sample that the plan draws.
        max_share: the largest share of the data that may be bad, in [0, 1]; one image is always allowed. Each rank
            counts the bad images that it met.
        known: a file of known bad images, as written by `write_quarantine` and `gpuloader check`. They are replaced
            from the start, or left out with `skip`, and do not count for `max_share`.
        skip: whether bad images are left out of their batches, which are then shorter or empty; so is padding. If it
            and `replace` are False, a bad image raises an error.

    Example:
        >>> from gpuloader import BadImages
        >>> BadImages(replace=True, max_share=0.001)
        BadImages(replace=True, max_share=0.001, known=None, skip=False)
    """

    replace: bool = False
    max_share: float = 0.01
    known: str | Path | None = None
    skip: bool = False

    def __post_init__(self) -> None:
        _check(isinstance(self.replace, _BOOLS), "BadImages(replace", self.replace, "are True and False")
        _check(isinstance(self.skip, _BOOLS), "BadImages(skip", self.skip, "are True and False")
        if self.replace and self.skip:
            raise ConfigError("BadImages(replace=True, skip=True): a bad image is replaced or left out, so give one")
        _check(_is_share(self.max_share), "BadImages(max_share", self.max_share, "is a share of the data in [0, 1]")
        _check(isinstance(self.known, _PATHS), "BadImages(known", self.known, "is the path of a file, or None")


@dataclass(frozen=True)
class Decoder:
    """How images are decoded. None of these settings changes the order of samples.

    Attributes:
        num_threads: decoding threads; None uses this process's share of the cores it may use, at most 8 with a GPU.
        prefetch: the number of batches that are decoded ahead, 1 to 64; `prefetch` + 1 further batches are read ahead.
        hw_load: the share of the JPEGs, in [0, 1], that a GPU's JPEG engines decode, if it has any; None uses 1.
            With a share between 0 and 1, an image's decoder depends on its batch, and
            decoders may round differently. Ignored on a CPU.
        hybrid_huffman_threshold: for JPEGs that no engine decodes: if more pixels than this are decoded, the GPU
            decodes a part of the Huffman codes. Only the pixels of the decoded region count. None uses DALI's default,
            1,000,000. Ignored on a CPU.
        region: whether only the region that a crop needs is decoded; if False, the whole image is decoded and then
            cropped. On the CPU the pixels are the same. None means True on a CPU and False on a GPU, where some
            versions of nvImageCodec fail on regions. It also means False for shards in which at least 9 of 10 images
            are seekable JPEGs: of these, only what the crop needs reaches the decoder.

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
            _check_one_to(_MOST_THREADS, "Decoder(num_threads", self.num_threads)
        _check_one_to(_MOST_PREFETCH, "Decoder(prefetch", self.prefetch)
        share, region, threshold = self.hw_load, self.region, self.hybrid_huffman_threshold
        _check(share is None or _is_share(share), "Decoder(hw_load", share, "is a share in [0, 1], or None")
        _check(region is None or isinstance(region, _BOOLS), "Decoder(region", region, "are True, False and None")
        is_allowed = threshold is None or is_integer(threshold, 0, 2**31)
        name = "Decoder(hybrid_huffman_threshold"
        _check(is_allowed, name, threshold, "is an integer from 0 to 2**31 - 1, or None")

    def on(self, device_id: int | None, num_threads: int, seekable: bool = False) -> Decoder:
        """Returns it with values in place of None: those for a GPU, or for the CPU, where `device_id` is None.

        Args:
            num_threads: for a None there.
            seekable: whether images are cut to their regions before they are decoded, so that all of them is needed.
        """
        on_cpu = device_id is None
        return replace(
            self,
            num_threads=self.num_threads or num_threads,
            hw_load=1.0 if self.hw_load is None and not on_cpu else self.hw_load,
            region=on_cpu and not seekable if self.region is None else self.region,
        )

    @property
    def dali_options(self) -> dict[str, float]:
        """The given options of DALI's decoder, by DALI's names."""
        options = {"hw_decoder_load": self.hw_load, "hybrid_huffman_threshold": self.hybrid_huffman_threshold}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def graph_options(self) -> dict[str, Any]:
        """The arguments of `gpuloader.pipelines.recipe_pipeline` that follow from these settings."""
        return {"decoder_options": self.dali_options, "region": self.region is None or bool(self.region)}


@dataclass(frozen=True)
class Cache:
    """Where shards from URLs are kept.

    Attributes:
        folder: a folder for all processes of the machine; None uses one in the user's cache folder.
        max_bytes: the most bytes of shards in it, at least the size of the largest shard; the least recently used
            shards are removed. None uses half of the free space there.

    Example:
        >>> from gpuloader import Cache
        >>> Cache("/scratch/shards", max_bytes=500 * 10**9).folder
        '/scratch/shards'
    """

    folder: str | Path | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        _set(self, "max_bytes", as_python_integer(self.max_bytes))
        is_allowed = self.max_bytes is None or is_integer(self.max_bytes, 1, 2**63)
        _check(isinstance(self.folder, _PATHS), "Cache(folder", self.folder, "is the path of a folder, or None")
        _check(is_allowed, "Cache(max_bytes", self.max_bytes, "is an integer of at least 1, or None")

    @property
    def path(self) -> Path | None:
        """The folder, if one is given."""
        return None if self.folder is None else user_path(self.folder)


_Value = TypeVar("_Value")


def as_value(kind: type[_Value], name: str, argument: object) -> _Value:
    """Returns the value that is given under this name, made from a mapping if it is one.

    Raises:
        ConfigError: it is neither such a value nor a mapping of its fields.
    """
    if isinstance(argument, kind):
        return argument
    each_field = [field for field in fields(kind) if field.init]  # type: ignore[arg-type]
    allowed = [field.name for field in each_field]
    if not isinstance(argument, Mapping):
        raise ConfigError(
            f"{name}={argument!r}: allowed is a {kind.__name__}({', '.join(f'{each}=' for each in allowed)}), "
            f"or a mapping of these"
        )
    for key in argument:
        if key not in allowed:
            hint = did_you_mean(str(key), allowed)
            raise ConfigError(f"{name}: {kind.__name__} has no {key!r}{hint}; allowed are {', '.join(allowed)}")
    needed = [field.name for field in each_field if field.default is MISSING and field.default_factory is MISSING]
    if missing := [each for each in needed if each not in argument]:
        raise ConfigError(f"{name}={argument!r}: {', '.join(missing)} is missing; give all of {', '.join(needed)}")
    return kind(**argument)


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _check_one_to(most: int, name: str, value: int) -> None:
    _check(is_integer(value, 1, most + 1), name, value, f"is an integer from 1 to {most}")


def _check(is_allowed: bool, name: str, value: object, allowed: str) -> None:
    if not is_allowed:
        raise ConfigError(f"{name}={value!r}): allowed {allowed}")


def _set(value: object, name: str, to: object) -> None:
    object.__setattr__(value, name, to)
