"""What `gpuloader bench` says that decoding at 1/2, 1/4 or 1/8 saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from making import encoded, write_shard
from PIL import Image

from gpuloader import GPULoader
from gpuloader import transforms as T
from gpuloader.loading.loader import run_of
from gpuloader.recipe import Recipe
from gpuloader.tools.bench import find_smaller
from gpuloader.tools.bench_result import SmallerFacts

NEEDS = "`oversampling: 1.5` in the recipe"


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three JPEGs of 320 x 320 pixels, and one of 60 x 60."""
    images = [encoded(Image.new("RGB", (side, side), "red"), "JPEG") for side in (320, 320, 320, 60)]
    samples = [{"__key__": f"{n}", "jpg": image, "cls": b"0"} for n, image in enumerate(images)]
    return write_shard(tmp_path_factory.mktemp("bench") / "a.tar", samples)


@pytest.mark.parametrize(
    ("side", "oversampling", "expected"),
    [
        (40, None, SmallerFacts(NEEDS, 3 / 4, (3 * 80**2 + 60**2) / (3 * 320**2 + 60**2))),
        (40, 1.5, SmallerFacts("", 3 / 4, (3 * 80**2 + 60**2) / (3 * 320**2 + 60**2))),
        (40, 3, SmallerFacts("", 3 / 4, (3 * 160**2 + 60**2) / (3 * 320**2 + 60**2))),
        (20, 1.5, SmallerFacts("", 1, (3 * 40**2 + 30**2) / (3 * 320**2 + 60**2))),
        (40, "off", None),
        (300, None, None),
    ],
)
def test_what_it_saves_is_known_from_the_draws(
    tar: Path,
    side: int,
    oversampling: Any,  # noqa: ANN401
    expected: SmallerFacts | None,
) -> None:
    preset = Recipe([T.Resize(side), T.CenterCrop(side)], oversampling=oversampling)
    with GPULoader(tar, 2, None, preset=preset) as loader:
        found = find_smaller(run_of(loader))
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.needs, found.draws) == (expected.needs, expected.draws)
        assert found.pixels == pytest.approx(expected.pixels)
