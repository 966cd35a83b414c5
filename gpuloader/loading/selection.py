"""Makes the sampler of a loader from its `tar`, `sampling` and `shuffle`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.text import counted, either, similar
from gpuloader.errors import ConfigError, DataError, describe
from gpuloader.images.orientation import FIRST_TRANSPOSED
from gpuloader.loading.buckets import Buckets
from gpuloader.loading.fields import Component, check_keys
from gpuloader.loading.options import Sampling, Weights
from gpuloader.loading.subset import MOST_CHARACTERS, as_array, check_exists, list_some
from gpuloader.plan import (
    EPOCHS,
    BucketSampler,
    CustomSampler,
    GroupedSampler,
    LastBatch,
    Mix,
    MixedBuckets,
    Order,
    Ratio,
    SampleSubset,
    Shuffle,
    ShuffledSampler,
    WeightedBuckets,
    WeightedSampler,
    choose_groups,
    parts_of,
)
from gpuloader.shards import Labels, Shard, ShardSet, Tar, resolve_shards, shared
from gpuloader.shards.accepted_sizes import stored_sizes
from gpuloader.shards.index import row_blocks
from gpuloader.shards.merged import MergedShards

# LightningCLI reads these at runtime. It supports no forward references and no arrays, and takes the first that fits.
CustomOrder: TypeAlias = Callable[[int], Collection[int]]
Sources: TypeAlias = Sequence[Mapping[str, Any]] | Mapping[str, Any] | Tar
"""Shards, or several sources as `[{"tar": ..., "weight": 2}, ...]`."""
Weight: TypeAlias = float | Mapping[float, float]
"""The weight of a source; or several, by the epoch at which each starts: 2.5 is in the middle of epoch 2."""
_MOST_LOOKED_AT = 256  # samples that are read for their keys; many may have no annotations
_MOST_EPOCHS = 1000


def resolve_sources(sources: Sources, mixed: bool = False) -> tuple[Sequence[Shard], list[tuple[int, Weight]]]:
    """Returns the shards of `resolve_shards` and, for several sources, the number of shards and weight of each."""
    listed: list[Any] = list(sources) if isinstance(sources, Sequence) else [sources]
    if not any(isinstance(source, Mapping) for source in listed):
        return resolve_shards(sources, mixed), []  # type: ignore[arg-type]
    for source in listed:
        if not isinstance(source, Mapping) or not {"tar"} <= set(source) <= {"tar", "weight"}:
            raise ConfigError(f'tar: found {source!r} among several sources: allowed is {{"tar": ..., "weight": 2}}')
    weights = [_weight(source["tar"], source.get("weight", 1)) for source in listed]
    shards = [resolve_shards(source["tar"], mixed) for source in listed]
    return list(chain(*shards)), list(zip(map(len, shards), weights))


def _weight(tar: object, weight: object) -> Weight:
    """Returns the weight of a source, or its weights by epoch, sorted."""
    if is_weight(weight):
        return float(weight)
    if not isinstance(weight, Mapping):
        raise ConfigError(
            f"tar: weight={weight!r} of {tar}: allowed is a number above 0, or {{epoch: number}}, such as "
            f"{{0: 1, 10: 3}}"
        )
    if (
        0 not in weight
        or len(weight) > _MOST_EPOCHS
        or not all(_is_number(epoch) and epoch < EPOCHS and _is_number(number) for epoch, number in weight.items())
    ):
        raise ConfigError(
            f"tar: weight of {tar}={describe(weight)}: allowed is {{epoch: number}}, such as {{0: 0.5, 10: 1}}, with "
            f"at most {_MOST_EPOCHS} epochs from 0 on, 0 among them, and numbers of at least 0"
        )
    if not any(weight.values()):
        raise ConfigError(f"tar: weight={weight!r} of {tar}: some of its weights must be above 0; or leave it out")
    return {float(epoch): float(weight[epoch]) for epoch in sorted(weight)}


def is_weight(value: object) -> TypeGuard[float]:
    """Returns whether it is a finite number above 0."""
    return _is_number(value) and value > 0


def _is_number(value: object) -> TypeGuard[float]:
    """Returns whether it is a finite number of at least 0."""
    if isinstance(value, (np.integer, np.floating)):
        value = value.item()  # a float32 cannot be compared with the largest float
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


@dataclass(frozen=True)
class OrderArguments:
    """What decides the order of the samples.

    Attributes:
        upright: whether pictures are turned by their EXIF orientation. `upright`, `last_batch` and `known_bad` affect
            only buckets; `global_batch` affects buckets and groups.
    """

    shards: ShardSet
    chosen: SampleSubset
    labels: Labels | None
    shuffle: Shuffle | CustomOrder
    sources: Sequence[tuple[int, Weight]]
    sampling: Sampling
    upright: bool
    last_batch: LastBatch
    global_batch: int
    known_bad: Collection[int]

    def make(self) -> Order:
        """Makes the order that the arguments ask for, or else of all samples as `shuffle` says.

        Raises:
            ConfigError: an argument is invalid, or two of them cannot be combined.
        """
        sampling, ways = self.sampling, [way for way in _WAYS if way.is_given(self)]
        if sampling.groups is not None and self.shuffle != "shards":
            raise ConfigError(
                f'groups={sampling.groups}: only shuffle="shards" has groups; use it, or leave groups out'
            )
        names = [*(way.name for way in ways), *(["subset"] if sampling.subset is not None else [])]
        if any(not set(names[number + 1 :]) <= set(way.takes) for number, way in enumerate(ways)):
            raise ConfigError(
                f"{' and '.join(names)} cannot be combined: give one of them; only subset can be combined with "
                f'weights, buckets or shuffle="shards", and buckets with weights or with several sources'
            )
        if callable(self.shuffle) and sampling.require:
            raise ConfigError(
                "require and a function as shuffle cannot be combined: the function itself can skip samples"
            )
        return ways[0].make(self) if ways else _shuffle(self)

    @property
    def buckets(self) -> Any:  # noqa: ANN401
        """The `Buckets`, which the validation of `Sampling` made; or None."""
        return self.sampling.buckets

    @property
    def name(self) -> Shuffle:
        """The order that `shuffle` names; "none" if it is a function."""
        return "none" if callable(self.shuffle) else self.shuffle

    @property
    def groups_all(self) -> bool:
        """Whether all samples together are in groups of shards; several sources without buckets have their own."""
        return self.name == "shards" and (self.buckets is not None or not self.sources)

    @property
    def grouping(self) -> tuple[int, bool]:
        """The number of groups, and whether it is given."""
        given = self.sampling.groups
        return given or choose_groups(self.global_batch, len(self.shards.shards)), given is not None

    @property
    def ends(self) -> NDArray[np.int64]:
        """(k,) the id after the last sample of each source."""
        return np.asarray(self.shards.index.sample_end)[np.cumsum([count for count, _ in self.sources]) - 1]

    def check_sources(self, sizes: Sequence[int]) -> None:
        """Raises ConfigError unless each source has samples."""
        if not all(sizes):
            empty = self.shards.shards[sum(count for count, _ in self.sources[: sizes.index(0)])]
            raise ConfigError(f"tar: the source that begins with {empty} has no samples: leave it out")

    @property
    def counts(self) -> NDArray[np.int64]:
        """(s,) the number of chosen samples in each shard."""
        ends = np.asarray(self.shards.index.sample_end)
        some = self.chosen.left_out if self.chosen.ids is None else self.chosen.ids
        before = np.searchsorted(some, ends)
        return np.diff(ends - before if self.chosen.ids is None else before, prepend=0)


class _Way(NamedTuple):
    """A way to order samples.

    Attributes:
        name: of the argument that asks for it.
        is_given: whether it is given.
        make: makes the order.
        takes: the names of later ways and of the subset that `make` combines with it.
    """

    name: str
    is_given: Callable[[OrderArguments], bool]
    make: Callable[[OrderArguments], Order]
    takes: Collection[str] = ()


def _deal(given: OrderArguments) -> Order:
    """Divides the chosen samples, or those of each source, into buckets."""
    if given.last_batch in ("partial", "equal"):
        raise ConfigError(f'last_batch="{given.last_batch}" and buckets cannot be combined: use "pad" or "drop"')
    buckets, ids, sampling = given.buckets, given.chosen.at(np.arange(given.chosen.size)), given.sampling
    numbers = assign_buckets(given.shards, ids, buckets, given.upright, given.known_bad)
    quantum, is_fixed = buckets.quantum or given.global_batch, buckets.quantum is not None
    options = quantum, given.last_batch == "drop", given.name, is_fixed
    if given.sources:
        of_source = np.searchsorted(given.ends, ids, "right")
        both = np.where(numbers < 0, -1, of_source * len(buckets) + numbers)
        runs = list(map(shared, _split(ids, both, len(given.sources) * len(buckets))))
        of_ids = [runs[begin : begin + len(buckets)] for begin in range(0, len(runs), len(buckets))]
        given.check_sources([sum(map(len, runs)) for runs in of_ids])
        dealt = [BucketSampler(buckets.shapes, runs, *options) for runs in of_ids]
        return MixedBuckets(dealt, _schedule(given.sources), quantum, is_fixed)
    runs = list(map(shared, _split(ids, numbers, len(buckets))))
    if sampling.weights is None:
        return BucketSampler(buckets.shapes, runs, *options)
    if not sampling.replacement:
        raise ConfigError("weights with replacement=False and buckets cannot be combined: use replacement=True")
    weights = _split(_weights(sampling.weights, ids, len(given.shards), given.labels), numbers, len(buckets))
    if not any(each.any() for each in weights):
        raise ConfigError("weights: all samples with a weight above 0 are skipped by the buckets: give others a weight")
    return WeightedBuckets(buckets.shapes, runs, *options, list(map(shared, weights)))


def _split(values: NDArray[Any], numbers: NDArray[np.int64], count: int) -> list[NDArray[Any]]:
    """Divides values, (n,), by their numbers in [0, count), (n,); those of a negative number are left out."""
    counts = np.bincount(numbers + 1, minlength=count + 1)
    return np.split(values[np.argsort(numbers, kind="stable")], np.cumsum(counts)[:-1])[1:]


def _mix(given: OrderArguments) -> Order:
    """Makes the mix of sources. Each source is the next shards."""
    of_sources = np.split(given.counts, np.cumsum([count for count, _ in given.sources])[:-1])
    sizes = tuple(int(each.sum()) for each in of_sources)
    given.check_sources(sizes)
    by_shards = (tuple(of_sources), *given.grouping) if given.name == "shards" else ()
    return Mix(given.chosen, sizes, _schedule(given.sources), given.name, *by_shards)


def _schedule(sources: Sequence[tuple[int, Weight]]) -> tuple[Ratio, ...]:
    """Returns the ratios of sources by epoch."""
    schedules = [weight if isinstance(weight, Mapping) else {0.0: weight} for _, weight in sources]
    ratios: list[Ratio] = []
    for epoch in sorted(set(chain(*schedules))):
        weights = [schedule[max(start for start in schedule if start <= epoch)] for schedule in schedules]
        if not any(weights):
            raise ConfigError(f"tar: from epoch {epoch:g} on all sources have weight 0: give one a weight above 0")
        parts = parts_of(weights)
        if not ratios or parts != ratios[-1].parts:
            ratios.append(Ratio(epoch, parts))
    return tuple(ratios)


def _weigh(given: OrderArguments) -> Order:
    sampling, chosen = given.sampling, given.chosen
    assert sampling.weights is not None
    ids = chosen.at(np.arange(chosen.size))
    of_each = shared(_weights(sampling.weights, ids, len(given.shards), given.labels))
    cumulated = shared(WeightedSampler.cumulate(of_each))
    return WeightedSampler(chosen, of_each, sampling.replacement, given.name, cumulated)


def _call(given: OrderArguments) -> Order:
    return CustomSampler(given.shuffle, len(given.shards))  # type: ignore[arg-type]


def _group(given: OrderArguments) -> Order:
    """Divides the chosen samples into groups of shards."""
    ids = given.chosen.ids
    given = replace(given, chosen=given.chosen if ids is None else replace(given.chosen, ids=np.sort(ids)))
    return GroupedSampler(given.chosen, given.counts, *given.grouping)


def _shuffle(given: OrderArguments) -> Order:
    return ShuffledSampler(given.chosen, given.name)


_WAYS = (
    _Way("buckets", lambda given: given.buckets is not None, _deal, ("several sources", "weights", "subset")),
    _Way("several sources", lambda given: bool(given.sources), _mix),
    _Way("weights", lambda given: given.sampling.weights is not None, _weigh, ("subset",)),
    _Way("a function as shuffle", lambda given: callable(given.shuffle), _call),
    _Way('shuffle="shards"', lambda given: given.groups_all, _group, ("subset",)),
    _Way('shuffle="block"', lambda given: given.name == "block" and given.buckets is not None, _shuffle, ("subset",)),
)


def assign_buckets(
    shards: ShardSet, ids: NDArray[np.int64], buckets: Buckets, upright: bool, known_bad: Collection[int] = ()
) -> NDArray[np.int64]:
    """Returns the bucket number of each sample, (n,) int64; -1 for skipped samples.

    Known bad images of unknown size go to the bucket with the most samples, where they are replaced.

    Raises:
        ConfigError: the index does not know the size of some images and `unknown` is "error", or of any image.
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
            + (', or skip them with Buckets(unknown="skip")' if known.any() else "")
        )
    numbers = np.full(len(ids), -1)
    numbers[known] = buckets.assign(sizes[known])
    numbers[replaced] = np.bincount(numbers[known]).argmax()
    return numbers


