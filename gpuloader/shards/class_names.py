"""Reads `classes.json` beside shards: the names of the classes, as a list or as {name: label}.

It can also be {"names": list, "ids": list}, with the class ids of a COCO file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuloader.base.regular_file import read_regular
from gpuloader.base.values import is_integer
from gpuloader.errors import DataError, LabelError, describe
from gpuloader.shards.pictures import PICTURE_ENDINGS

CLASSES_FILE = "classes.json"
MOST_CLASSES_BYTES = 64 << 20  # the names of 21,841 classes take some 0.6 MB
_log = logging.getLogger("gpuloader")


def read_class_names(folder: Path) -> dict[int, str]:
    """Reads the names of the classes, label -> name; empty if the folder has no `classes.json`.

    Raises:
        DataError: the content of the file is invalid.
    """
    path = folder / CLASSES_FILE
    try:
        content = json.loads(read_regular(path, MOST_CLASSES_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    content = listed_names(content)
    if isinstance(content, list) and all(isinstance(name, str) for name in content):
        return dict(enumerate(content))
    if isinstance(content, dict) and all(is_integer(label, -(2**63), 2**63) for label in content.values()):
        return {label: name for name, label in content.items()}
    raise DataError(
        f"{path}: allowed are a list of class names, {{name: label}} with 64-bit labels, and {{'names': list, "
        "'ids': list}"
    )


def listed_names(content: Any) -> Any:  # noqa: ANN401 - JSON
    """Returns the list of names in {"names": list, "ids": list}, and other content unchanged."""
    names = content.get("names") if isinstance(content, dict) and content.keys() == {"names", "ids"} else None
    return names if isinstance(names, list) else content


def as_list(names: Mapping[int, str]) -> tuple[str, ...] | None:
    """Returns the names, entry i for label i; None if there are none, or the labels are not 0, 1, ... n - 1."""
    listed = tuple(names[label] for label in range(len(names)) if label in names)
    return listed if listed and len(listed) == len(names) else None


def check_filled(folder: Path, empty: Sequence[str], classes: Collection[str] | None, advice: str) -> None:
    """Logs which class folders without pictures `classes` does not name; raises LabelError if there are no classes."""
    if empty and classes is None:
        raise LabelError(
            f"the class folder {folder / empty[0]} has no pictures, but would still count as a class: name all "
            f"classes, {advice}; or check its files' names (pictures end in {', '.join(PICTURE_ENDINGS)}; "
            f"only `gpuloader pack` takes .gif and .avif); or remove it"
        )
    if unnamed := [name for name in empty if name not in (classes or ())]:
        _log.warning("%s: left out, without pictures and not in classes: %s", folder, describe(unnamed, 500))
