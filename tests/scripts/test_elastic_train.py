"""`scripts/examples/elastic_train.py` on two nodes of one machine, of which one dies in mid-epoch and comes back."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest
import torch
import watched
from making import write_samples
from snippets import snippets_of
from warm import Program, warm
from watched import ARGUMENTS, SAMPLES, check_that_each_sample_counts_once, wait_for, weights_of_one_process

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "examples" / "elastic_train.py"
TORCHRUN = "import runpy; runpy.run_module('torch.distributed.run', run_name='__main__')"
RANK = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
SETTINGS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
OPTIONS = {
    "--nnodes": "1:2",
    "--nproc-per-node": 2,
    "--max-restarts": 9,
    "--rdzv-backend": "c10d",
    "--rdzv-id": "run-1",
    "--rdzv-conf": "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=6",
    "--monitor-interval": 0.1,
    "--local-addr": "127.0.0.1",
}


class Cluster:
    """Nodes, each a torchrun with two ranks, that meet at a port of this machine."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.folder, self.arguments = folder, arguments
        self.nodes: list[Program] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.address = server.getsockname()

    def start_node(self) -> Program:
        options = {**OPTIONS, "--rdzv-endpoint": "{}:{}".format(*self.address)}
        if self.nodes:  # on a busy machine it must not take the first node for dead, and begin without it
            options["--rdzv-conf"] += ",keep_alive_max_attempt=60"
        run = ("--no-python", warm().folder / "run", RANK)
        rank = (watched.__file__, self.folder, len(self.nodes), SCRIPT, *self.arguments)
        settings = {**os.environ, **SETTINGS, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with (self.folder / f"node-{len(self.nodes)}.txt").open("w") as log:
            node = Program(TORCHRUN, *chain(*options.items()), *run, *rank, env=settings, stdout=log, stderr=log)
        self.nodes.append(node)
        while not self.accepts():
            assert node.poll() is None, (self.folder / "node-0.txt").read_text()
            time.sleep(0.02)
        return node

    def accepts(self) -> bool:
        """Whether its first node lets others in."""
        with suppress(ConnectionRefusedError), socket.create_connection(self.address):
            return True
        return False

    def kill_node(self, node: Program) -> None:
        """As if its power failed: torchrun first, so that it cannot start its ranks again."""
        node.kill()
        node.wait()
        for notes in self.folder.glob(f"{self.nodes.index(node)}-*.jsonl"):
            with suppress(ProcessLookupError):  # of an earlier start
                os.kill(int(notes.stem.partition("-")[2]), signal.SIGKILL)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    write_samples(tmp_path / "shards", SAMPLES, sizes=[(33, 51)])
    cluster = Cluster(tmp_path, "--shards", tmp_path / "shards", "--folder", tmp_path, *ARGUMENTS)
    yield cluster
    for node in cluster.nodes:
        node.terminate()  # a torchrun that has not ended ends its ranks
        node.wait()


@pytest.mark.slow(kept=1, of="whole programs")
def test_a_node_dies_and_comes_back_and_each_sample_counts_once(cluster: Cluster, tmp_path: Path) -> None:
    first = cluster.start_node()
    second = cluster.start_node()
    wait_for(4, 5, tmp_path, first)
    cluster.kill_node(second)
    (tmp_path / "killed").touch()
    wait_for(2, 3, tmp_path, first)
    second = cluster.start_node()
    assert [first.wait(300), second.wait(300)] == [0, 0], (tmp_path / "node-0.txt").read_text()

    check_that_each_sample_counts_once(tmp_path, tmp_path / "shards")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    expected = weights_of_one_process(tmp_path / "shards")
    torch.testing.assert_close(list(state["model"].values()), expected, rtol=0, atol=1e-4)


def test_the_page_starts_nodes_with_the_options_that_are_tested() -> None:
    [snippet] = [each for each in snippets_of(ROOT / "docs" / "gpus-and-nodes.md") if SCRIPT.name in each.code]
    settings, options = re.findall(r"export (.*)", snippet.code), re.findall(r"--[\w-]+", snippet.code)
    assert settings == [f"{name}={value}" for name, value in SETTINGS.items()]
    assert set(options) <= {*OPTIONS, "--rdzv-endpoint", "--shards", "--folder"}
