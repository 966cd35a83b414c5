"""`info`: describes shards from their indexes alone; no image is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.values import is_integer
from gpuloader.chain.settings import ENGINES_THREADS, Decoder
from gpuloader.errors import ConfigError
from gpuloader.loading.argument_types import AnyDecoder, AnyLabels, AnyPreset, AnySampling, OnError
from gpuloader.loading.arguments import resolve_bad_images, resolve_label_from
from gpuloader.loading.buckets import Buckets
from gpuloader.loading.memory import MemoryEstimate, estimate_memory, excess_of_a_part
from gpuloader.loading.options import LabelFrom, Sampling
from gpuloader.loading.parts import Parts
from gpuloader.loading.selection import Sources, assign_buckets, resolve_sources, sizes_of
from gpuloader.loading.warning import advise_groups
from gpuloader.loading.world import World
from gpuloader.plan import GroupedSampler, SampleSubset, choose_groups
from gpuloader.plan.grouped_sampler import MOST_GROUPS
from gpuloader.recipe import load_preset
from gpuloader.recipe.part import as_value
from gpuloader.shards import ShardSet, make_labels, read_names, read_quarantine, resolve_place
from gpuloader.shards.index import BAD_LABEL, NO_LABEL
from gpuloader.tools.mipmaps import mipmap_bytes

__all__ = ["Info", "describe_shards"]

_BINS = 8


@dataclass(frozen=True)
class Distribution:
    """The distribution of a quantity over the samples.

    Attributes:
        smallest, median, mean, largest: over all samples.
        edges: of the histogram's bins, evenly spaced in the logarithm: bin i has the values in [edges[i],
            edges[i + 1]), and the last bin also has its upper edge.
        counts: samples in each bin.
    """

    smallest: float
    median: float
    mean: float
    largest: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class ClassCount:
    """A label, its name if known, and its number of samples."""

    label: int
    name: str | None
    samples: int


@dataclass(frozen=True)
class BucketCount:
    """A bucket: its number of samples, and its size, or None if it has no size.

    Attributes:
        name: its size, or its ratios width / height.
        cropped: the mean share of its pictures that is cropped away, in [0, 1). Known bad images are not in this share,
            but are samples, because they are replaced.
    """

    name: str
    height: int | None
    width: int | None
    samples: int
    cropped: float


@dataclass(frozen=True)
class Info:
    """The result of `describe_shards`.

    Attributes:
        shards, samples: how many.
        shard_bytes: the bytes of all tars.
        node_bytes: the most bytes that one node reads with `shuffle="shards"`; None without `nodes`.
        times_read: how often all nodes together read the data.
        node_advice: how they read less, if they share groups of shards.
        stray_count: the number of members that are in no sample.
        label_from: where the labels are; None if "auto" finds none.
        classes: the labels that occur, by label.
        without_label: the number of samples without a label, or with a `.cls` that is not an integer.
        formats: samples by their image's extension, the most frequent first.
        jpegs, seekable: how many images are JPEGs, and how many of these are seekable, by their headers.
        turned: how many images are not stored upright, by their EXIF orientation.
        reduced: how many images' headers announce more than 8 bits (`above_8_bits`), an `alpha` channel, an ICC
            `profile`, or several `frames`.
        with_copies, copy_bytes: how many pictures have smaller copies, and the bytes of all copies.
        components: how many samples have each component, including the image, the most frequent first.
        height, width: pixels; None if no image's size is known.
        megapixels: millions of pixels.
        image_bytes: of the encoded images.
        unknown_size: samples whose image has an unknown size; `height`, `width` and `megapixels` do not include them.
        memory: the memory that a loader over these shards needs, estimated.
        excess: what to lower, if the decoded images of one batch can need over half of the machine's memory.
        buckets: the samples in each bucket, if `sampling` has buckets. Images of unknown size are in none, unless they
            are known to be bad.
    """

    shards: int
    samples: int
    shard_bytes: int
    node_bytes: int | None
    times_read: float | None
    node_advice: str | None
    stray_count: int
    label_from: str | None
    classes: tuple[ClassCount, ...]
    without_label: int
    formats: dict[str, int]
    jpegs: int
    seekable: int
    turned: int
    reduced: dict[str, int]
    with_copies: int
    copy_bytes: int
    components: dict[str, int]
    height: Distribution | None
    width: Distribution | None
    megapixels: Distribution | None
    image_bytes: Distribution | None
    unknown_size: int
    memory: MemoryEstimate
    excess: str | None
    buckets: tuple[BucketCount, ...] | None


def describe_shards(
    tar: Sources,
    *,
    label_from: AnyLabels = "default",
    preset: AnyPreset = "imagenet_train",
    batch_size: int = 256,
    decoder: AnyDecoder = None,
    sampling: AnySampling = None,
    on_error: OnError = "raise",
    nodes: int | None = None,
    progress: bool = False,
) -> Info:
    """Describes shards from their indexes, and makes missing indexes.

    Args:
        tar, label_from: as GPULoader takes them; of several sources all shards are described. Labels from "cls" are
            named by `classes.json` beside the shards.
        preset, decoder: as GPULoader takes them, for the estimate of its memory.
        batch_size: the batch size of the loader, for the estimate of its memory.
        sampling: as GPULoader takes it, to count the samples in its buckets; pictures are upright if the preset turns
            them.
        on_error: as GPULoader takes it, for its known bad images. In a bucket, each is replaced by another sample. Bad
            images of unknown size are in the bucket with the most samples.
        nodes: the number of nodes, to report how much they read with shuffle="shards" and 8 ranks of `batch_size` each.
        progress: show a bar on stderr while indexes are made.

    Raises:
        ConfigError: an argument is invalid.
        DataError: there is no shard or sample, a sample has no label, two `classes.json` name a label differently, or
            the known bad images are of other shards.
    """
    if not is_integer(batch_size, 1):
        raise ConfigError(f"batch_size={batch_size!r}: allowed is an integer of at least 1")
    if nodes is not None and not is_integer(nodes, 1, MOST_GROUPS):
        raise ConfigError(f"nodes={nodes!r}: allowed is an integer from 1 to {MOST_GROUPS - 1}")
    recipe, labelling = load_preset(preset), resolve_label_from(label_from)
    buckets = (chosen := as_value(Sampling, "sampling", sampling or {})).buckets
    assert buckets is None or isinstance(buckets, Buckets)  # what the Sampling makes of it
    listed = resolve_bad_images(on_error).known
    shards = ShardSet.open(resolve_sources(tar)[0], progress)
    shards.warn_of_hidden()
    bad = {} if listed is None else read_quarantine(Path(listed), shards)
    index = shards.index
    of_mipmaps = mipmap_bytes(index)
    heights, widths, sizes = map(index.column, ("height", "width", "image_size"))
    known = (heights > 0) & (widths > 0)
    heights, widths = heights[known], widths[known]
    source = resolve_place(shards, labelling.place)
    classes = _classes(shards, replace(labelling, place=source))
    name = preset if isinstance(preset, str) else "a recipe"
    given = as_value(Decoder, "decoder", decoder or {})
    decoding = given.on(None, World.of_process().cores)
    parts = Parts.on("cpu", shards, recipe.at(recipe.largest_epoch), batch_size, decoding.num_threads or 1)
    # The regions are a CPU's, and the decoder's memory is a GPU's, on any machine.
    described = replace(decoding, num_threads=given.num_threads or ENGINES_THREADS)
    memory = estimate_memory(shards, recipe, name, batch_size, described, parts)
    reads = _reads(shards, nodes, nodes * 8 * batch_size, chosen.groups) if nodes else (None, None, None)
    return Info(
        shards=len(shards.shards),
        samples=len(shards),
        shard_bytes=int(index.shard_bytes.sum()),
        node_bytes=reads[0],
        times_read=reads[1],
        node_advice=reads[2],
        stray_count=int(index.left_out_count.sum()),
        label_from=source,
        classes=classes,
        without_label=len(shards) - sum(each.samples for each in classes),
        formats=_by_name(index.image_extensions(), index.extensions),
        jpegs=index.counts["jpegs"],
        seekable=index.counts["seekable"],
        turned=index.counts["turned"],
        reduced=index.reduced,
        with_copies=int((of_mipmaps > 0).sum()),
        copy_bytes=int(of_mipmaps.sum()),
        components=_by_name(index.column("component_extension"), index.extensions),
        height=_spread(heights),
        width=_spread(widths),
        megapixels=_spread(heights.astype(np.int64) * widths / 1e6),
        image_bytes=_spread(sizes),
        unknown_size=int((~known).sum()),
        memory=memory,
        excess=excess_of_a_part(recipe, batch_size, parts, memory.machine_bytes),
        buckets=None if buckets is None else _count_buckets(shards, buckets, recipe.orientation == "apply", bad),
    )


def _reads(shards: ShardSet, nodes: int, global_batch: int, groups: int | None) -> tuple[int, float, str | None]:
    """Returns the `node_bytes`, `times_read` and `node_advice` of an `Info`."""
    count, shard_bytes = len(shards.shards), shards.index.shard_bytes
    groups = groups or choose_groups(global_batch, count)
    parts = GroupedSampler(SampleSubset(len(shards)), np.diff(shards.index.sample_end, prepend=0), groups).parts(0)
    first = np.arange(nodes) * groups
    begins, ends = np.searchsorted(parts.groups, [first // nodes, -(-(first + groups) // nodes)])
    read = [int(shard_bytes[np.unique(parts.shards[begin:end])].sum()) for begin, end in zip(begins, ends)]
    return max(read), sum(read) / int(shard_bytes.sum()), advise_groups(groups, global_batch, count, nodes)


def _count_buckets(shards: ShardSet, buckets: Buckets, upright: bool, bad: Collection[int]) -> tuple[BucketCount, ...]:
    ids = np.arange(len(shards))
    numbers = assign_buckets(shards, ids, replace(buckets, unknown="skip"), upright, bad)
    counts = np.bincount(numbers[numbers >= 0], minlength=len(buckets)).tolist()
    if buckets.ends:
        names = [f"{low:.3g} to {high:.3g}" for low, high in pairwise((0, *buckets.ends, math.inf))]
        return tuple(BucketCount(name, None, None, count, 0.0) for name, count in zip(names, counts, strict=True))
    sizes, delivered, counted = sizes_of(shards, ids, upright), ~np.isin(ids, list(bad)), []
    for number, (height, width) in enumerate(buckets.shapes):
        heights, widths = sizes[(numbers == number) & delivered].T
        ratios = widths * height / (heights * width)
        cropped = float(1 - np.minimum(ratios, 1 / ratios).mean()) if len(ratios) else 0.0
        counted.append(BucketCount(f"{height} x {width}", height, width, counts[number], cropped))
    return tuple(counted)


def _by_name(numbers: NDArray[np.int32], names: tuple[str, ...]) -> dict[str, int]:
    counts = Counter(dict(zip(names, np.bincount(numbers[numbers >= 0], minlength=len(names)).tolist())))
    return {name: count for name, count in counts.most_common() if count}


def _classes(shards: ShardSet, labelling: LabelFrom) -> tuple[ClassCount, ...]:
    labels = None
    if labelling.place != "cls":
        labels = make_labels(shards, labelling.place, labelling.classes, order=labelling.order)
    column = shards.index.column("label") if labels is None else labels.of(np.arange(len(shards)))
    names: Mapping[int, str] = read_names(shards.shards) if labels is None else labels.names
    found, counts = np.unique(column[~np.isin(column, (NO_LABEL, BAD_LABEL))], return_counts=True)
    return tuple(
        ClassCount(label, names.get(label), count) for label, count in zip(found.tolist(), counts.tolist(), strict=True)
    )


def _spread(values: NDArray[Any]) -> Distribution | None:
    if not len(values):
        return None
    smallest, largest = values.min().item(), values.max().item()
    edges = np.geomspace(max(smallest, 1e-9), max(largest, 1e-9), _BINS + 1)
    if np.issubdtype(values.dtype, np.integer):
        edges = np.unique(np.round(edges))
    edges[0] = smallest
    if smallest == largest:
        edges = np.array([smallest, smallest])
    counts, edges = np.histogram(values, edges)
    return Distribution(
        smallest, float(np.median(values)), float(values.mean()), largest, tuple(edges.tolist()), tuple(counts.tolist())
    )
