"""Makes labels from their source (`label_from`) and the names of the classes (`classes`)."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.text import natural_key, similar
from gpuloader.base.values import innermost, is_integer, parse_json
from gpuloader.errors import ConfigError, DataError, LabelError, describe
from gpuloader.shards.class_names import CLASSES_FILE, as_list, check_filled, read_class_names
from gpuloader.shards.folder import Folder
from gpuloader.shards.index import BAD_LABEL, NO_LABEL, row_blocks
from gpuloader.shards.merged import MergedShards
from gpuloader.shards.paths import Shard
from gpuloader.shards.remote import WantedCallback
from gpuloader.shards.shard_set import ShardSet

_ALLOWED = (
    'allowed are "cls" (an integer or a class name in KEY.cls), "json:NAME" (the same under NAME in KEY.json; '
    '"json:a.b" is b within a), "folder" (the folder of the image), "folder:top" (the uppermost), None (images only), '
    '"auto" (the first of "cls", "folder" and None that the data has) and "default" ("cls"; '
    '"auto" for folders of pictures)'
)
_LABEL_FROM = f"label_from: {_ALLOWED}"
_KEY_SHOWN = 200
_GIVE_CLASSES = 'classes=["cat", "dog"] numbers class names'

ClassOrder: TypeAlias = Literal["name", "natural"]
Used: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.int64]]
_LabelOf: TypeAlias = Callable[[NDArray[np.int64], WantedCallback], NDArray[np.int64]]

_log = logging.getLogger("gpuloader")


def every(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns all samples, as a filter that drops none."""
    return samples


class Labels:
    """The labels of a shard set.

    Args:
        shards: the shard set.
        place: the source of the labels: "cls", "json:NAME", "folder" or "folder:top".
        names: the names of the classes, label -> name, if known.
        label_of: returns the labels of samples, both (b,), or raises InterruptedError if they are no longer wanted.
        used: filters samples to the used ones; None if the labels are read with the samples.

    Attributes:
        classes: the names as a tuple, entry i for label i; None if unknown, or the labels are not 0, 1, ... n - 1.
    """

    def __init__(
        self, shards: ShardSet, place: str, names: Mapping[int, str], label_of: _LabelOf, used: Used | None = None
    ) -> None:
        self.place = place
        self.names = names
        self.classes = as_list(names)
        self._shards = shards
        self._label_of = label_of
        self._used = used

    @cached_property
    def digest(self) -> str | None:
        """The digest of the labels of all used samples, 32 hex digits; None if they are read with the samples."""
        if self.place == "cls" and self._used is every:
            return str(self._shards.index.facts["label_digest"])
        return self.digest_of_first(len(self._shards))

    def digest_of_first(self, samples: int) -> str | None:
        """Returns the digest of the labels of the first samples."""
        if self._used is None:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for block in row_blocks(samples):
            digest.update(self.of(self._used(np.arange(*block))).astype("<i8", copy=False).tobytes())
        return digest.hexdigest()

    def of(self, samples: NDArray[np.int64], wanted: WantedCallback = lambda: True) -> NDArray[np.int64]:
        """Returns (b,) int64 labels of (b,) samples; raises InterruptedError when they are no longer `wanted`."""
        return self._label_of(samples, wanted)


def resolve_place(shards: ShardSet, label_from: str | None) -> str | None:
    """Resolves "default" and "auto" by the index; another `label_from` does not change.

    "auto" is "cls" if any sample has a `.cls`, "folder" if any image is in a folder, otherwise None. `make_labels`
    raises an error for samples without a label. For several folders of one parent, no label at all is a LabelError.
    """
    if label_from == "default":
        label_from = "auto" if len(shards.folders) == len(shards.shards) else "cls"
    if label_from != "auto":
        return label_from
    if shards.index.counts["unlabelled"] < len(shards):
        return "cls"
    if any(map(_folder, shards.index.folders())):
        return "folder"
    parents = Counter(Path(os.path.abspath(folder.path)).parent for folder in shards.folders.values())  # noqa: PTH100
    if several := [parent for parent, count in parents.items() if count > 1]:
        raise LabelError(
            f"the pictures at the top of several folders in {several[0]} have no class: give {several[0]}, whose "
            f"folders are then the classes, and choose with Sampling(subset=...); or label_from=None for no labels"
        )
    return None


def needs_labels(shards: ShardSet, has_targets: bool) -> bool:
    """Returns whether samples with fields need labels by default, or with targets: boxes, masks or key points.

    Data with neither `.cls` nor folders need none. Nor do tars of targets without `.cls`, whose folders are no classes.
    """
    if has_targets and resolve_place(shards, "default") == "cls":
        return shards.index.counts["unlabelled"] < len(shards)
    return resolve_place(shards, "auto") is not None


