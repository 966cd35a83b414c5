"""A loader's arguments in YAML, which commands take in place of shards."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpuloader.errors import ConfigError
from gpuloader.tools.loader_file import read_loader


@pytest.mark.parametrize("shards", [["a.tar"], ["a.tar", "b.tar"], ["shards/"], ["yaml"]])
def test_shards_are_no_file_of_arguments(shards: list[str]) -> None:
    assert read_loader(shards) == {"tar": shards}


@pytest.mark.parametrize("name", ["a.yaml", "a.yml"])
def test_a_file_is_read_as_yaml(tmp_path: Path, name: str) -> None:
    text = "{tar: [a.tar, b.tar], preset: {simclr: {dtype: uint8}}, fields: {mask: {Mask: png}}, label_from: null}"
    (tmp_path / name).write_text(text)
    assert read_loader([str(tmp_path / name)]) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tar: a.tar\nfeilds: {}", r"GPULoader has no argument 'feilds' \(did you mean fields\?\); allowed are tar,"),
        ("preset: simclr", "`tar` is missing"),
        ("- a.tar", "allowed is a mapping"),
        ("tar: [a", "cannot be read as YAML"),
        ("tar: !!python/name:os.system", "tags are not allowed"),
        (None, "a.yaml cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_loader_is_an_error(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_loader([str(tmp_path / "a.yaml")])


def test_a_file_beside_shards_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"b.yaml and other shards: give a loader's file alone"):
        read_loader(["a.tar", "b.yaml"])
