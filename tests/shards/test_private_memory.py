"""The memory that each process has of its own for a large set, all the rest of which is mapped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic import write_large_set
from warm import warm

from gpuloader.shards.index import Index

SAMPLES = 2_000_000
MOST_BYTES = SAMPLES  # 1 MB for a million samples

OPEN = """
import json, os, sys, tracemalloc
from pathlib import Path
import numpy as np
from gpuloader import GPULoader
from gpuloader.loading import run as runs
from gpuloader.loading.loader import run_of
from gpuloader.shards import ShardSet
from gpuloader.shards.index import Index

class Synthetic(ShardSet):
    path, shards = Path(sys.argv[1]), 1

    @classmethod
    def open(cls, *_, **__):
        return ShardSet([cls.path] * cls.shards, Index.map(cls.path))

runs.ShardSet = Synthetic
runs.resolve_sources = lambda tar: ([], [])
def use(sampling):
    run = run_of(GPULoader("x", 64, None, preset="imagenet_train", sampling=sampling))
    shards, plan = run.shards, run.plan
    facts = [shards.seekable, shards.largest_image(10**6), shards.too_large, shards.count_turned(), shards.fingerprint]
    ids = np.concatenate([plan.batch(plan.at(0, step)).ids for step in range(20)])
    shards.accepted.note(int(ids[0]), (16, 16))
    return run, [*facts, run.labels.digest, run.labels.of(ids).tolist(), ids.tolist()]
use({})  # what Python and the library take
Synthetic.path, Synthetic.shards = Path(sys.argv[2]), 200
sampling = eval(sys.argv[3])
sampling = {name: make() for name, make in sampling.items()}
tracemalloc.start()
run, facts = use(sampling)
now, peak = tracemalloc.get_traced_memory()
print(json.dumps({"now": now, "peak": peak, "facts": facts}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of two million samples with labels 0 to 9, on the disk."""
    path = tmp_path_factory.mktemp("large") / "set.gpuidx"
    write_large_set(path.with_name("small"), 2000, 1)
    write_large_set(path, SAMPLES, 200)
    return path


@pytest.mark.parametrize(
    ("sampling", "times", "of_peak"),
    [
        ("{}", 2, 1),
        (f"{{'subset': lambda: np.arange(1, {SAMPLES})}}", 1, 40),
        (f"{{'weights': lambda: np.ones({SAMPLES})}}", 1, 60),
    ],
    ids=["all", "subset", "weights"],
)
def test_a_process_has_less_than_a_megabyte_for_a_million_samples(
    large: Path, sampling: str, times: int, of_peak: int
) -> None:
    """While it opens the set, for the first time on a machine and later; arrays need more in the making."""
    for _ in range(times):
        result = warm().run(OPEN, large.with_name("small"), large, sampling)
        assert result.returncode == 0, result.stderr
        told = json.loads(result.stdout)
        assert told["now"] < MOST_BYTES
        assert told["peak"] < MOST_BYTES * of_peak
    assert Index.map(large).column("label", 0, 3).tolist() == [0, 1, 2]
