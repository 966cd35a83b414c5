"""`classes.json` beside shards."""

from pathlib import Path

import pytest

from gpuloader.errors import DataError
from gpuloader.shards import read_class_names


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ('["cat", "dog"]', {0: "cat", 1: "dog"}),
        ('{"dog": 1, "cat": 0}', {0: "cat", 1: "dog"}),
        ("[]", {}),
        ('{"names": ["cat", "dog"], "ids": [7, null]}', {0: "cat", 1: "dog"}),
        ('{"names": 1, "ids": 0}', {0: "ids", 1: "names"}),
    ],
)
def test_names_are_a_list_or_stand_beside_their_labels(tmp_path: Path, content: str, names: dict[int, str]) -> None:
    (tmp_path / "classes.json").write_text(content)
    assert read_class_names(tmp_path) == names


def test_there_need_not_be_any(tmp_path: Path) -> None:
    assert read_class_names(tmp_path) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("[" * 100_000, "cannot be read"),  # deeper than Python's stack
        ("[1]", "allowed are a list"),
        ('{"cat": "0"}', "allowed are a list"),
        ('{"names": [1], "ids": [1]}', "allowed are a list"),
    ],
)
def test_what_is_neither_is_an_error_that_names_the_file(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "classes.json").write_text(content)
    with pytest.raises(DataError, match=f"classes.json.*{message}"):
        read_class_names(tmp_path)
