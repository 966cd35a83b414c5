"""Classes for arguments of `GPULoader`, such as `Sampling` and `Decoder`. In YAML, each is a mapping of its fields."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, PlainValidator

from gpuloader.errors import describe
from gpuloader.loading.buckets import Buckets
from gpuloader.plan.grouped_sampler import MOST_GROUPS
from gpuloader.recipe.model import UNCHECKED, Flag, Integer, Positive, Share, kept_as
from gpuloader.recipe.part import argument, as_value
from gpuloader.shards import ClassOrder, user_path

SubsetOf: TypeAlias = (
    Collection[int] | Collection[str] | slice | Callable[[dict[str, Any]], Collection[bool]] | os.PathLike[str] | str
)
"""Ids, keys, a file or a pattern of keys, a slice, or a function of the columns."""
Weights: TypeAlias = Literal["balanced"] | Mapping[int, float] | Mapping[str, float] | Collection[float]


def _check_path(given: object) -> object:
    if not isinstance(given, (str, os.PathLike)) or given == "":
        raise ValueError(f"found {describe(given)}: allowed is a path")
    return given


_AnyPath: TypeAlias = Annotated[str | Path, PlainValidator(_check_path)]
_AnyBuckets: TypeAlias = Buckets | Mapping[str, Any] | Sequence[tuple[int, int]] | None
_Extension: TypeAlias = Annotated[str, AfterValidator(lambda name: name.lower().removeprefix("."))]


def _as_buckets(given: object) -> Buckets | None:
    if isinstance(given, Sequence) and not isinstance(given, str):
        return Buckets(sizes=given)
    return None if given is None else as_value(Buckets, "buckets", given)


@argument
class Sampling:
    """The samples of an epoch, and how often each occurs.

    Attributes:
        subset: the samples to use: their ids or keys; a file of keys (a `Path`, or a string that ends in ".txt"); a
            pattern of keys, such as "cat/*"; a slice; or a function that takes the index's columns (arrays `label`,
            `height`, `width`, `size_bytes`, `shard`) and returns a bool for each sample. None uses all.
        weights: how often samples occur: a weight for each sample, {label or class name: weight}, or "balanced" for all
            labels equally often. None takes each sample once. With `buckets`, each bucket batch draws its bucket by the
            sum of its weights, then its samples.
        replacement: with `weights`: whether a sample can occur twice in an epoch; with `buckets`, it must be True.
        steps_per_epoch: the number of steps in an epoch; the next epoch continues from there. None: an epoch has as
            many samples as are selected.
        repeats: how many copies of a sample come in a row, each augmented differently. The number of samples in an
            epoch does not change.
        groups: with `shuffle="shards"`: the number of groups of shards. Each node reads its own shards if the number of
            nodes divides it, and if it divides the global batch. None uses the largest divisor of the global batch up
            to a 64th of it, or up to 16 if that is more, and up to the number of shards.
        require: extensions of components, such as ["txt"]: samples that lack one of them are skipped.
        buckets: a `Buckets`, or a list of (height, width): each batch has images of about one aspect ratio and of one
            size. With `Buckets(groups=...)`, images have the sizes of the recipe. None ignores aspect ratios.
        leave_out: samples to leave out of a run: given as `subset`, or as a quarantine file (a path that ends in
            ".jsonl"). A key names all samples that have it. From the place of a loaded state on, or from the beginning,
            the samples are replaced, or dropped with `BadImages(skip=True)`. All other samples stay the same. The state
            keeps what is left out.

    Example:
        >>> from gpuloader import Sampling
        >>> Sampling(weights="balanced", steps_per_epoch=100).replacement
        True
    """

    subset: Annotated[SubsetOf | None, UNCHECKED] = None
    weights: Annotated[Weights | None, UNCHECKED] = None
    replacement: Flag = True
    steps_per_epoch: Integer | None = None
    repeats: Integer = 1
    groups: Annotated[Integer, Field(ge=1, le=MOST_GROUPS)] | None = None
    require: Annotated[Collection[str], kept_as(tuple[_Extension, ...])] = ()
    buckets: Annotated[_AnyBuckets, PlainValidator(_as_buckets)] = None
    leave_out: Annotated[SubsetOf | None, UNCHECKED] = None

    __eq__ = object.__eq__  # not by arrays, which give no single answer
    __hash__ = object.__hash__


@argument
class LabelFrom:
    """The source of the labels, and the names of the classes.

    Attributes:
        place: "cls", "json:NAME" (or "json:OUTER.INNER"), "folder" (the folder of the image), "folder:top" (the first
            folder on the path to the image), or None for no labels. "auto" is the first of "cls", "folder" and None
            that the data has. "default" is "auto" for folders of pictures and "cls" for shards; see `GPULoader`.
        classes: the names of the classes, entry i for label i. Labels that are text, and folders, get their numbers
            from this list. None takes the names from `classes.json` beside the shards or in the folder of pictures, or
            from the sorted names of the folders.
        order: how the names of folders are sorted: "name" as in torchvision, so that "10" is before "2"; "natural" as
            in timm, where numbers are sorted by value and case is ignored.

    Example:
        >>> from gpuloader import LabelFrom
        >>> LabelFrom("json:animal.kind", classes=["cat", "dog"]).classes
        ['cat', 'dog']
    """

    place: str | None = "default"
    classes: Sequence[str] | None = None
    order: ClassOrder = "name"


@argument
class BadImages:
    """The handling of bad samples: images that cannot be decoded, and fields that cannot be parsed.

    Attributes:
        replace: whether a bad image is replaced by another sample, which the plan chooses.
        max_share: the largest share of the data that may be bad, in [0, 1]; one image is always allowed. Each rank
            counts its own bad images.
        known: a file of known bad images, as written by `write_quarantine` and `gpuloader check`. They are replaced
            without being decoded, or dropped with `skip`. They do not count towards `max_share`.
        skip: whether bad images and padding are dropped from batches, which can then be shorter or empty. If `skip` and
            `replace` are False, a bad image raises an error.

    Example:
        >>> from gpuloader import BadImages
        >>> BadImages(replace=True, max_share=0.001)
        BadImages(replace=True, max_share=0.001, known=None, skip=False)
    """

    replace: Flag = False
    max_share: Share = 0.01
    known: _AnyPath | None = None
    skip: Flag = False

    def __post_init__(self) -> None:
        if self.replace and self.skip:
            raise ValueError("replace=True and skip=True: a bad image is replaced or left out, so give one")


@argument
class Cache:
    """The local cache for shards from URLs.

    Attributes:
        folder: a folder for all processes of the machine. None uses one in the user's cache folder.
        max_bytes: the maximum size of the cache, at least the size of the largest shard. The least recently used shards
            are removed. None uses half of the free space there.

    Example:
        >>> from gpuloader import Cache
        >>> Cache("/scratch/shards", max_bytes=500 * 10**9).folder
        '/scratch/shards'
    """

    folder: _AnyPath | None = None
    max_bytes: Positive | None = None

    @property
    def path(self) -> Path | None:
        """The folder, if one is given."""
        return None if self.folder is None else user_path(self.folder)
