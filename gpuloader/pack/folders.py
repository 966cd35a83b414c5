"""Class folders, read as torchvision's ImageFolder reads them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpuloader.errors import ConfigError, NoSamplesError, PackError
from gpuloader.pack.records import OpenedSource, labelled_files
from gpuloader.shards.folder import PICTURE_ENDINGS, is_picture
from gpuloader.shards.paths import SPLITS


def class_folders(folder: Path, classes: Sequence[str] | None) -> OpenedSource:
    """Opens FOLDER/CLASS/.../PICTURE: classes count from 0 by sorted name; pictures come as in GNU tar's `--sort=name`.

    Files whose names do not end in a picture's extension are skipped.

    Raises:
        NoSamplesError: there are no class folders, or one has no picture.
        ConfigError: the folders are splits instead of classes.
        LabelError: a folder that is not in `classes`.
    """
    entries = (entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    names = sorted(entries, key=os.fsencode)
    if not names:
        raise NoSamplesError(
            f"{folder} has neither class folders (CLASS/PICTURE.jpg) nor *.tar; for a table of pictures give FILE.csv "
            "or FILE.jsonl, with the columns path and label; for boxes or masks, a COCO FILE.json, a folder of Pascal "
            "VOC, or ROOT/images beside ROOT/labels or ROOT/masks"
        )
    if set(names) <= SPLITS:
        raise ConfigError(
            f"{folder} has the splits {', '.join(names)} instead of classes: pack one at a time, {folder / names[0]}"
        )
    root = str(folder.absolute())
    paths: list[str] = []
    labels: list[str] = []
    files = 0
    for name in names:
        found: list[str] = []
        for inner, _, file_names in os.walk(f"{root}/{name}", onerror=_raise, followlinks=True):
            if (real := os.path.realpath(inner)) in map(os.path.realpath, Path(inner).parents):
                raise PackError(f"{inner} is a link to {real}, a folder that contains it: remove the link")
            files += len(file_names)
            found += [f"{inner}/{file}" for file in file_names if is_picture(file)]
        if not found:
            raise NoSamplesError(
                f"the class folder {folder / name} has no pictures, but would still count as a class: remove it, or "
                f"check its files' names (pictures end in {', '.join(PICTURE_ENDINGS)})"
            )
        paths += sorted(found, key=lambda path: os.fsencode(path).split(b"/"))  # as in a tar
        labels += [name] * len(found)
    left_out_count = files - len(paths)
    # If no names are given, folders called by numbers count as names, as in ImageFolder.
    return labelled_files(root, paths, labels, classes, where=lambda i: paths[i], left_out_count=left_out_count)


def _raise(error: OSError) -> None:
    raise error  # os.walk would leave out a folder that cannot be read
