"""JSON of samples is parsed as `json` does it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.base.values import parse_json

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
VALUES = st.recursive(SCALARS, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=20)


@given(VALUES, st.booleans(), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_it_gives_the_values_and_types_of_json(value: object, escaped: bool, encoding: str) -> None:
    content = json.dumps(value, ensure_ascii=escaped).encode(encoding, "surrogatepass")
    assert repr(parse_json(content)) == repr(json.loads(content))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"nan", b'{"a": 1,}', b'"\x00"', b'"\xff"', b"1 2", b"01", b"[" * 100_000]
)
def test_what_is_no_json_has_the_error_of_json(content: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)) as expected:
        json.loads(content)
    with pytest.raises(type(expected.value)) as found:
        parse_json(content)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("integer", [2**64, -(2**63) - 1, 10**30])
def test_an_integer_beyond_64_bits_becomes_a_float(integer: int) -> None:
    assert parse_json(b"%d" % integer) == float(integer)
