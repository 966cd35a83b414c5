"""A source of pictures: its records, which know where a sample is and read it while it is packed."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from PIL import Image

from gpuloader.errors import LabelError, NoSamplesError, PackError, describe
from gpuloader.helpers.regular_file import read_regular
from gpuloader.helpers.text import counted
from gpuloader.helpers.values import is_integer

MOST_PICTURE_BYTES = 1 << 32
_LARGEST_LABEL = 10**18 - 1  # with the digits that a scan reads


class SourceSample(NamedTuple):
    """A sample as its source has it.

    Attributes:
        image: the encoded image, or the image.
        extension: of the image's member; None if the image's format decides it.
        fields: the other members by extension: `cls`, `json` and so on.
    """

    image: bytes | Image.Image
    extension: str | None
    fields: Mapping[str, bytes]


class Record(Protocol):
    """Where one sample is; small, and pickled to the process that packs the sample.

    Attributes:
        name: for people, such as a path.
        key: the sample's name; several records may share one.
        size_bytes: of what is to be read; None if only reading shows it.
    """

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def size_bytes(self) -> int | None: ...

    def read(self) -> SourceSample:
        """Reads it.

        Raises:
            Refused: it is not a picture; it is left out.
        """


@dataclass(frozen=True)
class OpenedSource:
    """Samples to be packed.

    Attributes:
        records: one for each sample, in the source's order.
        fingerprint: hex digits that stand for all samples, wherever they are stored.
        classes: the classes' names, entry i for label i; None if labels are bare numbers.
        left_out_count: how many files or members belong to no sample.
        class_ids: the classes' ids in the source, entry i for label i, None for a class that it lacks; None if it has
            no such ids.
        annotated: the records have places in the pictures, such as boxes and masks, so the pictures keep their sizes.
    """

    records: Sequence[Record]
    fingerprint: str
    classes: tuple[str, ...] | None = None
    left_out_count: int = 0
    class_ids: tuple[int | None, ...] | None = None
    annotated: bool = False


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A picture in a file of its own."""

    name: str
    key: str
    size_bytes: int
    label: int
    json: bytes | None = None

    def read(self) -> SourceSample:
        fields = {"cls": b"%d" % self.label}
        if self.json is not None:
            fields["json"] = self.json
        return SourceSample(read_picture(self.name), None, fields)


def read_picture(path: str | os.PathLike[str]) -> bytes:
    """Reads the bytes of a picture in a file of its own.

    Raises:
        PackError: it cannot be read, is not a regular file, or is larger than any picture.
    """
    try:
        return read_regular(Path(path), MOST_PICTURE_BYTES)
    except OSError as error:
        raise PackError(
            f"the picture {os.fspath(path)} cannot be read ({error.strerror}): correct or remove it"
        ) from None


def labelled_files(
    folder: str,
    paths: Sequence[str],
    labels: Sequence[object],
    classes: Sequence[str] | None,
    *,
    where: Callable[[int], str],
    fields: Sequence[bytes | None] | None = None,
    left_out_count: int = 0,
) -> OpenedSource:
    """Opens pictures in files as a source.

    Args:
        folder: absolute, the root that keys are relative to.
        paths: absolute.
        labels: all integers, or all names.
        classes: the names that labels are numbered by; None takes the sorted names that occur.
        where: names the i-th sample's origin, for errors.
        fields: for each sample, the content of its `json`.

    Raises:
        LabelError: a label is neither, or is not in `classes`.
        PackError: files are missing.
        NoSamplesError: there are no files.
    """
    if not paths:
        raise NoSamplesError(f"no pictures in {folder}")
    numbers, names = number_labels(labels, classes, where)
    sizes = file_sizes(paths, where)
    records = [
        FileRecord(path, key_below(path, folder), size, number, json)
        for path, size, number, json in zip(paths, sizes, numbers, fields or [None] * len(paths), strict=True)
    ]
    identity = (
        b"%s\0%d\0%d\0%s\n" % (os.fsencode(record.key), record.size_bytes, record.label, record.json or b"")
        for record in records
    )
    return OpenedSource(records, fingerprint(identity, names), names, left_out_count)


def file_sizes(paths: Sequence[str], where: Callable[[int], str]) -> list[int]:
    """Returns the sizes of files in bytes; `where` names the i-th file's origin.

    Raises:
        PackError: files are missing.
    """
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


def number_labels(
    labels: Sequence[object], classes: Sequence[str] | None, where: Callable[[int], str]
) -> tuple[list[int], tuple[str, ...] | None]:
    """Returns labels as numbers, and the names of the numbers."""
    names = None if classes is None else tuple(classes)
    numbers = [label for label in labels if is_integer(label)]
    if len(numbers) == len(labels):
        for i, number in enumerate(numbers):
            if names is not None and not 0 <= number < len(names):
                raise LabelError(
                    f"{where(i)}: unknown class {describe(number)}: there are {len(names)} classes, from 0 on"
                )
            if abs(number) > _LARGEST_LABEL:
                raise LabelError(f"{where(i)}: the label {describe(number)} has more than 18 digits")
        return numbers, names
    for i, label in enumerate(labels):
        if not isinstance(label, str) or not label:
            raise LabelError(
                f"{where(i)}: the label {describe(label)}: all labels must be integers, or all must be names"
            )
    texts = [str(label) for label in labels]
    known = tuple(sorted(set(texts))) if names is None else names
    number_of = {name: number for number, name in enumerate(known)}
    for i, text in enumerate(texts):
        if text not in number_of:
            some = ", ".join(known[:10]) + (" ..." if len(known) > 10 else "")
            raise LabelError(f"{where(i)}: unknown class {describe(text)}: the classes are {some}")
    return [number_of[text] for text in texts], known


def fingerprint(identities: Iterable[bytes], classes: Sequence[str] | None) -> str:
    """Returns 32 hex digits that stand for samples and their classes."""
    digest = hashlib.blake2b(repr(classes).encode(), digest_size=16)
    for identity in identities:
        digest.update(identity)
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


def key_below(path: str, folder: str) -> str:
    """Returns the path below the folder, without extension or dots in the file's name: a key ends at the first dot."""
    below = path[len(folder) :] if path.startswith(folder.rstrip("/") + "/") else path
    parents, _, file_name = below.lstrip("/").rpartition("/")
    stem = (file_name.rpartition(".")[0] or file_name).replace(".", "_")
    return f"{parents}/{stem}" if parents else stem
