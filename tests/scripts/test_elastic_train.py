"""`scripts/examples/elastic_train.py` on two nodes of one machine, of which one dies in mid-epoch and comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from making import write_samples
from snippets import snippets_of
from torch.nn import functional
from warm import Program, warm

from gpuloader import GPULoader

ROOT = Path(__file__).resolve().parents[2]
WATCHED = Path(__file__).with_name("watched.py")
TORCHRUN = "import runpy; runpy.run_module('torch.distributed.run', run_name='__main__')"
RANK = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
SETTINGS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
OPTIONS = {
    "--nnodes": "1:2",
    "--nproc-per-node": 2,
    "--max-restarts": 9,
    "--rdzv-backend": "c10d",
    "--rdzv-id": "run-1",
    "--rdzv-conf": "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=4",
    "--monitor-interval": 0.1,
    "--local-addr": "127.0.0.1",
}
GLOBAL_BATCH, STEPS = 8, 12


class Cluster:
    """Nodes, each a torchrun with two ranks, that meet at a port of this machine."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.folder, self.arguments = folder, arguments
        self.nodes: list[Program] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.address = server.getsockname()

    def start_node(self) -> Program:
        options = {**OPTIONS, "--rdzv-endpoint": "{}:{}".format(*self.address)}
        rank = ("--no-python", warm().folder / "run", RANK, WATCHED, self.folder, len(self.nodes), *self.arguments)
        settings = {**os.environ, **SETTINGS, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with (self.folder / f"node-{len(self.nodes)}.txt").open("w") as log:
            node = Program(TORCHRUN, *chain(*options.items()), *rank, env=settings, stdout=log, stderr=log)
        self.nodes.append(node)
        return node

    def kill_node(self, node: Program) -> None:
        """As if its power failed: torchrun first, so that it cannot start its ranks again."""
        node.kill()
        node.wait()
        for notes in self.folder.glob(f"{self.nodes.index(node)}-*.jsonl"):
            os.kill(int(notes.stem.partition("-")[2]), signal.SIGKILL)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            logs = [path.read_text() for path in sorted(self.folder.glob("node-*.txt"))]
            assert time.monotonic() < deadline, "\n".join(logs)
            assert self.nodes[0].poll() is None, logs[0]
            time.sleep(0.02)

    def accepts(self) -> bool:
        """Whether its first node lets others in."""
        with suppress(ConnectionRefusedError), socket.create_connection(self.address):
            return True
        return False

    def notes(self) -> list[dict[str, Any]]:
        """What watched.py wrote so far."""
        texts = [path.read_text() for path in self.folder.glob("*.jsonl")]
        return [json.loads(line) for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def waiting(self, ranks: int, count: int) -> bool:
        """Whether that many ranks got their batch of that number, behind which they wait."""
        return sum((note["ranks"], note["count"]) == (ranks, count) for note in self.notes()) == ranks


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    write_samples(tmp_path / "shards", GLOBAL_BATCH * STEPS, sizes=[(33, 51)])
    options = ("--global-batch", GLOBAL_BATCH, "--size", 32, "--save-every", 2)
    cluster = Cluster(tmp_path, "--shards", tmp_path / "shards", "--folder", tmp_path, *options)
    yield cluster
    for node in cluster.nodes:
        node.terminate()  # a torchrun that has not ended ends its ranks
        node.wait()


def weights_of_one_process(shards: Path) -> list[torch.Tensor]:
    """Those of a plain loop that trains what the script does."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    smaller = {"RandomResizedCrop": {"size": 32}}
    with GPULoader(shards, GLOBAL_BATCH, None, preset={"imagenet_train": smaller}) as loader:
        for images, labels in loader:
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return list(model.state_dict().values())


def test_a_node_dies_and_comes_back_and_each_sample_counts_once(cluster: Cluster, tmp_path: Path) -> None:
    first = cluster.start_node()
    cluster.wait_until(cluster.accepts)
    second = cluster.start_node()
    cluster.wait_until(lambda: cluster.waiting(ranks=4, count=5))
    cluster.kill_node(second)
    (tmp_path / "killed").touch()
    cluster.wait_until(lambda: cluster.waiting(ranks=2, count=3))
    second = cluster.start_node()
    assert [first.wait(300), second.wait(300)] == [0, 0], (tmp_path / "node-0.txt").read_text()

    starts = []  # of the ranks together: their number, the samples before them, and the keys of each step
    notes = sorted(cluster.notes(), key=lambda note: (note["begun"], note["count"]))
    for _, of_start in groupby(notes, lambda note: note["begun"]):
        steps = [list(of_step) for _, of_step in groupby(of_start, lambda note: note["count"])]
        keys_of_steps = [[key for note in step for key in note["keys"]] for step in steps]
        starts.append((steps[0][0]["ranks"], steps[0][0]["done"], keys_of_steps))
    ranks, before, keys = zip(*starts, strict=True)
    assert [number for number, _ in groupby(ranks)][-3:] == [4, 2, 4]  # the first node may begin alone
    assert before[-1] >= 6 * GLOBAL_BATCH  # saved were four steps of four ranks, and two of two
    assert sum(map(len, keys)) > STEPS  # those after a state were done again

    ends = [*before[1:], GLOBAL_BATCH * STEPS]
    lengths = [(end - begin) // GLOBAL_BATCH for begin, end in zip(before, ends, strict=True)]
    counted = [key for of_start, length in zip(keys, lengths, strict=True) for key in chain(*of_start[:length])]
    listed = [subprocess.check_output(["tar", "-tf", shard], text=True) for shard in tmp_path.glob("shards/*.tar")]
    assert sorted(counted) == sorted(re.findall(r"^(.*)\.jpg$", "".join(listed), re.MULTILINE))

    state = torch.load(tmp_path / "state.pt", weights_only=True)
    expected = weights_of_one_process(tmp_path / "shards")
    torch.testing.assert_close(list(state["model"].values()), expected, rtol=0, atol=1e-5)


def test_the_page_starts_nodes_with_the_options_that_are_tested() -> None:
    [snippet] = snippets_of(ROOT / "docs" / "clusters.md")
    settings, options = re.findall(r"export (.*)", snippet.code), re.findall(r"--[\w-]+", snippet.code)
    assert settings == [f"{name}={value}" for name, value in SETTINGS.items()]
    assert set(options) <= {*OPTIONS, "--rdzv-endpoint", "--shards", "--folder"}
