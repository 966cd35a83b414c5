"""Finds the source of pictures that the caller names."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from gpuloader.errors import ConfigError, GPULoaderError, PackError, describe
from gpuloader.pack import tables
from gpuloader.pack.coco import coco
from gpuloader.pack.folders import class_folders
from gpuloader.pack.hugging_face import hugging_face, is_saved_dataset
from gpuloader.pack.items import TORCHVISION, given_dataset, torchvision_dataset
from gpuloader.pack.options import Options
from gpuloader.pack.parallel_folders import with_targets_beside
from gpuloader.pack.records import FoundNames, OpenedSource
from gpuloader.pack.tars import class_tars, tars
from gpuloader.pack.voc import is_voc, voc
from gpuloader.shards.paths import resolve_local, user_path

_COCO = ".json"

PictureSource: TypeAlias = "str | os.PathLike[str] | Sequence[Any]"
"""A folder, a table, annotations, tars, `torchvision:NAME:ROOT`, or a sequence of (image or path, label)."""


def open_source(source: PictureSource, options: Options, progress: bool = False) -> OpenedSource:
    """Opens `source`: its samples are listed and labelled, but not read.

    Args:
        progress: show a bar on stderr if listing the samples means reading them.
    """
    try:
        opened = _named(source, options)
        if opened is None and options.classes is not None and not isinstance(options.classes, FoundNames):
            raise ConfigError(
                "classes numbers the names of class folders and tables, but the labels of this source are numbers "
                "already"
            )
        opened = opened or _numbered(source, progress)
    except GPULoaderError:  # some are OSErrors, too
        raise
    except OSError as error:
        raise PackError(
            f"the source of pictures cannot be read: {error}: check the path and your right to read it"
        ) from None
    if opened.fit is not None and (options.max_size is not None or options.decoded is not None):
        raise ConfigError(
            "max_size and decoded change the sizes of pictures, but boxes and masks fit the sizes that they have: "
            "leave both out, and resize in the recipe"
        )
    return opened


def _named(source: PictureSource, options: Options) -> OpenedSource | None:
    """Opens a source whose labels may be names; None if it is of another kind."""
    names, images = options.classes, options.images
    path = user_path(source) if isinstance(source, (str, os.PathLike)) else None
    if path is not None and path.suffix.lower() == _COCO and (images is not None or path.is_file()):
        return coco(path, images, names)
    if images is not None:
        raise ConfigError("images names the folder of the pictures of a COCO FILE.json: leave it out for other sources")
    if options.tars_are_classes and (path is None or not path.is_dir()):
        raise ConfigError(f"tars_are_classes with {describe(source)}: allowed is a folder of CLASS.tar")
    if path is None:
        is_table = isinstance(source, (list, tuple)) and source and all(map(_is_path_pair, source))
        return tables.pairs(source, names) if is_table else None  # type: ignore[arg-type]
    if path.is_file() and path.suffix.lower() in tables.SUFFIXES:
        return tables.table(path, names)
    if (path.is_file() or path.is_dir()) and is_voc(path):
        return voc(path, names)
    if options.tars_are_classes or (path.is_file() and path.suffix == ".tar"):
        return class_tars(path, names)
    if not path.is_dir() or is_saved_dataset(path) or any(path.glob("*.tar")):
        return None
    return with_targets_beside(path, names) or class_folders(path, names)


def _numbered(source: PictureSource, progress: bool) -> OpenedSource:
    """Opens a source whose labels are numbers already."""
    if not isinstance(source, (str, os.PathLike)):
        return given_dataset(source)
    text = os.fspath(source)
    if text.startswith(TORCHVISION):
        return torchvision_dataset(text)
    path = user_path(text)
    if path.is_dir() and is_saved_dataset(path):
        return hugging_face(path)
    if not (_exists(path) or glob.has_magic(text) or "{" in text or "://" in text):
        raise PackError(f"no such source: {text} (relative to {Path.cwd()})")
    if path.is_file() and path.suffix.lower() != ".tar":
        raise PackError(
            f"{text} is not a source of pictures: allowed are folders, FILE.csv, FILE.jsonl, FILE.json of COCO, "
            "ImageSets/Main/LIST.txt of Pascal VOC and FILE.tar"
        )
    shards = resolve_local(text)
    paths = [shard for shard in shards if isinstance(shard, Path)]
    if len(paths) < len(shards):
        raise PackError(f"{text} names folders of pictures: pack one folder at a time, by its path")
    return tars(paths, progress)


def _exists(path: Path) -> bool:
    """Returns whether a path exists. A path that may not be read raises, unlike `Path.exists` in Python 3.14."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # or a name that no file can have
        return False
    return True


def _is_path_pair(item: object) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], (str, os.PathLike))
