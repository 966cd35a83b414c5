"""Tables of pictures: CSV and JSON Lines with the columns path and label, and pairs of the two."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpuloader.base.values import is_integer
from gpuloader.errors import NoSamplesError, PackError
from gpuloader.pack.records import FoundNames, OpenedSource, Picture, open_pictures

SUFFIXES = (".csv", ".jsonl")

_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,18})(\.0+)?\s*")  # pandas writes 3.0 if another row has no label


def table(file: Path, classes: Sequence[str] | None) -> OpenedSource:
    """Opens a table, one picture a row; columns other than path and label become the fields of its `json`."""
    folder = str(file.absolute().parent)
    parse = partial(_parsed, classes=classes)
    return open_pictures(folder, _pictures(file, folder), classes, origin=f"{file}, line ", parse=parse)


def pairs(items: Sequence[tuple[str | os.PathLike[str], object]], classes: Sequence[str] | None) -> OpenedSource:
    """Opens paths and labels from a list of pairs."""
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path, _ in items])  # noqa: PTH100, PTH120
    return open_items(folder, items, classes)


def open_items(folder: str, items: Iterable[tuple[Any, object]], classes: Sequence[str] | None) -> OpenedSource:
    """Opens pairs of a path and a label, with keys relative to the folder."""
    pictures = (Picture(os.path.abspath(path), label, place=i) for i, (path, label) in enumerate(items))  # noqa: PTH100
    return open_pictures(folder, pictures, classes, origin="item ")


def _pictures(file: Path, folder: str) -> Iterator[Picture]:
    line = None
    try:
        for line, row in _csv_rows(file) if file.suffix.lower() == ".csv" else _json_rows(file):
            path, label = row.get("path"), row.get("label")
            if not isinstance(path, str) or not path or label is None:
                raise PackError(
                    f"{file}, line {line}: no path or no label; its columns are {', '.join(map(repr, row))}"
                )
            further = {name: value for name, value in row.items() if name not in ("path", "label")}
            content = json.dumps(further, ensure_ascii=False).encode() if further else None
            whole = os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - Path is slow for millions
            yield Picture(whole, label, content, place=line)
    except (UnicodeError, csv.Error) as error:
        raise PackError(f"{file} cannot be read as a table in UTF-8: {error}") from None
    if line is None:
        raise NoSamplesError(f"{file} has no rows")


def _csv_rows(file: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        columns = reader.fieldnames or []
        if not {"path", "label"} <= set(columns):
            raise PackError(
                f"{file} has the columns {', '.join(map(repr, columns))}: its first line must name path and label"
            )
        for row in reader:
            if None in row or None in row.values():
                raise PackError(
                    f"{file}, line {reader.line_num}: it does not have {len(columns)} columns, as the first line has"
                )
            yield reader.line_num, row


def _json_rows(file: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise PackError(f"{file}, line {number} is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise PackError(f"{file}, line {number} is not a JSON object such as {{'path': 'a.jpg', 'label': 3}}")
            if isinstance(label := row.get("label"), float):
                text = json.loads(line, parse_float=str)["label"]  # 1e3 is 1000.0, too, but no integer
                row["label"] = text if isinstance(text, str) and _INTEGER.fullmatch(text) else label
            yield number, row


def _parsed(labels: Sequence[object], classes: Sequence[str] | None) -> list[object]:
    """Returns the labels that are integers, as a text or a number, as numbers, and others unchanged.

    If `classes` names all labels, it returns all as texts. Names that the destination has do so only if some label is
    no integer, because bare numbers could also be the numbers of those names.
    """
    texts = [str(label) if is_integer(label) else label if isinstance(label, str) else None for label in labels]
    found = [_INTEGER.fullmatch(text or "") for text in texts]
    named = classes is not None and {*texts} <= {*classes}
    if named and not (isinstance(classes, FoundNames) and all(found)):
        return [*texts]
    return [int(number[1]) if number else label for number, label in zip(found, labels, strict=True)]
