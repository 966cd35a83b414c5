"""Finds the source of pictures that the caller names."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from gpuloader.errors import ConfigError, GPULoaderError, PackError
from gpuloader.pack import tables
from gpuloader.pack.beside import targets_beside, with_targets
from gpuloader.pack.coco import coco
from gpuloader.pack.folders import class_folders
from gpuloader.pack.hugging_face import hugging_face
from gpuloader.pack.items import TORCHVISION, given_dataset, torchvision_dataset
from gpuloader.pack.records import OpenedSource
from gpuloader.pack.tars import tars
from gpuloader.pack.voc import is_voc, voc
from gpuloader.shards.paths import resolve_local, user_path

_COCO = ".json"

PictureSource: TypeAlias = "str | os.PathLike[str] | Sequence[Any]"
"""A folder, a table, annotations, tars, `torchvision:NAME:ROOT`, or a sequence of (image or path, label)."""


def open_source(
    source: PictureSource,
    classes: Sequence[str] | None,
    progress: bool,
    default_classes: Sequence[str] | None = None,
    images: Path | None = None,
) -> OpenedSource:
    """Opens `source`: its samples are listed and labelled, but not read.

    Args:
        classes: the names that labels are numbered by; only for a source with names, not numbers.
        default_classes: the same, but ignored if the labels are numbers already.
        images: the folder of the pictures; only for an annotation file of COCO.
        progress: show a bar on stderr if listing the samples means reading them.

    Raises:
        ConfigError: the source is ambiguous.
        PackError: it is missing or cannot be read.
        LabelError: a sample without a label, or with an unknown class.
        NoSamplesError: it has no pictures.
        TarError: a tar is invalid.
    """
    try:
        if images is not None:
            return coco(_coco_file(source), images, default_classes if classes is None else classes)
        return _open(source, classes, progress, default_classes)
    except GPULoaderError:
        raise
    except OSError as error:
        raise PackError(
            f"the source of pictures cannot be read: {error}: check the path and your right to read it"
        ) from None


def _open(
    source: PictureSource, classes: Sequence[str] | None, progress: bool, default_classes: Sequence[str] | None
) -> OpenedSource:
    names = default_classes if classes is None else classes
    if not isinstance(source, (str, os.PathLike)):
        if isinstance(source, (list, tuple)) and source and all(_is_path_pair(item) for item in source):
            return tables.pairs(source, names)
        return _numbered_already(given_dataset(source), classes)
    text = os.fspath(source)
    if text.startswith(TORCHVISION):
        return _numbered_already(torchvision_dataset(text), classes)
    path = user_path(text)
    if path.is_file() and path.suffix.lower() in tables.SUFFIXES:
        return tables.table(path, names)
    if path.is_file() and path.suffix.lower() == _COCO:
        return coco(path, None, names)
    if path.is_file() and is_voc(path):
        return voc(path, names)
    if path.is_dir():
        if (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists():
            return _numbered_already(hugging_face(path), classes)
        if not any(path.glob("*.tar")):
            return _folder(path, names)
    elif not (_exists(path) or glob.has_magic(text) or "{" in text or "://" in text):
        raise PackError(f"no such source: {text} (relative to {Path.cwd()})")
    elif path.is_file() and path.suffix.lower() != ".tar":
        raise PackError(
            f"{text} is not a source of pictures: allowed are folders, FILE.csv, FILE.jsonl, FILE.json of COCO, "
            "ImageSets/Main/LIST.txt of Pascal VOC and FILE.tar"
        )
    shards = resolve_local(text)
    paths = [shard for shard in shards if isinstance(shard, Path)]
    if len(paths) < len(shards):
        raise PackError(f"{text} names folders of pictures: pack one folder at a time, by its path")
    return _numbered_already(tars(paths, progress), classes)


def _folder(path: Path, names: Sequence[str] | None) -> OpenedSource:
    if is_voc(path):
        return voc(path, names)
    targets = targets_beside(path)
    return class_folders(path, names) if targets is None else with_targets(path, targets, names)


def _coco_file(source: PictureSource) -> Path:
    if isinstance(source, (str, os.PathLike)) and (path := user_path(source)).suffix.lower() == _COCO:
        return path
    raise ConfigError("images names the folder of the pictures of a COCO FILE.json: leave it out for other sources")


def _exists(path: Path) -> bool:
    """Does what `Path.exists` does, which since Python 3.14 is also false for what may not be read."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # or a name that no file can have
        return False
    return True


def _is_path_pair(item: object) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], (str, os.PathLike))


def _numbered_already(source: OpenedSource, classes: Sequence[str] | None) -> OpenedSource:
    if classes is not None:
        raise ConfigError(
            "classes numbers the names of class folders and tables, but the labels of this source are numbers already"
        )
    return source