def make_labels(
    shards: ShardSet,
    label_from: str | None,
    classes: Sequence[str] | None = None,
    used: Used = every,
    order: ClassOrder = "name",
) -> Labels | None:
    """Makes the labels that `label_from` asks for.

    Args:
        classes: the names of the classes, entry i for label i. None takes the names in `classes.json` beside the
            shards, and for "folder" the sorted names of the folders.
        used: filters sample ids, (k,), to the used ones; only these need a label.
        order: how the names of the folders are sorted.

    Raises:
        ConfigError: `label_from` or `order` is unknown, `order` sorts nothing, or `classes` is not a list of different
            names.
        LabelError: a sample has no such label.
        DataError: several `classes.json` name a label differently.
    """
    class_names = None if classes is None else _check_classes(classes)
    label_from = resolve_place(shards, label_from)
    if order not in get_args(ClassOrder):
        raise ConfigError(f"order={describe(order)}: allowed are {' and '.join(map(repr, get_args(ClassOrder)))}")
    if order == "natural" and (class_names is not None or label_from not in ("folder", "folder:top")):
        numbers = "classes numbers them" if class_names is not None else f"labels are from {describe(label_from)}"
        raise ConfigError(f'order="natural" sorts the names of class folders, but {numbers}: leave order out')
    if label_from is None:
        if class_names is not None:
            raise ConfigError("classes names labels, but label_from=None gives none: leave one of them out")
        return None
    if label_from in ("folder", "folder:top"):
        return _from_folders(shards, label_from, class_names, used, order)
    if label_from == "cls":
        return _from_cls(shards, class_names, used)
    if isinstance(label_from, str) and label_from.startswith("json:") and len(label_from) > len("json:"):
        _refuse_lacking(shards, used, shards.index.rows_without("json"), "json")
        return _read_labels(shards, label_from, class_names, _names(shards, class_names))
    raise ConfigError(f"label_from={describe(label_from)}: {_ALLOWED}")


def _refuse(shards: ShardSet, used: NDArray[np.int64], problem: str, advice: str = _LABEL_FROM) -> None:
    """Raises LabelError for these used samples with a problem, if there are any."""
    if len(used):
        locations = [shards.locate(int(sample)) for sample in used[:3]]
        shown = ", ".join(f"{describe(each.key, _KEY_SHOWN)} in {each.shard}" for each in locations)
        more = ", and more" if len(used) > 3 else ""
        raise LabelError(f"{len(used)} of {len(shards)} samples {problem}: {shown}{more}. {advice}")


def _refuse_lacking(shards: ShardSet, used: Used, samples: NDArray[np.int64], extension: str, advice: str = "") -> None:
    """Raises LabelError if any of these samples, which lack a component, are used."""
    if len(samples) == len(shards):
        advice += "No sample has one: label_from=None loads images without labels"
        if extension == "cls" and not shards.folders:
            advice += "; for tars called CLASS.tar, `gpuloader pack FOLDER SHARDS --tars-are-classes`"
    else:
        advice += f"Sampling(require=['{extension}']) skips such samples"
    problem = f"lack a label: they have no .{extension} component"
    _refuse(shards, used(samples), problem, f"{advice}; {_LABEL_FROM}")


def _read_labels(shards: ShardSet, place: str, classes: tuple[str, ...] | None, names: Mapping[int, str]) -> Labels:
    """Returns labels that are read from a component of each sample."""
    extension, _, name = place.partition(":")
    numbers = _numbers(names)

    def label(sample: int, wanted: WantedCallback) -> int:
        content = shards.read_component(sample, extension, wanted) or b""
        try:
            found = _in_json(name, bool(numbers), content) if name else _in_cls(content)
            if isinstance(found, str):
                if found not in numbers:
                    raise LabelError(f"has an unknown class: {_explain_unknown([found], numbers)}")
                return numbers[found]
            if classes is not None and not 0 <= found < len(classes):
                raise LabelError(f"has the label {found}: {_explain_outside(len(classes))}")
            return found
        except LabelError as error:
            where = shards.locate(sample)
            raise LabelError(
                f"the .{extension} component of {describe(where.key, _KEY_SHOWN)} in {where.shard} {error}"
            ) from None

    return Labels(
        shards, place, names, lambda ids, wanted: np.array([label(int(each), wanted) for each in ids], np.int64)
    )


