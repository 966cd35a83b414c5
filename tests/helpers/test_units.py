"""Numbers as people say them."""

import pytest

from gpuloader.helpers.units import counted, format_bytes


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (999, "999 B"), (66_900, "66.9 kB"), (46_059_520, "46.1 MB"), (2e12, "2 TB")]
)
def test_bytes_are_said_in_three_digits(count: float, said: str) -> None:
    assert format_bytes(count) == said


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, ("shard",), "1 shard"),
        (0, ("shard",), "0 shards"),
        (1_281_167, ("image",), "1,281,167 images"),
        (1, ("class", "classes"), "1 class"),
        (2, ("class", "classes"), "2 classes"),
    ],
)
def test_what_is_counted_is_in_the_plural_unless_it_is_one(count: int, noun: tuple[str, ...], said: str) -> None:
    assert counted(count, *noun) == said
