"""Makes the samples at the plan's positions from a loader's `tar`, `sampling` and `shuffle`."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError, DataError, describe
from gpuloader.helpers.regular_file import read_regular
from gpuloader.helpers.text import counted, did_you_mean, either, similar
from gpuloader.helpers.values import is_integer
from gpuloader.images.orientation import FIRST_TRANSPOSED
from gpuloader.loading.buckets import Buckets
from gpuloader.loading.fields import Component, check_keys
from gpuloader.loading.options import Sampling, SubsetOf, Weights
from gpuloader.loading.schedules import ByEpoch, check_by_epoch, is_number, number_at
from gpuloader.plan import (
    AllSamples,
    Bucketed,
    ByShard,
    Custom,
    LastBatch,
    Mixture,
    Positions,
    Remaining,
    Segment,
    Shuffle,
    Subset,
    Weighted,
    merge,
    parts_of,
)
from gpuloader.shards import Labels, Shard, ShardSet, Tar, every, resolve_shards, shared, user_path
from gpuloader.shards.index import row_blocks
from gpuloader.shards.merged import MergedShards

# LightningCLI reads these at runtime. It supports no forward references and no arrays, and takes the first that fits.
Columns: TypeAlias = dict[str, NDArray[Any]]
CustomOrder: TypeAlias = Callable[[int], Collection[int]]
Sources: TypeAlias = Sequence[Mapping[str, Any]] | Mapping[str, Any] | Tar
"""Shards, or several sources as `[{"tar": ..., "weight": 2}, ...]`."""
Weight: TypeAlias = float | ByEpoch
"""The weight of a source; or several, by the epoch from which each counts."""
KEY_FILE_SUFFIX = ".txt"
"""The end of a string that names a file of keys. As a pattern it matches nothing: the last part of a key has no dot."""
_MOST_LOOKED_AT = 256  # samples that are read for their keys; many may have no annotations
_MOST_EXTENSIONS = 20  # that an error lists
_MOST_SHOWN = 5  # ratios
_MOST_CHARACTERS = 200  # of a name in an error
_MOST_KEY_FILE_BYTES = 1 << 32  # a hundred million keys take some 1.5 GB


def resolve_sources(sources: Sources) -> tuple[Sequence[Shard], list[tuple[int, Weight]]]:
    """Returns all shards in order and, for several sources, the number of shards and the weight of each source."""
    listed: list[Any] = list(sources) if isinstance(sources, Sequence) else [sources]
    if not any(isinstance(source, Mapping) for source in listed):
        return resolve_shards(sources), []  # type: ignore[arg-type]
    for source in listed:
        if not isinstance(source, Mapping) or not {"tar"} <= set(source) <= {"tar", "weight"}:
            raise ConfigError(f'tar: found {source!r} among several sources: allowed is {{"tar": ..., "weight": 2}}')
    weights = [_weight(source["tar"], source.get("weight", 1)) for source in listed]
    shards = [resolve_shards(source["tar"]) for source in listed]
    return list(chain(*shards)), list(zip(map(len, shards), weights))


def _weight(tar: object, weight: object) -> Weight:
    """Returns the weight of a source, or its weights by epoch."""
    if is_weight(weight):
        return float(weight)
    if not isinstance(weight, Mapping):
        raise ConfigError(
            f"tar: weight={weight!r} of {tar}: allowed is a number above 0, or {{epoch: number}}, such as "
            f"{{0: 1, 10: 3}}"
        )
    by_epoch = check_by_epoch(f"tar: weight of {tar}", weight, is_number, "numbers of at least 0")
    if not any(by_epoch.values()):
        raise ConfigError(f"tar: weight={weight!r} of {tar}: some of its weights must be above 0; or leave it out")
    return by_epoch


def is_weight(value: object) -> TypeGuard[float]:
    """Returns whether it is a finite number above 0."""
    return is_number(value) and value > 0


@dataclass(frozen=True, eq=False)
class Selection:
    """The samples that a `Sampling` chooses by `subset` and `require`.

    Attributes:
        ids: (n,) int64, those of `subset` in its order, without those left out; None without a `subset`.
        left_out: (m,) int64 ids, ascending: the samples that lack a component that `require` names.
    """

    ids: NDArray[np.int64] | None
    left_out: NDArray[np.int64]

    @cached_property
    def of(self) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        """A function that returns those of some samples, (k,) ids, that are chosen."""
        if self.ids is not None:
            chosen = shared(np.sort(self.ids))
            return lambda samples: samples[is_in(samples, chosen)]
        left_out = self.left_out
        return (lambda samples: samples[~is_in(samples, left_out)]) if len(left_out) else every


def select(shards: ShardSet, sampling: Sampling) -> Selection:
    """Chooses the samples by `subset` and `require`.

    Raises:
        ConfigError: one of them is invalid, or they choose no sample.
    """
    ids = None if sampling.subset is None else ids_of(sampling.subset, shards)
    lacking = [np.empty(0, np.int64)]
    for extension in sampling.require:
        _check_exists("require", extension, shards)
        lacking.append(shards.index.rows_without(extension))
    left_out = shared(np.unique(np.concatenate(lacking)))
    if ids is not None:
        ids = shared(ids[~is_in(ids, left_out)])
    if (len(shards) - len(left_out) if ids is None else len(ids)) == 0:
        among = "" if ids is None else " of the subset"
        raise ConfigError(f"require: no sample{among} has all of {_dotted(sampling.require)}")
    return Selection(ids, left_out)


def is_in(samples: NDArray[np.int64], some: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns (k,) whether each of some samples is one of (n,) others, which ascend; without memory for these."""
    places = np.searchsorted(some, samples)
    found = np.zeros(len(samples), np.bool_)
    within = places < len(some)
    found[within] = some[places[within]] == samples[within]
    return found


