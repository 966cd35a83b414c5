"""`shuffle="shards"`: each node downloads its own shards once, and all get what one process gets."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lifecycles import loader, records
from making import jpeg, write_samples, write_shard
from serving import SOON, Server, wait_for
from warm import Program

from gpuloader import Cache, GPULoader, World

NODES, RANKS_OF_NODE, BATCH_SIZE = 4, 2, 4
GLOBAL_BATCH = NODES * RANKS_OF_NODE * BATCH_SIZE
SAMPLES, SHARDS = 320, 32


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many small shards with their indexes."""
    folder = tmp_path_factory.mktemp("served")
    for shard in write_samples(folder, SAMPLES, shards=SHARDS):
        loader(shard).close()
    return folder


@pytest.fixture
def server(served: Path) -> Iterator[Server]:
    with Server(served) as running:
        yield running


def names() -> list[str]:
    return [f"train-{number:04d}.tar" for number in range(SHARDS)]


def rank_loader(base: str, rank: int, nodes: int, caches: Path, **options: Any) -> GPULoader:  # noqa: ANN401
    """A rank of a run with the same global batch on any number of nodes, each with a cache of its own."""
    world = World(rank, nodes * RANKS_OF_NODE, rank % RANKS_OF_NODE, RANKS_OF_NODE)
    batch_size = GLOBAL_BATCH // world.world_size
    urls = [f"{base}/{name}" for name in names()]
    cache = Cache(caches / str(rank // RANKS_OF_NODE))
    return loader(urls, batch_size, world=world, cache=cache, shuffle="shards", last_batch="drop", **options)


def of_shards(sent: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in sent.items() if name.endswith(".tar")}


def test_a_node_downloads_its_own_shards_once(server: Server, served: Path, tmp_path: Path) -> None:
    shard_bytes = {name: (served / name).stat().st_size for name in names()}
    of_nodes: list[list[str]] = []
    for node in range(NODES):
        before = dict(server.sent_bytes)
        for rank in range(node * RANKS_OF_NODE, (node + 1) * RANKS_OF_NODE):
            with rank_loader(server.url, rank, NODES, tmp_path) as batches:
                assert "shuffle shards in 16 groups" in str(batches)
                for _ in range(2):
                    assert len(list(batches)) == SAMPLES // GLOBAL_BATCH
        sent = {name: count - before.get(name, 0) for name, count in of_shards(server.sent_bytes).items()}
        assert all(count in (0, shard_bytes[name]) for name, count in sent.items())  # once, in two epochs
        of_nodes.append([name for name, count in sent.items() if count])
    assert sum(map(len, of_nodes)) <= 1.05 * SHARDS
    assert max(map(len, of_nodes)) <= SHARDS / NODES + 2


@pytest.mark.slow(kept=3, of="s3")
def test_a_node_downloads_its_own_shards_from_s3(served: Path, tmp_path: Path, s3: Any) -> None:  # noqa: ANN401
    for file in served.glob("train-*"):
        s3.pipe(f"bucket/{file.name}", file.read_bytes())
    total = sum((served / name).stat().st_size for name in names())
    downloaded = 0
    for rank in range(NODES * RANKS_OF_NODE):
        with rank_loader("s3://bucket", rank, NODES, tmp_path) as batches:
            assert len(list(batches)) == SAMPLES // GLOBAL_BATCH
            stats = batches.stats().cache
        assert stats is not None
        downloaded += stats.downloaded_bytes
    assert downloaded <= 1.05 * total


def test_a_bad_sample_is_replaced_without_another_download(served: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    broken = [sample for sample in range(SAMPLES) if sample % 16 == 5]
    bad.mkdir()
    for number, name in enumerate(names()):
        keys = range(number * SAMPLES // SHARDS, (number + 1) * SAMPLES // SHARDS)
        samples = [
            {"__key__": f"{key:06d}", "jpg": jpeg(9, 9)[:40] if key in broken else jpeg(40, 40), "cls": b"1"}
            for key in keys
        ]
        loader(write_shard(bad / name, samples)).close()
    asked: list[set[str]] = []
    for folder in (served, bad):
        with Server(folder) as server:
            with rank_loader(
                server.url, 2, NODES, tmp_path / folder.name, on_error={"replace": True, "max_share": 1}
            ) as of:
                ids = [sample for batch in of for sample in batch["index"].tolist()]
            asked.append(set(of_shards(server.sent_bytes)))
    assert not set(ids) & set(broken)
    assert asked[1] <= asked[0]


RANK = """
import json, sys
from pathlib import Path
from lifecycles import loader, records
from gpuloader import Cache, World
urls, batch_size, rank, ranks, caches, state, steps, told = sys.argv[1:]
world = World(int(rank), int(ranks), int(rank) % 2, 2)
cache = Cache(Path(caches) / str(int(rank) // 2))
options = {"world": world, "cache": cache, "shuffle": "shards", "last_batch": "drop"}
with loader(json.loads(urls), int(batch_size), **options) as batches:
    if state:
        batches.load_state_dict(json.loads(state))
    given = []
    while len(given) < int(steps):
        for batch in batches:
            given.append(records(batch))
            if len(given) == int(steps):
                break
    answer = {"given": given, "state": batches.state_dict(), "downloaded": batches.stats().cache.downloaded_bytes}
    Path(told + ".part").write_text(json.dumps(answer))
    Path(told + ".part").rename(told)
    while True:
        for batch in batches:
            pass
"""


def run_nodes(
    base: str, nodes: int, folder: Path, steps: int, state: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """What each rank of some nodes gets in its next steps; then all of them are killed."""
    told = [folder / f"{nodes}-{rank}.json" for rank in range(nodes * RANKS_OF_NODE)]
    given = "" if state is None else json.dumps(state)
    urls, ranks = json.dumps([f"{base}/{name}" for name in names()]), len(told)
    programs = [
        Program(RANK, urls, GLOBAL_BATCH // ranks, rank, ranks, folder / "caches", given, steps, file)
        for rank, file in enumerate(told)
    ]
    try:
        wait_for(lambda: all(file.exists() for file in told))
    finally:
        for program in programs:
            program.send_signal(signal.SIGKILL)
            program.wait(SOON)
    return [json.loads(file.read_text()) for file in told]


@pytest.mark.slow(kept=1, of="whole programs")
def test_four_processes_on_two_nodes_go_on_on_one(server: Server, served: Path, tmp_path: Path) -> None:
    per_epoch = SAMPLES // GLOBAL_BATCH
    first = run_nodes(server.url, 2, tmp_path, per_epoch + 7)
    total = sum((served / name).stat().st_size for name in names())
    assert total <= sum(each["downloaded"] for each in first) <= 1.05 * total
    second = run_nodes(server.url, 1, tmp_path, per_epoch, first[3]["state"])
    got = [
        sorted(record for rank in ranks for record in rank["given"][step])
        for ranks in (first, second)
        for step in range(len(ranks[0]["given"]))
    ]
    with loader([served / name for name in names()], GLOBAL_BATCH, shuffle="shards", last_batch="drop") as alone:
        expected = [sorted(records(batch)) for _ in range(3) for batch in alone]
    assert got == expected[: len(got)]