def _in_cls(content: bytes) -> str:
    try:
        return content.decode().strip()
    except UnicodeDecodeError as error:
        raise LabelError(f"is neither an integer nor a class name in UTF-8: {error}") from None


def _in_json(name: str, named: bool, content: bytes) -> int | str:
    try:
        parsed = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise LabelError(f"is not JSON: {error}") from None
    searched, last = innermost(parsed, name)
    label = searched.get(last) if isinstance(searched, dict) else None
    if isinstance(label, str) and named:
        return label
    if not is_integer(label, -(2**63), 2**63):
        found = (
            f"its keys are {describe(sorted(searched), 500)}"
            if isinstance(searched, dict)
            else f"it is {describe(searched, 500)}"
        )
        also = f"; {_GIVE_CLASSES}" if isinstance(label, str) else ""
        if isinstance(label, float):
            also = f'; for regression, leave label_from out, and use fields={{"target": Field("json:{name}", float)}}'
        raise LabelError(
            f"has no 64-bit integer under {name!r} ({found}, found {describe(label)}): name the right key in "
            f"label_from, or repair the shard{also}"
        )
    return label


def _from_cls(shards: ShardSet, classes: tuple[str, ...] | None, used: Used) -> Labels:
    index, names = shards.index, _names(shards, classes)
    if index.counts["unlabelled"]:
        in_folders = all(map(_folder, index.folders()))
        advice = 'All samples are in folders, which label_from="folder" numbers; ' if in_folders else ""
        _refuse_lacking(shards, used, index.find(lambda labels: labels == NO_LABEL, "label"), "cls", advice)
    if index.counts["misfits"]:
        if _numbers(names):
            return _read_labels(shards, "cls", classes, names)
        texts = used(index.find(lambda labels: labels == BAD_LABEL, "label"))
        _refuse(
            shards, texts, "have a .cls component that is not an integer in ASCII", f"{_GIVE_CLASSES}; {_LABEL_FROM}"
        )
    if classes is not None and not all(0 <= label < len(classes) for label in index.facts["labels"]):
        outside = used(index.find(lambda labels: (labels < 0) | (labels >= len(classes)), "label"))
        _refuse(shards, outside, "have a label that is not one of the classes", _explain_outside(len(classes)))
    return Labels(shards, "cls", names, lambda ids, _: index.at("label", ids), used)


def _from_folders(shards: ShardSet, place: str, names: tuple[str, ...] | None, used: Used, order: ClassOrder) -> Labels:
    index = shards.index
    class_of = list(map(_folder if place == "folder" else _top_folder, index.folders()))  # for each folder
    occurring = sorted(set(class_of) - {""})
    _check_class_folders(shards, place, occurring, names, order)
    classes = tuple(sorted(occurring, key=natural_key) if order == "natural" else occurring) if names is None else names
    numbers = {name: number for number, name in enumerate(classes)}
    label_of = np.array([numbers.get(name, -1) for name in class_of], np.int64)

    def samples_in(names: Collection[str]) -> NDArray[np.int64]:
        are_meant = np.array([name in names for name in class_of], np.bool_)
        return used(index.find(lambda folders: are_meant[folders], "folder"))

    if "" in class_of:
        _refuse(shards, samples_in([""]), "are not in a folder")
    if unknown := [name for name in occurring if name not in numbers]:
        _refuse(shards, samples_in(unknown), "are in folders of unknown classes", _explain_unknown(unknown, classes))
    names_of = dict(enumerate(classes))
    return Labels(shards, place, names_of, lambda ids, _: label_of[index.at("folder", ids)], used)


def _check_class_folders(
    shards: ShardSet, place: str, occurring: Sequence[str], classes: Sequence[str] | None, order: ClassOrder
) -> None:
    """Raises LabelError if the subfolders of a folder of pictures are not its classes, or have no pictures."""
    for number, folder in shards.folders.items():
        if place == "folder" and (deep := _first_deep(shards, number)):
            raise LabelError(
                f"{folder} has pictures that lie deeper than CLASS/PICTURE, such as {describe(deep, _KEY_SHOWN)}: "
                f'LabelFrom("folder:top") takes the folder below {folder} as the class'
            )
        empty = sorted(set(folder.listing.top_folders) - set(occurring))
        names = sorted([*occurring, *empty], key=natural_key if order == "natural" else None)
        check_filled(folder.path, empty, classes, f"LabelFrom({place!r}, classes={describe(names, 500)})")