def make_sampling(
    shards: ShardSet,
    selection: Selection,
    labels: Labels | None,
    shuffle: Shuffle | CustomOrder,
    sources: Sequence[tuple[int, Weight]],
    sampling: Sampling,
    *,
    upright: bool,
    last_batch: LastBatch,
    global_batch: int,
    known_bad: Collection[int],
) -> Positions:
    """Makes the samples of each epoch, and their order. Weights draw the order, and only keep the name of `shuffle`.

    Args:
        upright: whether pictures are turned as their EXIF orientation says. It counts only for buckets, as do
            `last_batch` and `known_bad`.
        global_batch: it counts for buckets, and for places within an epoch that ends after `steps_per_epoch`.

    Raises:
        ConfigError: an argument is invalid, or two of them cannot be combined.
    """
    subset, weights, buckets = sampling.subset, sampling.weights, sampling.buckets
    steps = sampling.steps_per_epoch
    most = steps * global_batch if is_integer(steps, 1) else None  # the plan refuses others
    orders = {
        "buckets": buckets is not None,
        "several sources": bool(sources),
        "weights": weights is not None,
        "a function as shuffle": callable(shuffle),
        'shuffle="shards"': shuffle == "shards",
        'shuffle="block"': shuffle == "block" and buckets is not None,
    }
    of_subsets = orders["weights"] + orders["buckets"]
    if sum(orders.values()) > 1 or (subset is not None and sum(orders.values()) > of_subsets):
        named = [name for name, is_given in {**orders, "subset": subset is not None}.items() if is_given]
        raise ConfigError(
            f"{' and '.join(named)} cannot be combined: give one of them; only subset can be combined with weights "
            f"or buckets"
        )
    if callable(shuffle):
        if sampling.require:
            raise ConfigError(
                "require and a function as shuffle cannot be combined: the function itself can leave samples out"
            )
        return Custom(shuffle, len(shards))  # type: ignore[arg-type]  # it checks what the function returns
    if weights is not None:
        ids = shared(_chosen(shards, selection))
        chosen = shared(_weights(weights, ids, len(shards), labels))
        return Weighted(ids, chosen, sampling.replacement, shuffle, shared(Weighted.cumulate(chosen)))
    if isinstance(buckets, Buckets):
        ids = _chosen(shards, selection)
        if last_batch in ("partial", "equal"):
            raise ConfigError(f'last_batch="{last_batch}" and buckets cannot be combined: use "pad" or "drop"')
        numbers = assign_buckets(shards, ids, buckets, upright, known_bad)
        counts = np.bincount(numbers + 1, minlength=len(buckets.shapes) + 1)
        _, *runs = np.split(ids[np.argsort(numbers, kind="stable")], np.cumsum(counts)[:-1])
        runs = list(map(shared, runs))
        return Bucketed(buckets.shapes, runs, buckets.quantum or global_batch, last_batch == "drop", shuffle)
    if selection.ids is not None:
        return Subset(selection.ids, shuffle)
    left_out = selection.left_out
    ends = np.append(0, shards.index.sample_end)
    sizes = np.diff(ends - np.searchsorted(left_out, ends))  # of the shards, without what is left out
    if shuffle == "shards":
        positions: Positions = ByShard(sizes)
    elif sources:
        positions = _mixture(shards, sizes, sources, shuffle, most)
    else:
        positions = AllSamples(int(sizes.sum()), shuffle)
    return Remaining(positions, left_out) if len(left_out) else positions


