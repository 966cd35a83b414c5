"""What the tests with other projects' trainers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuloader.demo import run
from gpuloader.demo.pictures import write_shards


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what `gpuloader demo --keep .` writes to shards/, for runs that learn. To be read only."""
    folder = tmp_path_factory.mktemp("demo")
    for seed, (name, count) in enumerate([(run.TRAIN_FOLDER, run.TRAIN_PICTURES), (run.VAL_FOLDER, run.VAL_PICTURES)]):
        write_shards(folder / run.SHARDS / name, name, count, seed, run.PICTURES_PER_SHARD)
    return folder
