"""Computes what a run on many GPUs over shards needs: from the simulated plan and the figures in docs/benchmark."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.figure import Figure
from simulating import NODE_GPUS, Cluster, simulate

from gpuloader.plan.order import WINDOW_SHARDS

RESULTS = Path(__file__).resolve().parents[2] / "docs/benchmark"
START_REQUESTS, DOWNLOAD_REQUESTS = 1, 4
"""Over HTTP or to S3, for each shard: in each process, and for a download; a test counts them."""
MERGED_START_REQUESTS, MERGED_DOWNLOAD_REQUESTS = 1, 3
"""The same for a merged index: in each process, and on top of it in the one that downloads it on a node."""
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
_MEASURED, _COMPUTED, _ASSUMED = "measured", "computed", "assumed"

_Row: TypeAlias = tuple[str, str, str, str]
"""What, how it is computed, its value here, and whether it is measured, computed or assumed."""


def main() -> None:
    """Simulates, prints the tables, and writes the JSON if told where to."""
    usual = Cluster()
    parser = argparse.ArgumentParser(prog="scripts/bench/simulate", description=__doc__)
    parser.add_argument("--samples", type=int, default=usual.samples)
    parser.add_argument("--nodes", type=int, default=usual.nodes, help="of 8 GPUs")
    parser.add_argument("--images-per-second", type=float, default=usual.images_per_second, help="of each GPU")
    parser.add_argument("--cache-shards", type=int, default=usual.cache_shards, help="that each node's cache holds")
    parser.add_argument("--output", type=Path, help="a JSON file")
    arguments = vars(parser.parse_args())
    output = arguments.pop("output")
    result = simulate(Cluster(**arguments))
    sys.stdout.write(page(result))
    if output:
        output.write_text(json.dumps(result, indent=1) + "\n")


def page(result: Mapping[str, Any]) -> str:
    """Returns the part of docs/scale.md that has figures."""
    cluster, shuffles = Cluster(**result["assumed"]), result["shuffles"]
    tables = {
        "Assumed": _assumed(cluster),
        "Index": _index(cluster),
        "Requests to a store": _requests(cluster, shuffles["shards"]["downloads"]),
        "Cache of each node": _cache(cluster),
        "Network of each node": _network(cluster),
        "Memory": _memory(cluster),
        "Start": _start(cluster),
    }
    parts = [f"## {title}\n\n{_table(('what', 'how', 'here', 'kind'), rows)}" for title, rows in tables.items()]
    return "\n".join([_limits(cluster, shuffles), *parts, _simulated(cluster, shuffles)])


def _limits(cluster: Cluster, shuffles: Mapping[str, Mapping[str, Any]]) -> str:
    rates = [f"{_bytes(rate)}/s with `{shuffle}`" for shuffle, rate in _rates(cluster, shuffles).items()]
    return (
        "With shards on a store and their [merged index](commands/index.md#shards-on-a-store), these are the first "
        "limits, all computed:\n\n"
        f"1. Network: to keep up, each node downloads {', '.join(rates)}. Its ranks read "
        f"{_bytes(_read_rate(cluster))}/s.\n"
        f"2. The first start: each node downloads the merged index, {_bytes(index_bytes(cluster))}.\n\n"
        "Without it, two others come first:\n\n"
        f"1. Memory at the start: each process holds the indexes of all shards, so the processes of a node hold "
        f"{_bytes(NODE_GPUS * index_bytes(cluster))}; with it, {_bytes(NODE_GPUS * _names_bytes(cluster))} beside the "
        f"mapped file.\n"
        f"2. Requests at the start: each process asks for the version of each shard. The store needs "
        f"{_time(_start_requests(cluster) / cluster.store_requests_per_second)} to answer; with it, "
        f"{_time(_merged_start_requests(cluster) / cluster.store_requests_per_second)}.\n"
    )


def _assumed(cluster: Cluster) -> list[_Row]:
    cells = {
        "pictures": f"{cluster.samples:,}",
        "nodes": f"{cluster.nodes:,} of {NODE_GPUS} GPUs, a process for each",
        "images a second and GPU": f"{cluster.images_per_second:g}",
        "batch of each GPU": f"{cluster.batch_size}",
        "pictures in a shard": f"{cluster.shard_samples:,}",
        "shards that the cache of a node holds": f"{cluster.cache_shards:,}",
        "requests a second that the store answers": f"{cluster.store_requests_per_second:,.0f}",
    }
    size = ("bytes of a picture", "mean of the benchmark's photographs", _bytes(picture_bytes()), _MEASURED)
    steps = cluster.samples // (cluster.gpus * cluster.batch_size)
    epoch = f"{steps:,} steps, {cluster.epoch_seconds / 3600:.1f} hours"
    return [
        *((what, "", value, _ASSUMED) for what, value in cells.items()),
        size,
        ("shards", "pictures / pictures in a shard", f"{cluster.shards:,}", _COMPUTED),
        ("an epoch", "pictures / GPUs / batch, or images a second", epoch, _COMPUTED),
    ]


def _index(cluster: Cluster) -> list[_Row]:
    all_bytes, core_seconds = _bytes(index_bytes(cluster)), per_picture("index_build_cpu_seconds")
    build = f"{core_seconds * cluster.samples / 3600:.1f} core-hours"
    return [
        (
            "a picture's part",
            "tiny pictures, each with a `.cls`",
            f"{per_picture('index_file_bytes'):.0f} bytes",
            _MEASURED,
        ),
        ("beside the shards", "pictures x part", all_bytes, _COMPUTED),
        ("merged, and on each node's disk, mapped by its processes", "pictures x part", all_bytes, _COMPUTED),
        ("making the indexes of a million pictures", "tiny pictures", f"{core_seconds * 1e6:.0f} core-s", _MEASURED),
        ("making all, once", "in proportion", build, _COMPUTED),
    ]


def _requests(cluster: Cluster, downloaded: int) -> list[_Row]:
    start, merged = _start_requests(cluster), _merged_start_requests(cluster)
    first = cluster.nodes * cluster.shards
    requests = cluster.nodes * downloaded * DOWNLOAD_REQUESTS
    rate = requests / cluster.epoch_seconds
    return [
        ("without a merged index, at each start, HEAD for versions", "processes x shards", f"{start:,}", _COMPUTED),
        ("the same, at the first start, GET of indexes", "nodes x shards, at least", f"{first:,}", _COMPUTED),
        (
            "with a merged index, at the first start",
            f"processes x {MERGED_START_REQUESTS} + nodes x {MERGED_DOWNLOAD_REQUESTS}",
            f"{merged:,}",
            _COMPUTED,
        ),
        ("for each download", "HEAD, GET, HEAD, GET of `.sha256`", f"{DOWNLOAD_REQUESTS}", _MEASURED),
        ("in an epoch with `shards`", f"nodes x downloads x {DOWNLOAD_REQUESTS}", f"{requests:,}", _COMPUTED),
        ("in a second of it", "that / seconds of an epoch", f"{rate:,.0f}", _COMPUTED),
    ]


def _cache(cluster: Cluster) -> list[_Row]:
    size = shard_bytes(cluster)
    windows = -(-cluster.gpus * cluster.batch_size // (WINDOW_SHARDS * cluster.shard_samples)) + 1
    window = f"(global batch / ({WINDOW_SHARDS} x pictures in a shard), rounded up, + 1) x {WINDOW_SHARDS} shards"
    share = cluster.cache_shards / cluster.shards
    return [
        ("a shard", "pictures in it x bytes", _bytes(size), _COMPUTED),
        ("all shards", "pictures x bytes", _bytes(size * cluster.shards), _COMPUTED),
        ("the cache", "its shards x bytes", f"{_bytes(size * cluster.cache_shards)}, {share:.0%} of all", _COMPUTED),
        ("the least for `shards`", window, _bytes(windows * WINDOW_SHARDS * size), _COMPUTED),
    ]


def _memory(cluster: Cluster) -> list[_Row]:
    samples, loader_bytes = measured("loader_rss_bytes")
    starting = index_bytes(cluster)
    merged, names = merged_index(), most_shards()
    private = _bytes(merged["set_private_bytes"])
    return [
        (f"a process with {samples:,} tiny pictures", "", _bytes(loader_bytes), _MEASURED),
        (f"of it for itself, of a merged index of {merged['samples']:,} pictures", "", private, _MEASURED),
        (
            "which images were accepted, in each process",
            "a bit for each picture",
            _bytes(cluster.samples / 8),
            _COMPUTED,
        ),
        (
            "without a merged index, a store's indexes, in each process at the start",
            "pictures x part",
            _bytes(starting),
            _COMPUTED,
        ),
        ("the same, in a node", f"that x {NODE_GPUS}", _bytes(NODE_GPUS * starting), _COMPUTED),
        (
            "with a merged index, the names of the shards, in each process",
            f"shards x {names['set_private_bytes'] / names['shards']:.0f} bytes; the tags of a store come on top",
            _bytes(_names_bytes(cluster)),
            _COMPUTED,
        ),
    ]


def _start(cluster: Cluster) -> list[_Row]:
    merged = merged_index()
    first, later = merged["first_set_open_cpu_seconds"], merged["set_open_cpu_seconds"]
    all_first = f"{first / merged['samples'] * cluster.samples:,.0f} core-s"
    return [
        (f"the first to open a merged index of {merged['samples']:,} pictures", "", f"{first:.0f} core-s", _MEASURED),
        ("each later process on the machine", "", f"{later:.2f} core-s", _MEASURED),
        ("the first, with all pictures", "in proportion", all_first, _COMPUTED),
        (
            "asking a store for all versions, without a merged index",
            "requests / requests a second",
            _time(_start_requests(cluster) / cluster.store_requests_per_second),
            _COMPUTED,
        ),
        (
            "asking it for the merged index",
            "requests / requests a second",
            _time(_merged_start_requests(cluster) / cluster.store_requests_per_second),
            _COMPUTED,
        ),
    ]


def _network(cluster: Cluster) -> list[_Row]:
    read = _read_rate(cluster)
    return [
        ("what its ranks read", f"{NODE_GPUS} x images a second x bytes", f"{_bytes(read)}/s", _COMPUTED),
        ("all pictures, once in an epoch", "that x nodes", f"{_bytes(read * cluster.nodes)}/s", _COMPUTED),
        ("the same to all nodes, from the store", "that x nodes", f"{_bytes(read * cluster.nodes**2)}/s", _COMPUTED),
        ("the merged index, once", "pictures x its part", _bytes(index_bytes(cluster)), _COMPUTED),
    ]


def _simulated(cluster: Cluster, shuffles: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each shuffle; the figures of an hour are those of the first."""
    head = (
        "shuffle",
        "shards that a rank touches",
        "its node touches",
        "downloads of each shard in an epoch",
        "a node downloads",
    )
    rows = []
    for shuffle, rate in _rates(cluster, shuffles).items():
        *ranks, node = shuffles[shuffle]["touched"][0]
        times = shuffles[shuffle]["downloads"] / cluster.shards
        rows.append(
            (f"`{shuffle}`", f"{min(ranks):,} to {max(ranks):,}", f"{node:,}", f"{times:,.1f}", f"{_bytes(rate)}/s")
        )
    images = cluster.steps_per_hour * cluster.batch_size
    hour = f"{cluster.steps_per_hour:,} steps: {images:,} pictures, {_bytes(images * picture_bytes())}"
    return f"## The plan, simulated\n\nIn an hour, each rank takes {hour}. In the first:\n\n{_table(head, rows)}"