def _chosen(shards: ShardSet, selection: Selection) -> NDArray[np.int64]:
    """Returns the ids of the samples that are chosen, (n,)."""
    return np.delete(np.arange(len(shards)), selection.left_out) if selection.ids is None else selection.ids


def assign_buckets(
    shards: ShardSet, ids: NDArray[np.int64], buckets: Buckets, upright: bool, known_bad: Collection[int] = ()
) -> NDArray[np.int64]:
    """Returns the number of each sample's bucket, (n,) int64; -1 for those that are skipped.

    Known bad images of unknown size go to the bucket of the most samples, where they are replaced.

    Raises:
        ConfigError: the index does not know the size of some images, and they must not be skipped, or are all of them.
    """
    sizes = sizes_of(shards, ids, upright)
    known = (sizes > 0).all(1)
    replaced = ~known & np.isin(ids, list(known_bad)) & known.any()
    lacking = ~known & ~replaced
    if lacking.any() and (buckets.unknown == "error" or not known.any()):
        sample = int(ids[np.argmax(lacking)])
        where, extension = shards.locate(sample), shards.index.extensions[shards.index.image_extensions()[sample]]
        raise ConfigError(
            f"buckets: the index does not know the size of {lacking.sum():,} of {counted(len(ids), 'image')}, such as "
            f"{where.key!r} (.{extension}) in {where.shard}: convert them to JPEG, PNG or WebP"
            + (', or leave them out by Buckets(unknown="skip")' if known.any() else "")
        )
    numbers = np.full(len(ids), -1)
    numbers[known] = buckets.assign(sizes[known])
    numbers[replaced] = np.bincount(numbers[known]).argmax()
    return numbers


def sizes_of(shards: ShardSet, ids: NDArray[np.int64], upright: bool) -> NDArray[np.int64]:
    """Returns heights and widths of images, (n, 2), as stored or upright; 0 if the index does not know them."""
    sizes = np.stack([shards.index.at(side, ids) for side in ("height", "width")], 1).astype(np.int64)
    turned = upright & (shards.index.at("orientation", ids) >= FIRST_TRANSPOSED)
    return np.where(turned[:, None], sizes[:, ::-1], sizes)


def check_components(
    shards: ShardSet, extensions: Collection[str], positions: Positions, known_bad: Collection[int]
) -> None:
    """Checks that each sample that can be delivered has the components that `fields` asks for.

    Raises:
        ConfigError: no sample has a component of that extension.
        DataError: some samples have none.
    """
    problems, lacking = [], []
    for extension in extensions:
        _check_exists("fields", extension, shards)
        samples = shards.index.rows_without(extension)
        if len(samples):
            samples = samples[positions.includes(samples)]
        samples = samples[~np.isin(samples, list(known_bad))]  # these are replaced
        if len(samples):
            keys = _list([shards.index.key(int(sample)) for sample in samples[:4]])
            problems.append(f"{len(samples)} of {len(shards)} samples lack .{extension} ({keys})")
            lacking.append(extension)
    if problems:
        how = "in the function given as shuffle" if isinstance(positions, Custom) else f"by Sampling(require={lacking})"
        raise DataError(f"fields: {'; '.join(problems)}. Leave these samples out {how}, or repair the shards")