def sizes_of(shards: ShardSet, ids: NDArray[np.int64], upright: bool) -> NDArray[np.int64]:
    """Returns heights and widths of images, (n, 2), as stored or upright; 0 if unknown."""
    sizes = stored_sizes(shards.index, ids)
    turned = upright & (shards.index.at("orientation", ids) >= FIRST_TRANSPOSED)
    return np.where(turned[:, None], sizes[:, ::-1], sizes)


def check_components(shards: ShardSet, extensions: Collection[str], source: Order, known_bad: Collection[int]) -> None:
    """Checks that each selected sample has the components that `fields` needs.

    Raises:
        ConfigError: no sample has a component with this extension.
        DataError: some samples lack it.
    """
    problems = {}
    for extension in extensions:
        check_exists("fields", extension, shards)
        samples = shards.index.rows_without(extension)
        if len(samples):
            samples = samples[source.includes(samples)]
        samples = samples[~np.isin(samples, list(known_bad))]  # these are replaced
        if len(samples):
            keys = list_some([shards.index.key(int(sample)) for sample in samples[:4]])
            problems[extension] = f"{len(samples)} of {len(shards)} samples lack .{extension} ({keys})"
    if problems:
        how = "in the function given as shuffle" if source.by_function else f"by Sampling(require={[*problems]})"
        raise DataError(f"fields: {'; '.join(problems.values())}. Leave these samples out {how}, or repair the shards")


