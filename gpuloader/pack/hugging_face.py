"""A Hugging Face dataset on disk as a source, as `Dataset.save_to_disk` writes it."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

from gpuloader.errors import ConfigError, LabelError, NoSamplesError, PackError
from gpuloader.images.limits import RefusalError
from gpuloader.pack.records import OpenedSource, Record, SourceSample, fingerprint, read_picture

_DICTIONARY = "dataset_dict.json"


def is_saved_dataset(folder: Path) -> bool:
    """Returns whether `save_to_disk` wrote this folder."""
    return any((folder / name).exists() for name in (_DICTIONARY, "dataset_info.json"))


def hugging_face(folder: Path) -> OpenedSource:
    """Opens rows with an Image column and a ClassLabel or integer column `label`; others go into `json`."""
    if (folder / _DICTIONARY).exists():
        splits = ", ".join(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
        raise ConfigError(f"{folder} is a dataset with several splits, pack one at a time: {folder}/SPLIT of {splits}")
    try:
        import pyarrow.compute
        from datasets import ClassLabel, Image, Value
    except ImportError as error:
        raise ConfigError(f"{folder} needs the package datasets: pip install 'gpuloader[datasets]' ({error})") from None
    features = _load(str(folder)).features
    images = [name for name, feature in features.items() if isinstance(feature, Image)]
    if len(images) != 1:
        raise ConfigError(f"{folder} has the Image columns {images}: there must be exactly one; remove the others")
    named = [name for name, feature in features.items() if isinstance(feature, ClassLabel)]
    label = "label" if "label" in features or len(named) != 1 else named[0]
    kind = features.get(label)
    if not (isinstance(kind, ClassLabel) or (isinstance(kind, Value) and "int" in kind.dtype)):
        raise ConfigError(
            f"{folder} has the columns {', '.join(features)}: one must be called label and be a ClassLabel or an "
            "integer; rename it with rename_column"
        )
    path, image = str(folder.absolute()), images[0]
    table = _open(path, image).data
    labels = table.column(label).to_pylist()
    if not labels:
        raise NoSamplesError(f"{folder} has no rows")
    classes = tuple(kind.names) if isinstance(kind, ClassLabel) else None
    row = next((i for i, value in enumerate(labels) if value is None or (classes is not None and value < 0)), None)
    if row is not None:
        raise LabelError(f"row {row} of {folder} has no label ({labels[row]}): remove such rows")
    encoded = pyarrow.compute.struct_field(table.column(image), "bytes")
    sizes = pyarrow.compute.binary_length(encoded).to_pylist()
    read = partial(_read_row, path, image, label)
    records = [
        Record(f"row {i} of {path}", f"{i:08d}", size, {"cls": b"%d" % number}, read)
        for i, (size, number) in enumerate(zip(sizes, labels, strict=True))
    ]
    return OpenedSource(records, fingerprint(records, classes), classes)


def _read_row(folder: str, image_column: str, label_column: str, record: Record) -> SourceSample:
    row = dict(_open(folder, image_column)[int(record.key)])
    image = row.pop(image_column)
    row.pop(label_column)
    if image is None:
        raise RefusalError("the row has no image")
    try:
        further = {"json": json.dumps(row, ensure_ascii=False).encode()} if row else {}
    except TypeError as error:
        raise PackError(f"{record.name}: {error}: JSON cannot hold that column, remove it") from None
    return SourceSample(image["bytes"] or read_picture(image["path"]), None, {**record.fields, **further})


@cache
def _open(folder: str, image: str) -> Any:  # noqa: ANN401 - a Dataset
    """Opens the dataset, with its images as bytes."""
    from datasets import Image

    return _load(folder).cast_column(image, Image(decode=False))


def _load(folder: str) -> Any:  # noqa: ANN401
    from datasets import load_from_disk

    try:
        return load_from_disk(folder)
    except (OSError, ValueError, KeyError) as error:
        raise PackError(f"{folder} cannot be read as a Hugging Face dataset: {error}") from None
