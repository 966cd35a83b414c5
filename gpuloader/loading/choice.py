"""`Choice`: the samples of a run, their order and their labels, as a loader's arguments say it for any shards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuloader.helpers.progress import say_if_long
from gpuloader.loading.options import LabelFrom, Sampling
from gpuloader.loading.selection import CustomOrder, Weight, ids_of, make_sampling, select
from gpuloader.plan import LastBatch, Positions, Shuffle
from gpuloader.shards import Labels, ShardSet, make_labels


@dataclass(frozen=True)
class Choice:
    """The arguments that decide which samples an epoch has, in which order.

    Attributes:
        sources: the number of shards and the weight of each source, if there are several.
        upright, last_batch, global_batch: as for `make_sampling`.
    """

    sampling: Sampling
    shuffle: Shuffle | CustomOrder
    sources: Sequence[tuple[int, Weight]]
    labelling: LabelFrom
    upright: bool
    last_batch: LastBatch
    global_batch: int

    @say_if_long("the samples, their labels and their order are prepared")
    def of(self, shards: ShardSet, known_bad: Collection[int]) -> tuple[Labels | None, Positions, str | None]:
        """Returns the labels of the samples that are chosen, the positions of an epoch, and the choice's fingerprint.

        Args:
            known_bad: samples that are always replaced.

        Raises:
            ConfigError, LabelError, DataError: an argument is invalid, or does not fit the data.
        """
        selection = select(shards, self.sampling)
        labels = make_labels(shards, self.labelling.place, self.labelling.classes, selection.of, self.labelling.order)
        positions = make_sampling(
            shards,
            selection,
            labels,
            self.shuffle,
            self.sources,
            self.sampling,
            upright=self.upright,
            last_batch=self.last_batch,
            global_batch=self.global_batch,
            known_bad=known_bad,
        )
        return labels, positions, selection.fingerprint

    def of_first(self, samples: int, shards: ShardSet, labels: Labels | None) -> Choice:
        """Returns the choice among the first samples of shards with these labels: it says nothing of each other sample.

        Folders of classes keep the numbers that they have among all samples.
        """
        subset, weights, labelling = self.sampling.subset, self.sampling.weights, self.labelling
        if subset is not None and not callable(subset) and not isinstance(subset, slice):
            ids = ids_of(subset, shards)
            subset = ids[ids < samples]
        if weights is not None and not isinstance(weights, (str, Mapping)):
            weights = np.asarray(weights)[:samples]
        if labels is not None and labels.place.startswith("folder"):
            labelling = LabelFrom(labels.place, labels.classes)
        return replace(self, sampling=replace(self.sampling, subset=subset, weights=weights), labelling=labelling)
