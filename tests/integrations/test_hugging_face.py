"""Shards on Hugging Face, through its package, on a server that answers as its API does.

The package comes with scripts/test_integrations; elsewhere these tests skip.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from lifecycles import delivered, loader
from making import write_samples

pytestmark = pytest.mark.skipif(
    find_spec("huggingface_hub") is None,
    reason="huggingface_hub is not installed; scripts/test_integrations installs it",
)

WORK = (
    "import json, sys; from pathlib import Path; from lifecycles import loaded\n"
    "tar, cache = sys.argv[1:]\n"
    "print(json.dumps(loaded(tar, cache={'folder': cache})))"
)


class Hub(BaseHTTPRequestHandler):
    """The repository datasets/user/name: https://huggingface.co/docs/hub/api."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.folder = folder
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/api/datasets/user/name":
            self.answer({"id": "user/name", "_id": "1", "sha": "c" * 40, "siblings": [], "private": False, "tags": []})
        elif path == "/api/datasets/user/name/tree/main":
            self.answer([self.entry(file) for file in sorted(self.folder.iterdir())])
        elif (file := self.folder / path.removeprefix("/datasets/user/name/resolve/main/")).is_file():
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            data = file.read_bytes()
            self.send(206, data[int(first) : int(last) + 1], f"bytes {first}-{last}/{len(data)}")
        else:
            self.send(404, b"{}")

    @staticmethod
    def entry(file: Path) -> dict[str, Any]:
        size, sha256 = file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()
        lfs = {"oid": sha256, "size": size, "pointerSize": 134}
        return {"type": "file", "path": file.name, "size": size, "oid": sha256[:40], "lfs": lfs}

    def answer(self, content: object) -> None:
        self.send(200, json.dumps(content).encode())

    def send(self, status: int, data: bytes, content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    write_samples(tmp_path / "served", 40)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, tmp_path / "served"))
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_batches_are_those_of_the_same_shards_on_a_disk(hub: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORK, "hf://datasets/user/name/train-*.tar", str(tmp_path / "cache")]
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "HF_ENDPOINT": hub, "PYTHONPATH": path}  # it is read when the package is imported
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    with loader(write_samples(tmp_path / "local", 40)) as local:
        assert json.loads(result.stdout)["records"] == delivered(local)