def check_options(
    shards: ShardSet, fields: Mapping[str, Component], positions: Positions, known_bad: Collection[int]
) -> dict[str, Component]:
    """Checks the keys that options of fields name in the first samples that can be delivered, see `check_keys`.

    Returns:
        The fields that are to be checked at the first batch: all if the shards are on stores, or from a merged index,
        for then nothing of a shard is read before its turn.
    """
    fields = {name: field for name, field in fields.items() if field.path}
    if not fields or not shards.local or isinstance(shards.shards, MergedShards):
        return fields
    blocks = (np.arange(*block) for block in row_blocks(len(shards)))
    samples = chain.from_iterable(block[positions.includes(block)].tolist() for block in blocks)
    looked_at = islice((sample for sample in samples if sample not in known_bad), _MOST_LOOKED_AT)
    try:
        return check_keys(fields, (partial(shards.read_component, sample, "json") for sample in looked_at))
    finally:
        shards.close()


def columns(shards: ShardSet) -> Columns:
    """Returns the columns of the index: (N,) arrays, read-only; another name raises ConfigError.

    These are label of `.cls`, int64, below -(2**63) + 2 if there is none; height and width in pixels, int32, 0 if
    unknown; size_bytes of the image, int64; and shard, its number, int64, which is made when it is asked for.
    """
    return _Columns(shards)


class _Columns(dict[str, NDArray[Any]]):
    def __init__(self, shards: ShardSet) -> None:
        names = {"label": "label", "height": "height", "width": "width", "size_bytes": "image_size"}
        super().__init__({name: shards.column(column) for name, column in names.items()})
        self._shards = shards

    def __missing__(self, name: object) -> NDArray[Any]:
        if name == "shard":
            counts = np.diff(self._shards.index.sample_end, prepend=0)
            return shared(np.repeat(np.arange(len(counts)), counts))
        allowed = [*self, "shard"]
        hint = did_you_mean(str(name), allowed)
        raise ConfigError(f"subset: the index has no column {name!r}{hint}: allowed are {', '.join(allowed)}")


def _mixture(
    shards: ShardSet,
    sizes: NDArray[np.int64],
    sources: Sequence[tuple[int, Weight]],
    shuffle: Shuffle,
    most: int | None,
) -> Mixture:
    """Makes the mixture of sources, each the next shards, which have these numbers of samples."""
    ends = np.cumsum([0, *(count for count, _ in sources)])
    samples = tuple(int(sizes[first:end].sum()) for first, end in pairwise(ends))
    if not all(samples):
        empty = shards.shards[ends[samples.index(0)]]
        raise ConfigError(f"tar: the source that begins with {empty} has no samples: leave it out")
    schedules = [weight if isinstance(weight, Mapping) else {0.0: weight} for _, weight in sources]
    segments = []
    for epoch in sorted(set(chain(*schedules))):
        weights = [number_at(schedule, epoch) for schedule in schedules]
        if not any(weights):
            raise ConfigError(f"tar: from epoch {epoch:g} on all sources have weight 0: give one a weight above 0")
        segments.append(Segment(_start(epoch, sum(samples), most), parts_of(weights)))
    return Mixture(samples, merge(segments), shuffle)


def _start(epoch: float, length: int, most: int | None) -> int:
    """Returns the position of a place in the run, such as 2.5; an epoch uses at most `most` of its positions."""
    return int(epoch) * length + round(epoch % 1 * min(length, most or length))


def _check_exists(argument: str, extension: str, shards: ShardSet) -> None:
    """Checks that some sample has a component with that extension."""
    if extension not in shards.extensions:
        hint = did_you_mean(extension, shards.extensions)
        raise ConfigError(
            f"{argument}: no sample has a .{extension} component{hint}: the data has {_dotted(shards.extensions)}"
        )


def _dotted(extensions: Collection[str]) -> str:
    shown = ", ".join(f".{each:.{_MOST_CHARACTERS}}" for each in islice(extensions, _MOST_EXTENSIONS))
    return f"{shown}{' ...' if len(extensions) > _MOST_EXTENSIONS else ''}"


