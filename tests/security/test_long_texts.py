"""Errors and log lines about texts of megabytes, from any file: short, and with what to do at their end."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import jpeg, write_samples
from tar_bytes import END, extended, forged, member, padded, record

from gpuloader import BadImages, GPULoader, GPULoaderError, LabelFrom, Sampling
from gpuloader.pack import pack
from gpuloader.recipe import load_preset
from gpuloader.shards import ShardSet, make_labels, resolve_shards
from gpuloader.shards.splits import check_one_split

LONG = "x" * 1_000_000
SPACED = "word " * 200_000
CONTROLS = "\x1b\u202e" * 500_000
TEXTS = {"a word": LONG, "words": SPACED, "controls": CONTROLS}


def shard(path: Path, *members: tuple[str, bytes]) -> Path:
    """A tar of files whose names may have up to a megabyte."""
    parts = [
        extended(b"x", record(b"path", name.encode())) + forged(size=len(data)) + padded(data) for name, data in members
    ]
    path.write_bytes(b"".join([*parts, END]))
    return path


def load(tar: Any, state: dict[str, Any] | None = None, **options: Any) -> None:  # noqa: ANN401
    with GPULoader(tar, 1, None, **{"preset": "imagenet_eval", **options}) as loader:
        if state is not None:
            loader.load_state_dict({**loader.state_dict(), **state})
        list(loader)


def of_a_component(extension: str, text: str, folder: Path, **options: Any) -> None:  # noqa: ANN401
    tar = shard(folder / "a.tar", ("a.jpg", jpeg(20, 20)), (f"a.{extension}", text.encode()))
    load(tar, output="dict", **options)


def of_a_name(text: str, folder: Path, image: bytes = b"", beside: str = "txt", **options: Any) -> None:  # noqa: ANN401
    key = text[:200_000]
    load(shard(folder / "a.tar", (f"{key}/{key[:1000]}.jpg", image or jpeg(20, 20)), (f"b.{beside}", b"")), **options)


def of_a_file(name: str, text: str, folder: Path, **options: Any) -> None:  # noqa: ANN401
    (folder / name).write_text(text)
    write_samples(folder, 2, shards=1)
    load(folder / "train-0000.tar", **{option: make(folder / name) for option, make in options.items()})


def of_a_list_of_classes(text: str, folder: Path) -> None:
    for number, name in enumerate("ab"):
        write_samples(folder / name, 2, shards=1)
        (folder / name / "classes.json").write_text(json.dumps([text + name] * (number + 1)))
    load([folder / "a" / "train-0000.tar", folder / "b" / "train-0000.tar"])


def of_a_state(key: str, text: str, folder: Path) -> None:
    described = {"recipe": {text: text}} if key == "recipe" else {"shards": text}
    load(write_samples(folder, 2, shards=1), {key: text, "described": described})


def of_a_pax_size(text: str, folder: Path) -> None:
    (folder / "a.tar").write_bytes(extended(b"x", record(b"size", text[:200_000].encode())) + member("a.jpg") + END)
    load(folder / "a.tar")


def of_a_table(suffix: str, row: str, text: str, folder: Path) -> None:
    (folder / f"a{suffix}").write_text(row.replace("TEXT", json.dumps(text)[1:-1]))
    pack(str(folder / f"a{suffix}"), folder / "packed", workers=1)


def of_an_argument(name: str, text: str, folder: Path) -> None:
    load(write_samples(folder, 2, shards=1), **{name: text})


SOURCES: dict[str, tuple[Callable[[str, Path], object], str]] = {  # one of each error's class, and of each kind of file
    "a class in .cls": (
        partial(of_a_component, "cls", label_from=LabelFrom("cls", ["cat", "dog"])),
        "is not one of the 2 classes, such as 'cat', 'dog'",
    ),
    "a key in .json": (
        lambda text, folder: of_a_component("json", json.dumps({text: 1}), folder, label_from="json:k"),
        "; name the right one",
    ),
    "no .npy": (partial(of_a_component, "npy", label_from=None, fields=["npy"]), "component beside it: "),
    "a key of a bad image": (
        partial(of_a_name, image=b"\xff\xd8 no image", label_from=None),
        'go on without it: on_error="replace" to train, "skip" to evaluate.',
    ),
    "a folder": (partial(of_a_name, label_from=LabelFrom("folder", ["cat"])), "is not one of the 1 classes, such as"),
    "a PAX size": (of_a_pax_size, " at byte "),
    "a quarantine": (
        partial(of_a_file, "bad.jsonl", on_error=lambda path: BadImages(known=path, skip=True)),
        "is not an entry of a quarantine: Expecting value",
    ),
    "a recipe": (partial(of_a_file, "a.yaml", preset=str), ""),
    "classes.json": (of_a_list_of_classes, "if a file is wrong, correct it"),
    "a state": (partial(of_a_state, "recipe"), ""),
    "a table's label": (partial(of_a_table, ".jsonl", '{"path": "a.jpg", "label": ["TEXT"]}'), "or all must be names"),
    "several tars": (lambda text, folder: load([text[:100]] * 100_000), ""),
    "a brace pattern": (lambda text, folder: resolve_shards(f"{text}{{"), "cannot be read: check its braces"),
    "overrides": (lambda text, folder: load_preset("imagenet_eval", {text: {text: text}}), ""),
    "an argument": (partial(of_an_argument, "shuffle"), ""),
    "keys": (
        lambda text, folder: of_an_argument("sampling", Sampling(subset=[text]), folder),  # type: ignore[arg-type]
        "the first here are '000000', '000001'",
    ),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize(("make", "says"), SOURCES.values(), ids=SOURCES.keys())
def test_an_error_about_a_long_text_is_short(
    tmp_path: Path, make: Callable[[str, Path], object], says: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(GPULoaderError) as caught:
        make(text, tmp_path)
    said = str(caught.value)
    assert len(said) <= 4000
    assert all(line.isprintable() for line in said.split("\n"))
    assert says in said
    assert all(len(message) <= 4000 for message in caplog.messages)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_so_is_a_line_of_the_log(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    key = text[:100_000]
    tar = shard(tmp_path / "a.tar", (f"{key}.jpg", b"no image"), ("b.jpg", jpeg(20, 20)), (f"{key}!.txt", b""))
    load(tar, label_from=None, on_error="replace", output="dict")
    replaced, left_out = sorted(caplog.messages, key=lambda message: message.startswith(str(tar)))
    assert replaced.startswith("bad image replaced: ")
    assert ", key '" in replaced
    assert "no image format" in replaced
    assert "(its key has no image)" in left_out
    assert max(len(replaced), len(left_out)) <= 4000


def test_the_longest_folder_does_not_count_for_every_sample(tmp_path: Path) -> None:
    tar = shard(tmp_path / "a.tar", (f"{LONG[:900_000]}/a.jpg", jpeg(8, 8)), *((f"b/{i}.jpg", b"") for i in range(500)))
    shards = ShardSet.open([tar])
    tracemalloc.start()
    labels = make_labels(shards, "folder")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert labels is not None
    assert labels.of(np.array([0, 1, 500])).tolist() == [1, 0, 0]
    assert peak_bytes < 100_000_000  # as an array of texts, 1.8 GB


def test_a_name_of_many_digits_is_read_once() -> None:
    """A pattern that looks at the digits again from each of them would take an hour."""
    check_one_split("photos", ["1" * 1_000_000 + "x.tar"])
