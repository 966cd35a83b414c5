"""The records of a source of pictures: where each sample is, and how it is read while it is packed."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from PIL import Image

from gpuloader.base.regular_file import read_regular
from gpuloader.base.text import counted
from gpuloader.base.values import is_integer
from gpuloader.errors import LabelError, NoSamplesError, PackError, describe
from gpuloader.shards.pictures import in_hidden_folder

MASK = "mask.png"
"""The extension of a mask: not "png", which could be the picture's."""

MOST_PICTURE_BYTES = 1 << 32
_LARGEST_LABEL = 10**18 - 1  # with the digits that a scan reads
_NO_FIELDS: Mapping[str, bytes] = {}

Dropped: TypeAlias = Sequence[tuple[str, str]]
"""Objects of a picture that are not packed: their names and causes."""
Fit: TypeAlias = Callable[[Mapping[str, bytes], bytes], tuple[Mapping[str, bytes], Dropped]]


class FoundNames(tuple[str, ...]):
    """Names of classes that the destination already has: they number names, but not labels that are numbers."""


class SourceSample(NamedTuple):
    """A sample as it is read from its source.

    Attributes:
        image: the encoded image, or the image.
        extension: of the image's member; None if the image's format decides it.
        fields: the other members by extension: `cls`, `json` and so on.
    """

    image: bytes | Image.Image
    extension: str | None
    fields: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Record:
    """The place of one sample in its source; small, because it is pickled to the process that packs the sample.

    Attributes:
        name: for people, such as a path.
        key: the sample's name; several records may share one.
        size_bytes: the bytes to read; None if they are not known before.
        fields: the members beside the image that are known before it is read.
        reader: reads the sample; raises `RefusalError` if it is not a picture, which `pack` then drops.
    """

    name: str
    key: str
    size_bytes: int | None
    fields: Mapping[str, bytes]
    reader: Callable[[Record], SourceSample]


class Picture(NamedTuple):
    """A picture in a file of its own, as a source yields it.

    Attributes:
        path: absolute.
        label: an integer or a name; only for a source without annotations.
        json: the content of its `json`, if it has one.
        mask: the path of its mask, a PNG; all pictures of a source have one, or none has.
        place: where the source names it, such as a line; None for its path.
    """

    path: str
    label: object = None
    json: bytes | None = None
    mask: str | None = None
    place: object = None


@dataclass(frozen=True)
class OpenedSource:
    """Samples to be packed.

    Attributes:
        records: one for each sample, in the source's order.
        fingerprint: hex digits that identify the samples, wherever they are stored.
        classes: the classes' names, entry i for label i; None if labels are bare numbers.
        left_out_count: how many files or members belong to no sample.
        class_ids: the classes' ids in the source, entry i for label i, None for a class that it lacks; None if it has
            no such ids.
        fit: fits boxes and masks in a record's fields to the picture as it is stored, or raises `RefusalError`; None if
            there are none. Such pictures keep their sizes.
    """

    records: Sequence[Record]
    fingerprint: str
    classes: tuple[str, ...] | None = None
    left_out_count: int = 0
    class_ids: tuple[int | None, ...] | None = None
    fit: Fit | None = None


def read_picture(path: str | os.PathLike[str]) -> bytes:
    """Reads the bytes of a picture in a file of its own."""
    return read_whole(path, MOST_PICTURE_BYTES, "the picture {} cannot be read ({}): correct or remove it")


def read_whole(path: str | os.PathLike[str], most_bytes: int, message: str) -> bytes:
    """Reads a file; if it cannot, raises PackError with this message about its path and the cause."""
    try:
        return read_regular(Path(path), most_bytes)
    except OSError as error:
        raise PackError(message.format(os.fspath(path), error.strerror)) from None


def open_pictures(
    folder: str,
    pictures: Iterable[Picture],
    classes: Sequence[str] | None,
    *,
    origin: str = "",
    parse: Callable[[Sequence[object]], Sequence[object]] = list,
    left_out_count: int = 0,
    class_ids: tuple[int | None, ...] | None = None,
    fit: Fit | None = None,
) -> OpenedSource:
    """Opens pictures in files as a source; the other arguments are as in `OpenedSource`.

    Args:
        folder: absolute, the root that keys are relative to.
        classes: the names of the labels. Without `fit`, labels are numbered by them; None uses the sorted names that
            occur.
        origin: what stands before the pictures' places in errors.
        parse: converts all labels.
    """
    columns: tuple[list[Any], ...] = tuple([] for _ in Picture._fields)  # lists, because there may be millions
    for picture in pictures:
        for column, value in zip(columns, picture):
            column.append(value)
    paths, labels, contents, masks, places = columns
    where: Callable[[int], str] = lambda i: paths[i] if places[i] is None else f"{origin}{places[i]}"  # noqa: E731
    names, fields = None if classes is None else tuple(classes), [_NO_FIELDS] * len(paths)
    if fit is None:
        numbers, names = number_labels(parse(labels), classes, where)
        of_label = {number: {"cls": b"%d" % number} for number in set(numbers)}  # one for millions of samples
        fields = [of_label[number] for number in numbers]
    if not paths:
        raise NoSamplesError(f"no pictures in {folder}")
    sizes = _file_sizes(paths, where)
    if masks[0] is not None:
        sizes = [size + of_mask for size, of_mask in zip(sizes, _file_sizes(masks, where), strict=True)]
    records = [
        Record(
            path,
            _key_below(path, folder),
            size,
            known if content is None else {**known, "json": content},
            _read_file if mask is None else partial(_read_file, mask=mask),
        )
        for path, size, known, content, mask in zip(paths, sizes, fields, contents, masks, strict=True)
    ]
    return OpenedSource(records, fingerprint(records, names), names, left_out_count, class_ids, fit)


