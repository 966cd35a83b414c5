"""Shards on a server, and pauses that are short."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server

from gpuloader.shards.remote import store


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def server(shards: list[Path], tmp_path: Path) -> Iterator[Server]:
    """Serves copies of the two shards, without indexes."""
    (tmp_path / "served").mkdir()
    for shard in shards:
        shutil.copy(shard, tmp_path / "served")
    with Server(tmp_path / "served") as running:
        yield running
