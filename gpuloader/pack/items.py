"""Datasets like torchvision's as a source: any object that returns (image, label) for a number."""

from __future__ import annotations

import ast
import operator
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image

from gpuloader.errors import ConfigError, LabelError, NoSamplesError, PackError
from gpuloader.images.limits import RefusalError
from gpuloader.pack.records import OpenedSource, Record, SourceSample, fingerprint, read_picture
from gpuloader.pack.tables import open_items
from gpuloader.shards.paths import user_path

TORCHVISION = "torchvision:"


Open: TypeAlias = Callable[[], Sequence[Any]]
"""Opens a dataset; it is pickled to a process, which then opens the dataset for itself."""


@cache
def _open_torchvision(class_name: str, root: str, texts: tuple[str, ...]) -> Sequence[Any]:
    """Opens a dataset of torchvision; `texts` are its further arguments, such as `train=False`."""
    try:
        from torchvision import datasets
    except (ImportError, RuntimeError) as error:  # RuntimeError: it does not fit the installed torch
        raise PackError(f"{TORCHVISION}{class_name} needs torchvision, which cannot be imported: {error}") from None
    kind = getattr(datasets, class_name, None)
    if not isinstance(kind, type):
        raise PackError(f"torchvision.datasets has no {class_name!r}")
    options = {name: _value(value) for name, _, value in (text.partition("=") for text in texts)}
    try:
        return kind(root, **options)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise PackError(f"torchvision.datasets.{class_name}({root!r}, **{options}): {error}") from error


def torchvision_dataset(text: str) -> OpenedSource:
    """Opens `torchvision:NAME:ROOT`, with `:OPTION=VALUE` for each further argument of the dataset."""
    name, _, rest = text.removeprefix(TORCHVISION).partition(":")
    root, *options = rest.split(":")
    if not name or not root or not all("=" in option for option in options):
        raise ConfigError(f"{text!r}: allowed is torchvision:NAME:ROOT, such as torchvision:CIFAR10:ROOT:train=False")
    return _source(partial(_open_torchvision, name, str(user_path(root).absolute()), tuple(options)))


def given_dataset(items: Sequence[Any]) -> OpenedSource:
    """Opens a dataset that is an object: a sequence of (image, label)."""
    return _source(partial(_given, items))


def _given(items: Sequence[Any]) -> Sequence[Any]:
    return items


def _source(open_dataset: Open) -> OpenedSource:
    dataset = open_dataset()
    if any(getattr(dataset, name, None) is not None for name in ("transform", "target_transform", "transforms")):
        raise ConfigError("the dataset has transforms, which would be packed, too: make it without transform=")
    classes = getattr(dataset, "classes", None)
    names = None
    if isinstance(classes, (list, tuple)):  # ImageNet's classes have several names; the first is the usual one
        names = tuple(str(each[0] if isinstance(each, tuple) else each) for each in classes)
    samples = getattr(dataset, "samples", None)
    if isinstance(samples, list) and samples and isinstance(samples[0][0], str):  # DatasetFolder: files to copy
        root = str(Path(getattr(dataset, "root", "/")).absolute())
        return open_items(root, samples, names)
    if not len(dataset):
        raise NoSamplesError("the dataset is empty")
    read = partial(_read_item, open_dataset)
    records = [Record(f"item {i}", f"{i:08d}", None, {}, read) for i in range(len(dataset))]
    return OpenedSource(records, fingerprint(records, (type(dataset).__qualname__, *(names or ()))), names)


def _read_item(open_dataset: Open, record: Record) -> SourceSample:
    try:
        item = open_dataset()[int(record.key)]
    except (OSError, SyntaxError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk; Pillow's errors about an image have no number
        raise RefusalError(f"its dataset cannot decode it: {error}") from None
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise PackError(f"{record.name} of the dataset is a {type(item).__name__}: it must be (image, label)")
    image, label = item
    if isinstance(image, (str, os.PathLike)):
        image = read_picture(image)
    if not isinstance(image, (bytes, Image.Image)):
        raise PackError(
            f"{record.name} of the dataset has a {type(image).__name__} as its image: allowed are PIL images, "
            "encoded bytes and paths"
        )
    try:
        number = operator.index(label)
    except TypeError:
        raise LabelError(f"{record.name} of the dataset has the label {label!r}: it must be an integer") from None
    return SourceSample(image, None, {"cls": b"%d" % number})


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
