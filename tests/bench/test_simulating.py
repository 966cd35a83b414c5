"""The plan of docs/scale.md, simulated: against counting one by one, formulas, and a server that counts requests."""

import importlib
import json
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from making import write_samples
from serving import Server

from gpuloader.plan import Plan
from gpuloader.shards import ShardSet, merge_stored, open_index, resolve_shards
from gpuloader.shards.remote import RemoteShard, ShardCache, close_shard, open_remote, requests

BENCH = Path(__file__).resolve().parents[2] / "scripts/bench"
HOURLY_STEPS = 7


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.fixture(autouse=True)
def _bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def small_cluster(cache_shards: int = 64) -> Any:  # noqa: ANN401 - of a script
    """64 shards, the last one shorter, on two nodes; 7 steps an hour."""
    rate = HOURLY_STEPS * 2 / 3600
    return module("simulating").Cluster(2550, 2, rate, 2, shard_samples=40, cache_shards=cache_shards)


@cache
def batches_of_ranks(shuffle: str) -> list[list[list[int]]]:
    """Step by step, the shards of each rank's samples, from a plan of each rank."""
    positions = small_cluster().positions(shuffle)
    plans = [Plan(positions, 2, rank, 16) for rank in range(16)]
    places = [plans[0].at(0, step) for step in range(plans[0].steps)]
    return [[[sample // 40 for sample in plan.batch(place).ids.tolist()] for plan in plans] for place in places]


@pytest.mark.parametrize("shuffle", ["full", "block", "shards"])
def test_shards_touched_are_those_of_a_count_one_by_one(shuffle: str) -> None:
    cluster, steps = small_cluster(), batches_of_ranks(shuffle)
    rows = module("simulating").touched(cluster, cluster.positions(shuffle), node=1)
    assert len(rows) == 5
    for hour, row in enumerate(rows):
        seen: list[set[int]] = [set() for _ in range(8)]
        for step in steps[hour * HOURLY_STEPS : (hour + 1) * HOURLY_STEPS]:
            for rank in range(8):
                seen[rank].update(step[8 + rank])
        assert row == [*map(len, seen), len(set.union(*seen))]


@pytest.mark.parametrize("cache_shards", [20, 64])
@pytest.mark.parametrize("shuffle", ["full", "block", "shards"])
def test_downloads_are_those_of_a_list_of_shards_by_last_use(shuffle: str, cache_shards: int) -> None:
    cluster = small_cluster(cache_shards)
    held: list[int] = []
    count = 0
    for step in batches_of_ranks(shuffle):
        for shard in dict.fromkeys(shard for batch in step for shard in batch):
            count += shard not in held
            held = [*(each for each in held if each != shard), shard][-cache_shards:]
    assert module("simulating").downloads(cluster, cluster.positions(shuffle)) == count
    assert shuffle != "shards" or count == 64


def test_a_part_of_a_large_epoch_stands_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    simulating = module("simulating")
    cluster = simulating.Cluster(400_000, 2, 1.0, 64, shard_samples=100, cache_shards=400)
    whole = {shuffle: simulating.downloads(cluster, cluster.positions(shuffle)) for shuffle in simulating.SHUFFLES}
    monkeypatch.setattr(simulating, "_MOST_COUNTED", 100_000)
    for shuffle, count in whole.items():
        assert simulating.downloads(cluster, cluster.positions(shuffle)) == pytest.approx(count, rel=0.05)


def test_the_committed_figures_are_those_of_formulas() -> None:
    result = json.loads((module("needs").RESULTS / "simulation.json").read_text())
    cluster = module("simulating").Cluster(**result["assumed"])
    shards, pictures = cluster.shards, cluster.steps_per_hour * cluster.batch_size
    touched = {shuffle: np.array(found["touched"]) for shuffle, found in result["shuffles"].items()}

    # A picture of "full" is of any shard: k pictures miss a shard with the probability (1 - 1/shards)^k.
    expected = [shards * (1 - (1 - 1 / shards) ** (pictures * ranks)) for ranks in (*8 * [1], 8)]
    np.testing.assert_allclose(touched["full"], np.tile(expected, (5, 1)), rtol=0.005)
    # An hour of "shards" goes through its part of the windows of 16 shards; the first and the last may not be whole.
    of_all = pictures * cluster.gpus / cluster.shard_samples
    assert np.all(np.abs(touched["shards"][:, -1] - of_all) <= 16)

    downloads = {shuffle: found["downloads"] / shards for shuffle, found in result["shuffles"].items()}
    misses = 1 - cluster.cache_shards / shards
    assert downloads["shards"] == pytest.approx(1, rel=0.01)
    assert downloads["full"] == pytest.approx(misses * cluster.shard_samples, rel=0.01)
    blocks = (cluster.shard_samples + 255) / 256  # that a shard has a part in: they begin anywhere
    assert downloads["block"] == pytest.approx(misses * blocks, rel=0.03)


@pytest.mark.parametrize("url", ["SERVER/bucket/train-0000.tar", "s3://bucket/train-0000.tar"])
def test_the_requests_of_a_start_and_of_a_download_are_those_of_the_page(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = module("needs")
    [shard] = write_samples(tmp_path / "bucket", 3, shards=1)
    open_index(shard)
    with Server(tmp_path) as server:
        for name, value in [("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("ENDPOINT_URL", server.url)]:
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
        requests.file_system.cache_clear()
        remote, name = RemoteShard(url.replace("SERVER", server.url)), f"bucket/{shard.name}"
        shard_cache = ShardCache(tmp_path / "cache", 10**9)
        [(entry, index)] = open_remote([remote], shard_cache)
        assert server.asked == {("HEAD", name): needs.START_REQUESTS, ("GET", f"{name}.gpuidx"): 1}
        assert len(index.columns["image_offset"]) == 3  # in memory

        server.asked.clear()
        close_shard(shard_cache.open(entry, lambda: True))
        assert server.asked == {("HEAD", name): 2, ("GET", name): 1, ("GET", f"{name}.sha256"): 1}
        assert server.asked.total() == needs.DOWNLOAD_REQUESTS

        server.asked.clear()
        open_remote([remote], ShardCache(tmp_path / "cache", 10**9))  # another process: the index is there
        assert server.asked == {("HEAD", name): needs.START_REQUESTS}

        merge_stored([remote], shard.with_name("all.gpuset"))
        for of_node in (needs.MERGED_DOWNLOAD_REQUESTS, 0):
            server.asked.clear()
            ShardSet.open(resolve_shards(remote.in_folder("all.gpuset").url), cache=tmp_path / "cache")
            assert {asked for _, asked in server.asked} == {"bucket/all.gpuset"}
            assert server.asked.total() == needs.MERGED_START_REQUESTS + of_node
    requests.file_system.cache_clear()


def test_the_command_computes_the_page_of_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs, output = module("needs"), tmp_path / "simulation.json"
    options = ["--nodes", "2", "--samples", "20000", "--images-per-second", "0.25", "--cache-shards", "5"]
    monkeypatch.setattr(sys, "argv", ["simulate", *options, "--output", str(output)])
    needs.main()
    result = json.loads(output.read_text())
    assert result["assumed"] == asdict(module("simulating").Cluster(20_000, 2, 0.25, cache_shards=5))
    assert result["shuffles"]["shards"] == {"touched": [[5] * 9], "downloads": 5}
    assert capsys.readouterr().out == needs.page(result)


def test_the_picture_shows_the_committed_figures() -> None:
    needs = module("needs")
    result = json.loads((needs.RESULTS / "simulation.json").read_text())
    touched, downloaded = needs.draw(result).axes
    lines = [line.get_ydata() for line in touched.lines if line.get_linestyle() == "-"]
    assert [list(line) for line in lines] == [
        [row[-1] for row in found["touched"]] for found in result["shuffles"].values()
    ]
    heights = [bar.get_height() for bar in downloaded.patches]
    counts = [found["downloads"] for found in result["shuffles"].values()]
    assert np.array(heights) / heights[-1] == pytest.approx(np.array(counts) / counts[-1])