def _first_deep(shards: ShardSet, number: int) -> str | None:
    """Returns the key of the first picture that is deeper than CLASS/PICTURE; None if there is none."""
    samples = shards.samples_of(number)
    is_deep = np.array([name.count("/") > 1 for name in shards.index.folders()], np.bool_)
    found = is_deep[shards.index.column("folder", samples.start, samples.stop)]
    return shards.index.key(samples.start + int(found.argmax())) if found.any() else None


def _folder(path: str) -> str:
    """Returns the last folder of the path to an image; "" if there is none."""
    folder = path.rpartition("/")[2]
    return "" if folder == "." else folder


def _top_folder(path: str) -> str:
    """Returns the first folder of the path to an image; "" if there is none."""
    return f"{path}/".removeprefix("./").partition("/")[0]


def _check_classes(classes: Sequence[str]) -> tuple[str, ...]:
    listed = () if isinstance(classes, str) or not isinstance(classes, Iterable) else tuple(classes)
    if not listed or not all(isinstance(name, str) for name in listed):
        raise ConfigError(f"classes={describe(classes)}: allowed is a list of class names, entry i for label i")
    if twice := [name for name, count in Counter(listed).items() if count > 1]:
        raise ConfigError(f"classes: {_quote(twice[:3])} occurs twice: each label needs its own name")
    return listed


def _names(shards: ShardSet, classes: tuple[str, ...] | None) -> Mapping[int, str]:
    """Returns the names in `classes`, otherwise the names beside the shards, label -> name."""
    if classes is None:
        return read_names(shards.shards)
    numbers = {name: number for number, name in enumerate(classes)}
    for folder, names in _named_folders(shards.shards):
        for label, name in names.items():
            if names.get(number := numbers.get(name, label)) != name:
                raise ConfigError(
                    f"classes: {describe(name)} is {number} in the list, but {label} in {folder}/{CLASSES_FILE}, and "
                    f"integers in the shards keep their numbers: leave classes out, or if the file is wrong, correct "
                    f'it. If the keys have the class folder, LabelFrom("folder", classes=[...]) renumbers; '
                    f"otherwise, pack again with `gpuloader pack --classes`"
                )
    return dict(enumerate(classes))


def _numbers(names: Mapping[int, str]) -> Mapping[str, int]:
    """Returns the labels by name, name -> label; empty if several labels have the same name."""
    numbers = {name: label for label, name in names.items()}
    return numbers if len(numbers) == len(names) else {}


def read_names(shards: Iterable[Shard]) -> dict[int, str]:
    """Returns the names of the classes, label -> name, from `classes.json` in all folders of the shards.

    It is empty if a folder has no such file or is on a store. If a file cannot be read, it is empty and a warning is
    logged.

    Raises:
        DataError: two files name a label differently.
    """
    names: dict[int, str] = {}
    named_in: dict[int, Path] = {}
    for folder, names_here in _named_folders(shards):
        if folder is None or not names_here:
            return {}
        for label, name in names_here.items():
            if names.setdefault(label, name) != name:
                raise DataError(
                    f"the label {label} is {describe(names[label])} in {named_in[label] / CLASSES_FILE}, but "
                    f"{describe(name)} in "
                    f"{folder / CLASSES_FILE}: make a loader for each folder, or number both the same way with "
                    f"`gpuloader pack --classes`; if labels do not matter, use label_from=None; if a file is wrong, "
                    f"correct it"
                )
            named_in.setdefault(label, folder)
    return names


def _named_folders(shards: Iterable[Shard]) -> Iterator[tuple[Path | None, dict[int, str]]]:
    """Yields each folder of the shards, None for a store, with the names in its `classes.json`, label -> name."""
    parents = shards.folders if isinstance(shards, MergedShards) else map(_folder_of_classes, shards)
    for folder in dict.fromkeys(parents):
        try:
            yield folder, {} if folder is None else read_class_names(folder)
        except DataError as error:
            _log.warning("the names of the classes are not known: %s", error)
            yield folder, {}


def _folder_of_classes(shard: Shard) -> Path | None:
    """Returns the folder of the shard's `classes.json`; None if it is on a store."""
    if isinstance(shard, Folder):
        return shard.path
    return shard.parent if isinstance(shard, Path) else None


def _explain_unknown(names: Sequence[str], classes: Iterable[str]) -> str:
    listed = list(classes)
    near = similar(names[0], listed, 3)
    some = f"similar are {_quote(near)}" if near else f"such as {_quote(listed[:3])}"
    return f"{_quote(names[:3])} is not one of the {len(listed)} classes, {some}"


def _quote(texts: Sequence[str]) -> str:
    return ", ".join(map(describe, texts))


def _explain_outside(limit: int) -> str:
    return f"there are {limit} classes, numbered from 0"