def ids_of(subset: SubsetOf, shards: ShardSet) -> NDArray[np.int64]:
    """Returns the samples of a subset, (n,) ids in its order; raises ConfigError if it is invalid or empty."""
    if callable(subset):
        chosen = np.asarray(subset(columns(shards)))
        if chosen.dtype != np.bool_ or chosen.shape != (len(shards),):
            raise ConfigError(
                f"subset: the function gave {chosen.dtype} of shape {chosen.shape}: allowed is bool ({len(shards)},)"
            )
        ids = np.flatnonzero(chosen)
    elif isinstance(subset, slice):
        ids = np.arange(len(shards))[subset]
    elif isinstance(subset, os.PathLike) or (isinstance(subset, str) and subset.endswith(KEY_FILE_SUFFIX)):
        ids = _ids_of_keys(_keys_in(user_path(subset)), shards)
    elif isinstance(subset, str):
        ids = _ids_that_match(subset, shards)
    elif (keys := _as_keys(subset)) is not None:
        ids = _ids_of_keys(keys, shards)
    else:
        ids = _array("subset", subset)
        if ids.ndim != 1 or not (np.issubdtype(ids.dtype, np.integer) or ids.size == 0):
            raise ConfigError(
                f"subset: found {ids.dtype} of shape {ids.shape}: allowed are sample ids (n,), keys, a file or a "
                f"pattern of keys, a slice, or a function of the index's columns; np.flatnonzero turns bools into ids"
            )
    if len(np.unique(ids)) < len(ids):
        raise ConfigError("subset: some samples occur twice: name each once, and use Sampling(weights=) for how often")
    if len(ids) == 0:
        raise ConfigError(f"subset: it selects none of {counted(len(shards), 'sample')}")
    if ids.min() < 0 or ids.max() >= len(shards):
        raise ConfigError(f"subset: ids from {ids.min()} to {ids.max()}: allowed is 0 to {len(shards) - 1}")
    return ids.astype(np.int64)


def _as_keys(subset: Collection[Any]) -> list[str] | None:
    """Returns the subset as keys, if all of it is strings; otherwise None."""
    listed: Any = subset
    if not isinstance(subset, (list, tuple)):
        array = _array("subset", subset)
        listed = array.tolist() if array.ndim == 1 and array.dtype.kind in "UO" else []
    return list(listed) if len(listed) and all(isinstance(key, str) for key in listed) else None


def _keys_in(file: Path) -> list[str]:
    try:
        text = read_regular(file, _MOST_KEY_FILE_BYTES).decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise ConfigError(
            f"subset: {file} cannot be read ({error.strerror}): it should be a file with a key on each line; a string "
            f"that does not end in {KEY_FILE_SUFFIX} is a pattern of keys"
        ) from None
    return [key for line in re.split("\r\n?|\n", text) if (key := line.strip())]


def _ids_of_keys(keys: Sequence[str], shards: ShardSet) -> NDArray[np.int64]:
    """Returns the ids of the samples with these keys, in the keys' order."""
    wanted = set(keys)
    samples = {sample: key for sample, key in enumerate(shards.index.each_key()) if key in wanted}
    id_of = {key: sample for sample, key in samples.items()}
    if len(id_of) < len(wanted):
        unknown = [key for key in dict.fromkeys(keys) if key not in id_of]
        raise ConfigError(
            f"subset: the data lacks {len(unknown)} of {counted(len(wanted), 'key')}: {_list(unknown)}. "
            f"{_explain_keys(shards)}"
        )
    if len(samples) > len(id_of):
        sample, key = next((sample, key) for sample, key in samples.items() if id_of[key] != sample)
        raise ConfigError(
            f"subset: the key {key!r} has two samples, {sample} in {shards.locate(sample).shard} and {id_of[key]} in "
            f"{shards.locate(id_of[key]).shard}: name such samples by their ids"
        )
    return np.array([id_of[key] for key in keys], np.int64)


def _ids_that_match(pattern: str, shards: ShardSet) -> NDArray[np.int64]:
    matches = re.compile(fnmatch.translate(pattern)).match
    ids = [sample for sample, key in enumerate(shards.index.each_key()) if matches(key)]
    if not ids:
        raise ConfigError(
            f"subset: no key matches {pattern!r}; a string is a pattern such as 'cat/*', or a file of keys if it ends "
            f"in {KEY_FILE_SUFFIX}. {_explain_keys(shards)}"
        )
    return np.array(ids, np.int64)


