"""The memory that each process has of its own for a large set, all the rest of which is mapped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic import write_large_set
from warm import warm

SAMPLES = 2_000_000
MOST_BYTES = SAMPLES  # 1 MB for a million samples

OPEN = """
import json, sys, tracemalloc
import numpy as np
from gpuloader import GPULoader
from gpuloader.loading.loader import run_of

def use(tar, **sampling):
    run = run_of(GPULoader(tar, 64, None, preset="imagenet_train", sampling=sampling))
    ids = np.concatenate([run.plan.batch(run.plan.at(0, step)).ids for step in range(20)])
    assert not run.shards.too_large
    run.shards.accepted.note(int(ids[0]), (16, 16))
    return run, run.identity, run.described, run.labels.of(ids)

use(sys.argv[1])  # what Python and the library take
sampling = {name: make() for name, make in eval(sys.argv[3]).items()}
tracemalloc.start()
kept = use(sys.argv[2], **sampling)
print(json.dumps(tracemalloc.get_traced_memory()))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards that have only names, with the index of two million samples; beside it a small one."""
    folder = tmp_path_factory.mktemp("large")
    for name, samples, shards in (("small", 2000, 1), ("large", SAMPLES, 200)):
        (folder / name).mkdir()
        names = [f"{number}.tar" for number in range(shards)]
        for each in names:
            (folder / name / each).touch()
        write_large_set(folder / name / "all.gpuset", samples, shards, names)
    return folder


@pytest.mark.parametrize(
    ("sampling", "times", "of_peak"),
    [
        ("{}", 2, 1),
        (f"{{'subset': lambda: np.arange(1, {SAMPLES})}}", 1, 40),
        (f"{{'weights': lambda: np.ones({SAMPLES})}}", 1, 60),
    ],
    ids=["all", "subset", "weights"],
)
@pytest.mark.slow(kept=1)
def test_a_process_has_less_than_a_megabyte_for_a_million_samples(
    large: Path, sampling: str, times: int, of_peak: int
) -> None:
    """While it opens the set, for the first time on a machine and later; arrays need more in the making."""
    for _ in range(times):
        result = warm().run(OPEN, large / "small", large / "large", sampling)
        assert result.returncode == 0, result.stderr
        now, peak = json.loads(result.stdout)
        assert now < MOST_BYTES
        assert peak < MOST_BYTES * of_peak
