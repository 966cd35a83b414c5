"""What all tests share."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from making import write_samples

# A shell's background job ignores Ctrl-C, and so would the processes that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Addresses are left out of the names of tests: they differ between the processes that share the tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(val)) if " at 0x" in repr(val) else None


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two shards of 20 samples each, see `write_samples`. To be read only."""
    return write_samples(tmp_path_factory.mktemp("shards"), 40)