def _read_rate(cluster: Cluster) -> float:
    """Returns the bytes of the pictures that the ranks of a node consume in a second."""
    return NODE_GPUS * cluster.images_per_second * picture_bytes()


def _rates(cluster: Cluster, shuffles: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Returns for each shuffle the bytes that a node downloads in a second."""
    scale = shard_bytes(cluster) / cluster.epoch_seconds
    return {shuffle: found["downloads"] * scale for shuffle, found in shuffles.items()}


def _start_requests(cluster: Cluster) -> int:
    """Returns the requests of a start without a merged index."""
    return cluster.gpus * cluster.shards * START_REQUESTS


def _merged_start_requests(cluster: Cluster) -> int:
    """Returns the requests of the first start with a merged index."""
    return cluster.gpus * MERGED_START_REQUESTS + cluster.nodes * MERGED_DOWNLOAD_REQUESTS


def _names_bytes(cluster: Cluster) -> float:
    """Returns what the names of the shards take in each process that opens a merged index."""
    names = most_shards()
    return cluster.shards * float(names["set_private_bytes"] / names["shards"])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def draw(result: Mapping[str, Any]) -> Figure:
    """Draws the shards that each rank and its node touch in each hour, and what the node downloads in an hour."""
    cluster, shuffles = Cluster(**result["assumed"]), result["shuffles"]
    figure = Figure(figsize=(9, 3.8))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for number, (shuffle, found) in enumerate(shuffles.items()):
        hours, color = range(1, len(found["touched"]) + 1), f"C{number}"
        left.plot(hours, [row[-1] for row in found["touched"]], "o-", color=color, label=f"{shuffle}: a node")
        left.plot(hours, [row[:-1] for row in found["touched"]], "_", color=color, markersize=12)
        left.plot([], [], "_", color=color, markersize=12, label=f"{shuffle}: each of its {NODE_GPUS} ranks")
    left.set(title=f"Shards touched, of {cluster.shards:,}", xlabel="hour of the epoch", xticks=hours, ylim=(0, None))
    left.legend(fontsize=7, ncols=len(shuffles), loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
    left.yaxis.set_major_formatter("{x:,.0f}")
    rates = _rates(cluster, shuffles)
    bars = right.bar(
        list(rates), [rate / 1e6 for rate in rates.values()], color=[f"C{number}" for number in range(len(rates))]
    )
    right.bar_label(bars, [f"{_bytes(rate)}/s" for rate in rates.values()], fontsize=8)
    right.axhline(_read_rate(cluster) / 1e6, color="black", linestyle=":", label="what its ranks read")
    right.set(title="MB/s that a node downloads", yscale="log")
    right.legend(fontsize=7)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


def measured(name: str) -> tuple[int, float]:
    """Returns the most pictures with which scripts/bench/scale measured a figure, and the figure."""
    rows = json.loads((RESULTS / "scale.json").read_text())["rows"]
    return max((row["samples"], row[name]) for row in rows if name in row)


def merged_index() -> dict[str, Any]:
    """Returns what scripts/bench/scale measured with the merged index of the most pictures."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / "scale-sets.json").read_text())["rows"]
    return max(rows, key=lambda row: row["samples"])


def most_shards() -> dict[str, Any]:
    """Returns what scripts/bench/scale measured with the merged index of the most shards."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / "scale-sets.json").read_text())["rows"]
    return max(rows, key=lambda row: row["shards"])


def per_picture(name: str) -> float:
    """Returns a measured figure in proportion to the pictures."""
    samples, figure = measured(name)
    return figure / samples


def index_bytes(cluster: Cluster) -> float:
    """Returns the size of the indexes of all pictures."""
    return per_picture("index_file_bytes") * cluster.samples


def picture_bytes() -> float:
    """Returns the mean size of the benchmark's photographs."""
    data = json.loads((RESULTS / "photographs.json").read_text())["data"]
    return data["bytes"] / data["images"]


def shard_bytes(cluster: Cluster) -> float:
    """Returns the size of the pictures of a shard."""
    return cluster.shard_samples * picture_bytes()


def _bytes(count: float) -> str:
    """Returns a size with two or three digits."""
    power = min(len(_UNITS) - 1, int(math.log(count, 1000)))
    value = count / 1000**power
    return f"{value:,.{1 if value < 10 else 0}f} {_UNITS[power]}"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds > 3600 else f"{seconds:,.{1 if seconds < 10 else 0}f} s"


if __name__ == "__main__":
    main()
