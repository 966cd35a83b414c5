"""Brace patterns: counted as `braceexpand` expands them, and refused before that if there is too much."""

from __future__ import annotations

import random

import pytest
from braceexpand import braceexpand

from gpuloader import GPULoader
from gpuloader.errors import ConfigError, ShardNotFoundError
from gpuloader.shards import resolve_shards
from gpuloader.shards.braces import count_names, expand_braces

PARTS = ["{", "{", "}", "}", ",", "a", "é", "\\", "..", "-", "{9..11}", "{-3..1..2}", "{02..1}", "{f..d}", "{X..b..3}"]


def test_as_many_names_are_counted_as_there_are() -> None:
    rng = random.Random(0)
    balanced = 0
    for _ in range(5000):
        pattern = "".join(rng.choices(PARTS, k=rng.randint(1, 10)))
        try:
            names, characters = count_names(pattern)
        except ValueError:
            continue
        expanded = list(braceexpand(pattern))
        assert names == len(expanded)
        assert characters >= sum(map(len, expanded))
        balanced += "{" in pattern
    assert balanced > 700


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("train-{0000..0147}.tar", 148),
        ("{a..z}" * 3, 26**3),
        ("{" + ",".join(f"shard-{i}" for i in range(10_000)) + "}.tar", 10_000),
        ("{a," * 32 + "}" * 32, 33),
        ("a{5..5..0}", 1),  # a step of 0 counts as 1
        ("\\{a,b\\}", 1),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_data_sets_need_is_allowed(pattern: str, names: int) -> None:
    assert len(expand_braces(pattern)) == count_names(pattern)[0] == names
    assert count_names("{0..999999}.tar")[0] == 1_000_000


DEEP = 5000


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("{0..1000000}.tar", "stands for too much: allowed are 1,000,000 names of together 268,435,456 characters"),
        ("{0..99999999}.tar", "stands for too much"),
        ("{0..-99999999}", "stands for too much"),
        ("{a..z}" * 6, "stands for too much"),
        ("{a,b}" * 10_000, "stands for too much"),
        ("{,}" * 10_000, "stands for too much"),  # names of no characters
        ("{x,{y,{0..9}{0..999999}}}", "stands for too much"),
        ("x" * 1000 + "{0..999999}", "stands for too much"),  # a gigabyte of characters
        ("{x," * 20 + "{1..9}" * 9 + "}" * 20, "stands for too much"),
        ("{" + "0" * 50 + "1.." + "9" * 50 + "}", "cannot be read: a range of numbers has more than 60 characters"),
        ("{" + "9" * 5000 + ".." + "9" * 5000 + "}", "cannot be read: a range of numbers"),
        ("{a,{" + "1.." + "9" * 4000 + "}}", "cannot be read: a range of numbers"),
        ("{a..z.." + "9" * 5000 + "}", "limit"),  # more digits than Python reads
        ("{a," * 33 + "}" * 33, "has more than 32 braces within each other: name the shards in a list"),
        ("{a," * DEEP + "}" * DEEP, "has more than 32 braces within each other"),
        ("{" * DEEP + "}" * DEEP, "has more than 32 braces within each other"),
        ("{1..3", r"cannot be read: an opening brace has no closing one (write \{ for one in a name)"),
        ("1..3}{", r"cannot be read: a closing brace has no opening one (write \} for one in a name)"),
        ("}{{1..99999999}", "cannot be read: a closing brace has no opening one"),
        ("{a,b" + "{" * 20, "cannot be read: an opening brace"),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("begin", ["", "https://user:secret@host/"])
def test_what_is_too_much_is_refused_before_it_is_expanded(begin: str, pattern: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GPULoader(begin + pattern, 1, None)
    assert says in str(caught.value)
    assert "the brace pattern '" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("x{a}.tar", "x{a}.tar"), ("{x,y{a}}", "x"), ("x\\{1..3\\}", "x{1..3}"), ("{{a,b}}", "{a}"), ("{}", "{}")],
)
def test_a_name_with_braces_is_not_expanded_again(pattern: str, name: str) -> None:
    with pytest.raises(ShardNotFoundError, match=rf"no such file: {name.replace('{', '.').replace('}', '.')};"):
        resolve_shards(pattern)
    url = f"https://host/{pattern}"
    assert str(resolve_shards(url)[0]) == f"https://host/{name}"
