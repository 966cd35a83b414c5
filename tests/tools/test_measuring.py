"""The batch size that is measured, and what is said of the arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuloader import BadImages, Decoder
from gpuloader.tools.measuring import as_yaml, fitting_batch_size


@pytest.mark.parametrize(
    ("asked", "samples", "measured"),
    [
        (None, 1_000_000, 128),
        (None, 128, 128),
        (None, 127, 64),
        (None, 40, 32),
        (None, 1, 1),
        (256, 1000, 256),  # what was asked for stays
        (40, 40, 40),
    ],
)
def test_a_batch_fits_the_samples(asked: int | None, samples: int, measured: int) -> None:
    assert fitting_batch_size(asked, samples) == measured


def test_arguments_are_told_as_yaml_has_them() -> None:
    told = as_yaml({"tar": (Path("a.tar"),), "on_error": BadImages(known=Path("bad.jsonl")), "decoder": Decoder(2)})
    assert told == {
        "tar": ["a.tar"],
        "on_error": {"replace": False, "max_share": 0.01, "known": "bad.jsonl", "skip": False},
        "decoder": {"num_threads": 2, "prefetch": 2, "hw_load": None, "hybrid_huffman_threshold": None, "region": None},
    }
