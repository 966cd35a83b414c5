"""YAML without surprises."""

from __future__ import annotations

import pytest

from gpuloader.errors import PresetError
from gpuloader.recipe.strict_yaml import MAX_YAML_CHARACTERS, load_yaml


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("a: 1\nb: {c: [0.5, yes, x], d: null}\n", {"a": 1, "b": {"c": [0.5, True, "x"], "d": None}}),
        (
            "# a comment\n---\na: 'tags like !!int and *aliases in quotes'\n",
            {"a": "tags like !!int and *aliases in quotes"},
        ),
        ("1: a\n'1': b\n", {1: "a", "1": "b"}),
        ("\ufeffa: ü\r\n", {"a": "ü"}),
        ("a: ü".encode("utf-16"), {"a": "ü"}),
    ],
)
def test_plain_mappings_are_read(text: str | bytes, content: dict[object, object]) -> None:
    assert load_yaml(text, "f.yaml") == content


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' occurs twice"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", 4, "the key 'b' occurs twice"),
        ("yes: 1\ntrue: 2\n", 2, "the key True occurs twice"),  # two ways to write one value
        ("a: &x [1]\nb: *x\n", 2, "aliases are not allowed"),
        ("a: &x [*x]\n", 1, "aliases are not allowed"),  # a list within itself
        ("<<: {a: 1}\nb: 2\n", 1, "merge"),
        ("a: 1\nb: !!python/object/apply:os.system ['true']\n", 2, "tags are not allowed"),
        ("a: 1\n? [b, c]\n: 2\n", 2, "a key must be a plain word"),
        ("a: 1\n---\nb: 2\n", 2, "but found another document"),
    ],
)
def test_what_is_not_plain_is_an_error_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(PresetError) as caught:
        load_yaml(text, "f.yaml")
    assert str(caught.value).startswith("f.yaml cannot be read as YAML: ")
    assert says in str(caught.value)
    assert f"line {line}" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        b"a: \xff\xfe\xfa",
        "a: 2020-13-45",  # looks like a date and is none
        "a: " + "9" * 5000,
        "a: " + "[" * 100_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_cannot_be_read_is_an_error_that_names_the_file(text: str | bytes) -> None:
    with pytest.raises(PresetError, match=r"^f\.yaml cannot be read as YAML: "):
        load_yaml(text, "f.yaml")


@pytest.mark.parametrize(
    ("text", "found"), [("", "None"), ("# a comment", "None"), ("3", "3"), ("size", "'size'"), ("- a", "['a']")]
)
def test_what_is_no_mapping_is_an_error_that_says_what_it_is(text: str, found: str) -> None:
    with pytest.raises(PresetError) as caught:
        load_yaml(text, "f.yaml")
    assert str(caught.value) == f"f.yaml: found {found}: allowed is a mapping of keys to values"


def test_a_text_that_is_too_long_is_not_even_parsed() -> None:
    text = "a: [\n" + "#" * MAX_YAML_CHARACTERS  # which is no YAML
    with pytest.raises(PresetError, match=rf"^f\.yaml: more than {MAX_YAML_CHARACTERS} characters"):
        load_yaml(text, "f.yaml")
    assert load_yaml(text.replace("[", "1")[:MAX_YAML_CHARACTERS], "f.yaml") == {"a": 1}