def check_options(
    shards: ShardSet, fields: Mapping[str, Component], source: Order, known_bad: Collection[int]
) -> dict[str, Component]:
    """Checks the keys that options of fields name, in the first selected samples; see `check_keys`.

    Returns:
        The fields to check at the first batch: all of them if the shards are on stores or from a merged index, because
        such shards are not read before their turn.
    """
    fields = {name: field for name, field in fields.items() if field.path}
    if not fields or not shards.local or isinstance(shards.shards, MergedShards):
        return fields
    blocks = (np.arange(*block) for block in row_blocks(len(shards)))
    samples = chain.from_iterable(block[source.includes(block)].tolist() for block in blocks)
    looked_at = islice((sample for sample in samples if sample not in known_bad), _MOST_LOOKED_AT)
    try:
        return check_keys(fields, (partial(shards.read_component, sample, "json") for sample in looked_at))
    finally:
        shards.close()


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
        chosen = as_array("weights", [of_label[label] for label in classes.tolist()], np.float64)[of]
    else:
        of_all = as_array("weights", weights, np.float64)
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
    """Returns the weights by label; a text key is the name of a class."""
    labels = {name: label for label, name in names.items()}
    if any(isinstance(key, str) for key in weights) and len(labels) < max(1, len(names)):
        problem = "two classes have the same name" if names else "the names of the classes are not known"
        raise ConfigError(f"weights: {problem}: give {{label: weight}}, or label_from=LabelFrom(..., classes=[...])")
    if unknown := [key for key in weights if isinstance(key, str) and key not in labels]:
        near = similar(unknown[0], labels, 3) or list(labels)[:3]
        raise ConfigError(
            f"weights: {list_some(unknown)} is none of {counted(len(labels), 'class', 'classes')}: "
            f"did you mean {either([describe(name, MOST_CHARACTERS) for name in near])}?"
        )
    of_label = {labels.get(key, key): weight for key, weight in weights.items()}
    if len(of_label) < len(weights):
        raise ConfigError("weights: a class occurs twice, by its name and by its label: give each once")
    return of_label
