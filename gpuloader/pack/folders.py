"""Class folders, read as torchvision's ImageFolder reads them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpuloader.errors import ConfigError, NoSamplesError, PackError
from gpuloader.pack.records import Source, labelled_files
from gpuloader.shards.index import IMAGE_EXTENSIONS

_SPLITS = {"train", "val", "valid", "validation", "test"}
_ENDINGS = tuple(f".{extension}" for extension in IMAGE_EXTENSIONS)


def class_folders(folder: Path, classes: Sequence[str] | None) -> Source:
    """FOLDER/CLASS/.../PICTURE: classes count from 0 by sorted name, pictures come class by class, sorted by path.

    Files whose name has no extension of a picture's are passed over.

    Raises:
        NoSamplesError: no class folders, or one without a picture.
        ConfigError: the folders are splits rather than classes.
        LabelError: a folder that `classes` lacks.
    """
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise NoSamplesError(
            f"{folder} has neither class folders (CLASS/PICTURE.jpg) nor *.tar; a table of pictures is given as "
            "FILE.csv or FILE.jsonl, with the columns path and label"
        )
    if set(names) <= _SPLITS:
        raise ConfigError(
            f"{folder} has the splits {', '.join(names)} where classes are meant: pack one at a time, "
            f"{folder / names[0]}"
        )
    root = str(folder.absolute())
    paths: list[str] = []
    labels: list[str] = []
    files = 0
    for name in names:
        before = len(paths)
        for inner, _, file_names in sorted(os.walk(f"{root}/{name}", onerror=_raise, followlinks=True)):
            if (real := os.path.realpath(inner)) in map(os.path.realpath, Path(inner).parents):
                raise PackError(f"{inner} is a link to {real}, which it lies in: remove it, or it has no end")
            files += len(file_names)
            paths += [f"{inner}/{file}" for file in sorted(file_names) if _is_picture(file)]
        if len(paths) == before:
            raise NoSamplesError(
                f"the class folder {folder / name} has no pictures, and would still count as a class: remove it, or "
                f"look at its files' names (pictures end in {', '.join(_ENDINGS)})"
            )
        labels += [name] * (len(paths) - before)
    passed_over = files - len(paths)
    # Without names given, folders that are called by numbers are names as well, as ImageFolder has it.
    return labelled_files(root, paths, labels, classes, place=lambda i: paths[i], passed_over=passed_over)


def _raise(error: OSError) -> None:
    raise error  # where os.walk would leave out a folder that cannot be read


def _is_picture(file_name: str) -> bool:
    return file_name.lower().endswith(_ENDINGS) and not file_name.startswith(".")
