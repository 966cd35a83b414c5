"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from making import write_samples

# A shell's background job ignores Ctrl-C, and so would the processes that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two shards of 20 samples each, see `write_samples`. To be read only."""
    return write_samples(tmp_path_factory.mktemp("shards"), 40)
