"""Brace patterns: expanded by `braceexpand`, and refused before that if there may be too many names."""

from __future__ import annotations

import random

import pytest
from braceexpand import braceexpand

from gpuloader import GPULoader
from gpuloader.errors import ConfigError, ShardNotFoundError
from gpuloader.shards import resolve_shards
from gpuloader.shards.braces import expand_braces, most_names

PARTS = ["{", "{", "}", "}", ",", "a", "é", "\\", "..", "-", "{9..11}", "{-3..1..2}", "{02..1}", "{f..d}", "{X..b..3}"]


def test_no_pattern_stands_for_more_names_than_is_said() -> None:
    rng = random.Random(0)
    balanced = 0
    for _ in range(5000):
        pattern = "".join(rng.choices(PARTS, k=rng.randint(1, 10)))
        try:
            expanded = list(braceexpand(pattern))
        except ValueError:
            continue
        assert len(expanded) <= most_names(pattern)
        balanced += "{" in pattern
    assert balanced > 700


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("train-{0000..0147}.tar", 148),
        ("{a..z}" * 3, 26**3),
        ("{" + ",".join(f"shard-{i}" for i in range(10_000)) + "}.tar", 10_000),
        ("{train-{0000..0147},val-{0000..0006}}.tar", 155),
        ("a{5..5..0}", 1),  # a step of 0 counts as 1
        ("\\{a,b\\}", 1),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_data_sets_need_is_allowed(pattern: str, names: int) -> None:
    assert len(expand_braces(pattern)) == names
    assert most_names("{0..999999}.tar") == 1_000_000


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("{0..1000000}.tar", "may stand for more than 1,000,000 names: list the shards, or pack larger ones"),
        ("{,}" * 10_000, "may stand for more"),  # names of no characters
        ("{" + "9" * 5000 + ".." + "9" * 5000 + "}", "cannot be read"),  # more digits than Python reads
        ("{" * 5000 + "}" * 5000, "cannot be read"),
        ("{1..3", "cannot be read: check its braces and numbers (write \\{ for a brace in a name)"),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.slow(kept=2)
def test_what_is_too_much_is_refused_before_it_is_expanded(pattern: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"^the brace pattern 'https://host/") as caught:
        GPULoader(f"https://user:secret@host/{pattern}", 1, None)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("pattern", "name"), [("x{a}.tar", "x{a}.tar"), ("{x,y{a}}", "x"), ("x\\{1..3\\}", "x{1..3}"), ("{}", "{}")]
)
def test_a_name_with_braces_is_not_expanded_again(pattern: str, name: str) -> None:
    with pytest.raises(ShardNotFoundError, match=rf"no such file: {name.replace('{', '.').replace('}', '.')};"):
        resolve_shards(pattern)
    assert str(resolve_shards(f"https://host/{pattern}")[0]) == f"https://host/{name}"