def number_labels(
    labels: Sequence[object], classes: Sequence[str] | None, where: Callable[[int], str]
) -> tuple[list[int], tuple[str, ...] | None]:
    """Returns labels as numbers, and the names of the numbers; None for integers that `classes` does not name."""
    names = None if classes is None else tuple(classes)
    numbers = [label for label in labels if is_integer(label)]
    if len(numbers) == len(labels):
        names = None if labels and isinstance(classes, FoundNames) else names
        for i, number in enumerate(numbers):
            if names is not None and not 0 <= number < len(names):
                raise LabelError(
                    f"{where(i)}: unknown class {describe(number)}: there are {len(names)} classes, from 0 on"
                )
            if abs(number) > _LARGEST_LABEL:
                raise LabelError(f"{where(i)}: the label {describe(number)} has more than 18 digits")
        return numbers, names
    if numbers:
        raise LabelError(_explain_mixed(labels, len(numbers), where))
    for i, label in enumerate(labels):
        if not isinstance(label, str) or not label:
            raise LabelError(
                f"{where(i)}: the label {describe(label)}: all labels must be integers, or all must be names"
            )
    known = tuple(sorted({str(label) for label in labels})) if names is None else names
    number_of = {name: number for number, name in enumerate(known)}
    for i, label in enumerate(labels):
        if label not in number_of:
            some = ", ".join(known[:10]) + (" ..." if len(known) > 10 else "")
            raise LabelError(f"{where(i)}: unknown class {describe(label)}: the classes are {some}")
    return [number_of[str(label)] for label in labels], known


def _explain_mixed(labels: Sequence[object], numbers: int, where: Callable[[int], str]) -> str:
    """Explains that some labels are integers and some are not, with the first five of the fewer."""
    others = len(labels) - numbers
    odd = [i for i, label in enumerate(labels) if is_integer(label) == (numbers < others)]
    shown = ", ".join(f"{describe(labels[i])} ({where(i)})" for i in odd[:5]) + (" ..." if len(odd) > 5 else "")
    return (
        f"the {len(labels):,} labels are {counted(numbers, 'integer')} and {counted(others, 'other')}, but all must be "
        f"integers, or all must be names: correct {shown}; or, for a table, give `--classes FILE` with all labels as "
        f"names"
    )


def fingerprint(records: Iterable[Record], classes: Sequence[str] | None) -> str:
    """Returns 32 hex digits that identify keys, sizes, fields and classes."""
    digest = hashlib.blake2b(repr(classes).encode(), digest_size=16)
    for record in records:
        members = b"\0".join(record.fields.values())
        digest.update(b"%s\0%d\0%s\n" % (os.fsencode(record.key), record.size_bytes or 0, members))
    return digest.hexdigest()


def unique_keys(records: Iterable[Record]) -> list[str]:
    """Returns the records' keys; a repeated one gets the suffix `-1`, `-2` and so on."""
    keys: dict[str, None] = {}
    repeated: Counter[str] = Counter()  # the last suffix of each: thousands of shards may have the same keys
    for record in records:
        given = key = record.key
        while key in keys:
            repeated[given] += 1
            key = f"{given}-{repeated[given]}"
        keys[key] = None
    return list(keys)


def _read_file(record: Record, *, mask: str | None = None) -> SourceSample:
    fields = record.fields if mask is None else {**record.fields, MASK: read_picture(mask)}
    return SourceSample(read_picture(record.name), None, fields)


def _file_sizes(paths: Sequence[str], where: Callable[[int], str]) -> list[int]:
    sizes: list[int] = []
    missing: list[str] = []
    for i, path in enumerate(paths):
        try:
            sizes.append(Path(path).stat().st_size)
        except (FileNotFoundError, NotADirectoryError):
            sizes.append(0)
            missing.append(f"{path} ({where(i)})")
        except (OSError, ValueError) as error:  # a folder that may not be read, a name that is too long, a null byte
            raise PackError(f"{where(i)}: {path} cannot be read: {error}") from None
    if missing:
        shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise PackError(
            f"{len(missing)} of {counted(len(paths), 'picture')} cannot be found: {shown}: correct or remove these "
            f"entries"
        )
    return sizes


def _key_below(path: str, folder: str) -> str:
    """Returns the path below the folder, without extension or dots in the file's name: a key ends at the first dot."""
    below = path[len(folder) :] if path.startswith(folder.rstrip("/") + "/") else path
    parents, _, file_name = below.lstrip("/").rpartition("/")
    # Loaders leave out what is in a tar's hidden folders.
    parents = "/".join(f"_{name}" if in_hidden_folder(f"{name}/") else name for name in parents.split("/"))
    stem = (file_name.rpartition(".")[0] or file_name).replace(".", "_")
    return f"{parents}/{stem}" if parents else stem
