"""Shards on a server, an S3 store, and pauses that are short."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Server

from gpuloader.shards.remote import requests, store


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


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """The URL of a server of moto's that speaks the protocol of S3."""
    from moto.server import ThreadedMotoServer  # here, because it imports for seconds what no other test needs

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture(scope="module")
def s3(endpoint: str) -> Iterator[Any]:
    """A file system with a bucket; credentials come from the environment, as S3's do."""
    settings = {"ENDPOINT_URL": endpoint, "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "hunter2"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**settings, "DEFAULT_REGION": "us-east-1"}.items():
            patch.setenv(f"AWS_{name}", value)
        requests.file_system.cache_clear()
        files = requests.file_system("s3", os.getpid())
        files.mkdir("bucket")
        yield files
        files.rm("bucket", recursive=True)
    requests.file_system.cache_clear()
