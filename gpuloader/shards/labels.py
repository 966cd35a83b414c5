"""Where labels come from: `label_from`."""

from __future__ import annotations

import json
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError, LabelError
from gpuloader.shards.index import BAD_LABEL, NO_LABEL
from gpuloader.shards.remote import Wanted
from gpuloader.shards.shard_set import ShardSet

_ALLOWED = (
    'allowed are "cls" (an integer in KEY.cls), "json:NAME" (an integer under NAME in KEY.json), '
    '"folder" (the folder that the image lies in) and None (images only)'
)


class Labels(Protocol):
    """The labels of a shard set.

    Attributes:
        classes: the classes' names, label i naming the i-th; None where labels are bare numbers.
    """

    @property
    def classes(self) -> tuple[str, ...] | None: ...

    def of(self, samples: NDArray[np.int64], wanted: Wanted = lambda: True) -> NDArray[np.int64]:
        """(b,) int64 labels of (b,) samples; InterruptedError once they are not `wanted` any more."""


def make_labels(shards: ShardSet, label_from: str | None) -> Labels | None:
    """The labels that `label_from` asks for.

    Raises:
        ConfigError: an unknown `label_from`.
        LabelError: a sample without such a label.
    """
    if label_from is None:
        return None
    if label_from == "cls":
        return _table_from_cls(shards)
    if label_from == "folder":
        return _table_from_folders(shards)
    if isinstance(label_from, str) and label_from.startswith("json:") and len(label_from) > len("json:"):
        return _JsonLabels(shards, label_from.removeprefix("json:"))
    raise ConfigError(f"label_from={label_from!r}: {_ALLOWED}")


class _Table:
    """Labels known at the start."""

    def __init__(self, table: NDArray[np.int64], classes: tuple[str, ...] | None) -> None:
        self._table = table
        self.classes = classes

    def of(self, samples: NDArray[np.int64], wanted: Wanted = lambda: True) -> NDArray[np.int64]:
        return self._table[samples]


def _table_from_cls(shards: ShardSet) -> _Table:
    table = shards.cls_labels
    _refuse(shards, np.flatnonzero(table == NO_LABEL), "lack a label: they have no .cls component")
    _refuse(shards, np.flatnonzero(table == BAD_LABEL), "have a .cls component that is not an integer in ASCII")
    return _Table(table, classes=None)


def _table_from_folders(shards: ShardSet) -> _Table:
    keys = (index.key(row) for _, index in shards.indexes for row in range(len(index)))
    folders = [key.rpartition("/")[0].rpartition("/")[2] for key in keys]
    classes, table = np.unique(np.array(folders), return_inverse=True)
    _refuse(shards, np.flatnonzero(np.isin(table, np.flatnonzero(np.isin(classes, ["", "."])))), "lie in no folder")
    return _Table(table.astype(np.int64), tuple(str(name) for name in classes))


class _JsonLabels:
    """Labels read with each sample, out of its `.json` component."""

    classes = None

    def __init__(self, shards: ShardSet, name: str) -> None:
        self._shards = shards
        self._name = name
        _refuse(shards, shards.samples_without("json"), "lack a label: they have no .json component")

    def of(self, samples: NDArray[np.int64], wanted: Wanted = lambda: True) -> NDArray[np.int64]:
        return np.array([self._label(int(sample), wanted) for sample in samples], np.int64)

    def _label(self, sample: int, wanted: Wanted) -> int:
        text = self._shards.read_component(sample, "json", wanted)
        place = self._shards.place(sample)
        where = f"the .json component of {place.key!r} in {place.shard}"
        try:
            content = json.loads(text or b"")
        except (ValueError, RecursionError) as error:
            raise LabelError(f"{where} is not JSON: {error}") from None
        label = content.get(self._name) if isinstance(content, dict) else None
        if not isinstance(label, int) or isinstance(label, bool) or not -(2**63) <= label < 2**63:
            found = f"its keys are {sorted(content)}" if isinstance(content, dict) else f"it is {content!r}"
            raise LabelError(
                f"{where} has no 64-bit integer under {self._name!r} ({found}, found {label!r}): "
                f"name the right key in label_from, or mend the shard"
            )
        return label


def _refuse(shards: ShardSet, samples: NDArray[np.int64], problem: str) -> None:
    if len(samples):
        places = [shards.place(int(sample)) for sample in samples[:3]]
        shown = ", ".join(f"{place.key!r} in {place.shard}" for place in places)
        more = " ..." if len(samples) > 3 else ""
        raise LabelError(f"{len(samples)} of {len(shards)} samples {problem}: {shown}{more}. label_from: {_ALLOWED}")
