"""The graph that a GPU runs makes what the CPU's kernels make, for every preset and form; see `gpu_graph`."""

from __future__ import annotations

from pathlib import Path

import pytest
from forms import FORMS, differences, options_of, write_forms
from gpu_graph import GPU, load_on

from gpuloader import Decoder

# Of an image's mean difference in levels: as in test_gpu_graph.py. What is done to the pixels widens it.
MEAN_LEVELS = 0.6
MEAN_LEVELS_BEHIND_OPERATIONS = 2.0


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forms(tmp_path_factory.mktemp("forms"), [(120, 160), (160, 120), (90, 131)], 4)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.slow(kept=12)
def test_a_form_makes_the_same_of_the_samples(tar: Path, name: str) -> None:
    recipe = FORMS[name]
    options = {**options_of(recipe), "decoder": Decoder(prefetch=1), "last_batch": "pad", "batch_size": 4}
    with load_on(GPU, tar, **options) as ours, load_on(None, tar, **options) as theirs:
        for one, other in zip(ours, theirs, strict=True):
            assert one["key"] == other["key"]
            for changed, levels in differences(recipe, ours.device, one, other):
                assert (levels <= (MEAN_LEVELS_BEHIND_OPERATIONS if changed else MEAN_LEVELS)).all()
