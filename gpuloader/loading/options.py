"""The argument values of a loader that have fields. Each checks itself; in YAML it is a mapping of its fields."""

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
    if not isinstance(given, (str, os.PathLike)):
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
    """Which samples an epoch has, and how often each occurs.

    Attributes:
        subset: the samples to use: their ids or keys; a file of keys (a `Path`, or a string that ends in ".txt"); a
            pattern of keys, such as "cat/*"; a slice; or a function that takes the index's columns (arrays `label`,
            `height`, `width`, `size_bytes`, `shard`) and returns a bool for each sample. None uses all.
        weights: how often samples occur: a weight for each sample, {label or class name: weight}, or "balanced" for all
            labels equally often. None takes each sample once.
        replacement: with `weights`: whether a sample can occur twice in an epoch.
        steps_per_epoch: the steps of an epoch; the next one goes on behind them. None makes an epoch of as many samples
            as are chosen.
        repeats: how often each sample comes, one copy after the other, each augmented differently; an epoch has as many
            samples as without.
        groups: with `shuffle="shards"`: into how many groups of shards the samples are dealt. A number that the nodes
            divide, and that divides the samples of a step of all ranks, lets each node read shards of its own. None
            takes the largest such number up to 256 and to 16 for each node.
        require: extensions of components, such as ["txt"]: samples that lack one of them are left out.
        buckets: a `Buckets`, or a list of (height, width): each batch has images of one aspect ratio, in that size, or
            in the recipe's with `Buckets(groups=...)`. None puts images of all ratios into a batch.

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


@argument
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

    replace: Flag = False
    max_share: Share = 0.01
    known: _AnyPath | None = None
    skip: Flag = False

    def __post_init__(self) -> None:
        if self.replace and self.skip:
            raise ValueError("replace=True and skip=True: a bad image is replaced or left out, so give one")


@argument
class Decoder:
    """How images are decoded. None of these settings changes the order of samples.

    Attributes:
        num_threads: decoding threads; None uses this process's share of the cores it may use, at most 8 with a GPU.
        prefetch: the number of batches that are decoded ahead, 1 to 64; `prefetch` + 1 further batches are read ahead.
            A batch of large pictures is decoded in parts: then at most 2 * `prefetch` parts are decoded ahead, and
            `prefetch` + 1 further parts are read.
        hw_load: the share of the JPEGs, in [0, 1], that a GPU's JPEG engines decode, if it has any; None uses 1.
            With a share between 0 and 1, an image's decoder depends on its batch, and
            decoders may round differently. Ignored on a CPU.
        hybrid_huffman_threshold: for JPEGs that no engine decodes: if more pixels than this are decoded, the GPU
            decodes a part of the Huffman codes. Only the pixels of the decoded region count. None uses DALI's default,
            1,000,000. Ignored on a CPU.
        processes: where the recipe's own code runs, if it has an `Apply`: in so many processes; 0 for the decoding
            threads, whose Python code then competes with the training loop's. None uses as many as `num_threads`.
        region: whether only the region that a crop needs is decoded; if False, the whole image is decoded and then
            cropped. On the CPU the pixels are the same. None means True on a CPU and False on a GPU, where some
            versions of nvImageCodec fail on regions. It also means False for shards in which at least 9 of 10 images
            are seekable JPEGs: of these, only what the crop needs reaches the decoder.

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

    def on(self, device_id: int | None, num_threads: int, seekable: bool = False) -> Decoder:
        """Returns it with values in place of None: those for a GPU, or for the CPU, where `device_id` is None.

        Args:
            num_threads: for a None there.
            seekable: whether images are cut to their regions before they are decoded, so that all of them is needed.
        """
        on_cpu = device_id is None
        num_threads = self.num_threads or num_threads
        return replace(
            self,
            num_threads=num_threads,
            processes=num_threads if self.processes is None else self.processes,
            hw_load=1.0 if self.hw_load is None and not on_cpu else self.hw_load,
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

    folder: _AnyPath | None = None
    max_bytes: Positive | None = None

    @property
    def path(self) -> Path | None:
        """The folder, if one is given."""
        return None if self.folder is None else user_path(self.folder)