def _explain_keys(shards: ShardSet) -> str:
    some = [shards.index.key(sample) for sample in range(min(3, len(shards)))]
    return f"A key is the path in the tar up to the first dot of the file's name: the first here are {_list(some)}"


def _list(keys: Sequence[str]) -> str:
    return f"{', '.join(describe(key, _MOST_CHARACTERS) for key in keys[:3])}{' ...' if len(keys) > 3 else ''}"


def _weights(weights: Weights, ids: NDArray[np.int64], samples: int, labels: Labels | None) -> NDArray[np.float64]:
    if isinstance(weights, str) and weights != "balanced":
        raise ConfigError(
            f"weights={weights!r}: allowed are a number for each sample, {{label: weight}}, {{class name: weight}} and "
            f'"balanced"'
        )
    if isinstance(weights, (str, Mapping)):
        if labels is None:
            raise ConfigError("weights are by label, but label_from=None gives no labels: set label_from")
        classes, of, counts = np.unique(labels.of(ids), return_inverse=True, return_counts=True)
        if isinstance(weights, str):
            return 1.0 / counts[of]
        of_label = _by_label(weights, labels.names)
        if lacking := [label for label in classes.tolist() if label not in of_label]:
            named = ", ".join(repr(labels.names.get(label, label)) for label in lacking[:10])
            raise ConfigError(f"weights: no weight for the labels {named}: give one for each label")
        chosen = _array("weights", [of_label[label] for label in classes.tolist()], np.float64)[of]
    else:
        of_all = _array("weights", weights, np.float64)
        if of_all.shape != (samples,):
            raise ConfigError(
                f"weights of shape {of_all.shape}: allowed is one for each sample of the data, ({samples},)"
            )
        chosen = of_all[ids]
    if not np.isfinite(chosen).all() or chosen.min() < 0 or not chosen.max() > 0:
        raise ConfigError(
            f"weights from {chosen.min()} to {chosen.max()}: allowed are finite numbers of at least 0, not all 0"
        )
    return chosen


def _by_label(weights: Mapping[Any, float], names: Mapping[int, str]) -> dict[Any, float]:
    """Returns the weights by label; a key that is text is a class's name."""
    labels = {name: label for label, name in names.items()}
    if any(isinstance(key, str) for key in weights) and len(labels) < max(1, len(names)):
        problem = "two classes have the same name" if names else "the names of the classes are not known"
        raise ConfigError(f"weights: {problem}: give {{label: weight}}, or label_from=LabelFrom(..., classes=[...])")
    if unknown := [key for key in weights if isinstance(key, str) and key not in labels]:
        near = similar(unknown[0], labels, 3) or list(labels)[:3]
        raise ConfigError(
            f"weights: {_list(unknown)} is none of {counted(len(labels), 'class', 'classes')}: "
            f"did you mean {either([describe(name, _MOST_CHARACTERS) for name in near])}?"
        )
    of_label = {labels.get(key, key): weight for key, weight in weights.items()}
    if len(of_label) < len(weights):
        raise ConfigError("weights: a class occurs twice, by its name and by its label: give each once")
    return of_label


def _array(name: str, values: Collection[Any], dtype: type[np.float64] | None = None) -> NDArray[Any]:
    try:
        return np.asarray(values, dtype)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: numpy cannot make an array of it: {error}") from None


def describe_sampling(positions: Positions) -> str:
    """Says in words which samples an epoch has."""
    if isinstance(positions, Remaining):
        return f"{describe_sampling(positions.positions)} without {len(positions.left_out):,} that are left out"
    if isinstance(positions, Mixture):
        ratios = ", then ".join(":".join(map(str, each.parts)) for each in positions.segments[:_MOST_SHOWN])
        return f"sources in the ratio {ratios}{' ...' if len(positions.segments) > _MOST_SHOWN else ''}"
    samples = counted(positions.samples if isinstance(positions, Bucketed) else positions.length, "sample")
    kinds: dict[type, str] = {
        Bucketed: f"buckets of {samples}",
        Custom: f"{samples} by a function",
        Subset: f"a subset of {samples}",
        Weighted: f"{samples} by weight",
    }
    return kinds.get(type(positions), f"all {samples}")
