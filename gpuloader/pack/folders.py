"""Class folders, read as torchvision's ImageFolder reads them, except hidden folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpuloader.errors import ConfigError, DataError, NoSamplesError, PackError, describe
from gpuloader.pack.records import OpenedSource, Picture, open_pictures
from gpuloader.shards.class_names import check_filled
from gpuloader.shards.folder import list_files
from gpuloader.shards.pictures import SOURCE_EXTENSIONS, is_picture, warn_of_hidden
from gpuloader.shards.splits import SPLITS


def class_folders(folder: Path, classes: Sequence[str] | None) -> OpenedSource:
    """Opens FOLDER/CLASS/.../PICTURE: classes are numbered from 0 by sorted name, pictures sorted as by GNU tar.

    Files whose names do not end in a picture's extension are skipped.
    """
    try:
        listing = list_files(folder)
    except DataError as error:
        raise PackError(str(error)) from None
    names = listing.top_folders
    warn_of_hidden(folder, *listing.hidden)
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
    files = [*map(listing.name, range(len(listing))), *(name for name, _ in listing.others)]
    below = [name for name in files if "/" in name]
    pictures = (path for path in below if is_picture(path, SOURCE_EXTENSIONS))
    found = sorted(pictures, key=lambda path: os.fsencode(path).split(b"/"))  # as in a tar
    empty = sorted(set(names).difference(path.partition("/")[0] for path in found))
    check_filled(folder, empty, classes, f"classes={describe(sorted(names), 500)}, or the list in --classes FILE")
    root = str(folder.absolute())
    # If no names are given, folders called by numbers count as names, as in ImageFolder.
    labelled = (Picture(f"{root}/{path}", path.partition("/")[0]) for path in found)
    return open_pictures(root, labelled, classes, left_out_count=len(below) - len(found))
