"""Recognises pictures and hidden folders by their names."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

from gpuloader.base.text import counted
from gpuloader.errors import describe

ARRAY_EXTENSION = "npy"
"""The extension of decoded images, see `gpuloader.images.arrays`, and of other arrays."""

JPEG_EXTENSIONS = ("jpg", "jpeg", "jfif", "jpe")
IMAGE_EXTENSIONS = (*JPEG_EXTENSIONS, "png", "webp", "bmp", "tif", "tiff", "jp2", "ppm", "pgm", "pnm", ARRAY_EXTENSION)
"""The extensions of images. If a sample has several images, the first in this order is used."""

SOURCE_EXTENSIONS = (*IMAGE_EXTENSIONS, "gif", "avif")
"""The extensions of images that `gpuloader pack` reads; for a loader, the last two are in no sample."""

PICTURE_ENDINGS = tuple(f".{extension}" for extension in IMAGE_EXTENSIONS)

_HIDDEN = re.compile(r"(?:^|/)(?:\.(?!\.?/)[^/]*|__MACOSX|@eaDir)/")  # "./" and "../" are not hidden
_log = logging.getLogger("gpuloader")


def is_picture(path: str, extensions: Collection[str] = IMAGE_EXTENSIONS) -> bool:
    """Returns whether a file is a picture, or a decoded one, by its name; False for hidden files."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2].lower() in extensions and "." in name and not name.startswith(".")


def only_for_pack(name: str) -> str | None:
    """Returns that only `gpuloader pack` reads a file of this name; None for other files."""
    kind = name.rpartition(".")[2].lower()
    only = kind in SOURCE_EXTENSIONS and kind not in IMAGE_EXTENSIONS
    return f"{kind.upper()}, which no loader reads: `gpuloader pack` converts it to PNG" if only else None


def in_hidden_folder(path: str) -> bool:
    """Returns whether a path in a folder or a tar leads through a hidden folder, so that it is left out.

    Hidden are folders whose names begin with a dot, `__MACOSX` and `@eaDir`. The path of a folder ends in a slash.
    """
    return "/" in path and _HIDDEN.search(path) is not None


def warn_of_hidden(shard: object, count: int, first: str) -> None:
    """Logs how many pictures are in hidden folders, and the first of them with its shard, if there are any."""
    if count:
        text = "left out, in hidden folders: %s, the first being %s in %s"
        _log.warning(text, counted(count, "picture"), describe(first, 500), shard)
