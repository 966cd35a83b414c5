"""Classes for arguments of `GPULoader`, such as `Sampling` and `Decoder`. In YAML, each is a mapping of its fields."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
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


ENGINES_THREADS = 8
"""The most threads beside a GPU's JPEG engines, which leave them little to decode."""

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
            labels equally often. None takes each sample once.
        replacement: with `weights`: whether a sample can occur twice in an epoch.
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
class Decoder:
    """The settings of decoding. They do not change the order of the samples.

    Attributes:
        num_threads: the number of decoding threads. None uses this process's share of the cores; at most 8 of them on a
            GPU whose engines decode all JPEGs.
        prefetch: the number of batches that are decoded ahead, 1 to 64; `prefetch` + 1 further batches are read ahead.
            Batches of large pictures are decoded in parts: at most 2 * `prefetch` parts are decoded ahead, and
            `prefetch` + 1 further parts are read.
        hw_load: the share of the JPEGs, in [0, 1], that a GPU's JPEG engines decode, if it has any. None uses 1.
            Between 0 and 1, pixels can differ by rounding, because the decoder of an image depends on its batch.
            Ignored on a CPU.
        hybrid_huffman_threshold: for JPEGs that no engine decodes: if the decoded region has more pixels than this, the
            GPU decodes a part of the Huffman codes. None uses DALI's default, 1,000,000. Ignored on a CPU.
        processes: the number of processes that run your code, if the recipe has an `Apply`. 0 runs it in threads, where
            it competes with the Python code of the training loop. None uses `num_threads`.
        region: whether the decoder decodes only the region that a crop needs, instead of the whole image. On a CPU the
            pixels are the same. None means True on a CPU and False on a GPU, where some versions of nvImageCodec fail
            on regions. It also means False for shards in which at least 9 of 10 images are seekable JPEGs: these are
            cut to the region before they are decoded.

    Example:
        >>> from gpuloader import Decoder
        >>> Decoder(num_threads=4).prefetch
        2
    """

    num_threads: Annotated[Integer, Field(ge=1, le=1024)] | None = None
    prefetch: Annotated[Integer, Field(ge=1, le=64)] = 2
    hw_load: Share | None = None
    hybrid_huffman_threshold: Annotated[Integer, Field(ge=0, lt=2**31)] | None = None
    region: Flag | None = None
    processes: Annotated[Integer, Field(ge=0, le=1024)] | None = None

    def on(self, device_id: int | None, cores: int, seekable: bool = False) -> Decoder:
        """Returns the settings for a device, with a value in place of each None.

        Args:
            device_id: a GPU's number, or None for the CPU.
            cores: this process's share of the cores, at least 1.
            seekable: whether images are cut to their regions before they are decoded.
        """
        on_cpu = device_id is None
        hw_load = 1.0 if self.hw_load is None and not on_cpu else self.hw_load
        num_threads = self.num_threads or (min(cores, ENGINES_THREADS) if not on_cpu and hw_load == 1 else cores)
        return replace(
            self,
            num_threads=num_threads,
            processes=num_threads if self.processes is None else self.processes,
            hw_load=hw_load,
            region=on_cpu and not seekable if self.region is None else self.region,
        )

    @property
    def graph_options(self) -> dict[str, Any]:
        """The arguments of `gpuloader.pipelines.recipe_pipeline` that follow from these settings."""
        options = {"hw_decoder_load": self.hw_load, "hybrid_huffman_threshold": self.hybrid_huffman_threshold}
        given = {name: value for name, value in options.items() if value is not None}
        return {"decoder_options": given, "region": self.region is not False}


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
