"""Compares the classes of loaders for one model: by their names, or by the range of their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from gpuloader.errors import DataError, describe
from gpuloader.loading.loader import GPULoader, fresh_run_of
from gpuloader.shards import read_names


class ClassList(NamedTuple):
    """The classes of a loader: the names, label -> name, if known, and the smallest and the largest label."""

    names: Mapping[int, str]
    labels: Sequence[int]
    in_folders: bool  # the folders in the keys are the classes

    def __str__(self) -> str:
        listed = [name for _, name in sorted(self.names.items())]
        return describe(listed, 300) if listed else f"the labels {self.labels[0]} to {self.labels[1]}, without names"


def difference(one: ClassList, other: ClassList) -> str:
    """Returns the first difference of two class lists, or an empty text. If one alone has names, it is the first."""
    if other.names:
        named = ((label, one.names.get(label), other.names.get(label)) for label in sorted({*one.names, *other.names}))
        return next((f"label {label} is {describe(a)} and {describe(b)}" for label, a, b in named if a != b), "")
    outside = (label for label in other.labels if not one.labels[0] <= label <= one.labels[1])
    return next((f"label {label} is in the second alone" for label in outside), "")


def check_same_classes(loaders: Mapping[str, GPULoader[Any]], training: str = "", further: str = "") -> None:
    """Checks that loaders, by name, have the same classes; raises DataError, which ends with `further`, if not.

    All are compared with one: with names if there is one, for training, or else with the widest range of labels. Those
    without labels are left out, and those with labels that have no names and are read with the samples.
    """
    lists = {name: known for name, loader in loaders.items() if (known := _class_list(loader)) is not None}
    ranks = {name: (not each.names, name != training, each.labels[0] - each.labels[1]) for name, each in lists.items()}
    first = min(lists, key=ranks.__getitem__, default="")
    for name, each in lists.items():
        if found := difference(lists[first], each):
            pack = "`gpuloader pack --classes TRAIN/classes.json`"
            cure = 'label_from=LabelFrom("folder", classes=[...])' if each.in_folders else pack
            raise DataError(
                f"{first} and {name} must have the same classes, but {found}:",
                f"{first} has {lists[first]}",
                f"{name} has {each}",
                f"Give both one list of all classes, by {cure}{further}",
            )


def _class_list(loader: GPULoader[Any]) -> ClassList | None:
    run = fresh_run_of(loader)
    labels, index = run.labels, run.shards.index
    if labels is not None and "label" in run.names:
        folders = {PurePosixPath(path).name for path in index.folders()}
        in_folders = labels.place.startswith("folder") or folders <= ({*labels.names.values()} or folders - {""})
        if not labels.names:
            return ClassList({}, index.facts["labels"], in_folders) if labels.place == "cls" else None
        return ClassList(labels.names, (min(labels.names), max(labels.names)), in_folders)
    names = read_names(run.shards.shards) if any(f"{field}_labels" in run.names for field in run.fields) else {}
    return ClassList(names, (min(names), max(names)), in_folders=False) if names else None
