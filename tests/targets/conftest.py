"""The shards of these tests, and what loaders make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scenes import by_sample, loader, shard


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shard(tmp_path_factory.mktemp("targets"))


@pytest.fixture(scope="module")
def delivered(tar: Path) -> dict[int, dict[str, Any]]:
    """The samples as the evaluation recipe delivers them."""
    return by_sample(loader(tar))
