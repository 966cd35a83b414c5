"""Finds the fastest settings of DALI's decoder on this machine: decoding and resizing training crops, images/s.

Starting from DALI's defaults, each setting in turn takes its fastest value, twice over, because all combinations would
take hours. Prints every configuration as a line of JSON, the best one last.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from facts import gpu_name, machine
from systems import floors
from systems.common import Task

from gpuloader.plan import Plan, all_samples
from gpuloader.recipe import load_preset
from gpuloader.shards import ShardSet

Settings: TypeAlias = dict[str, Any]

_PASSES = 2
_WARM_UP_BATCHES = 10
_CORES = len(os.sched_getaffinity(0))
CHOICES: dict[str, Sequence[Any]] = {
    "batch": [128, 64, 256, 512],
    "threads": sorted({1, 2, 4, 8, _CORES}, key=lambda threads: threads != min(_CORES, 8)),
    "whole": [False, True],
    "hw_decoder_load": [0.65, 0.0, 0.5, 0.8, 0.9, 1.0],
    "hybrid_huffman_threshold": [10**6, 0, 10**5, 10**9],
    "set_affinity": [False, True],
}
"""The values of each setting, DALI's default or this library's first."""


def main() -> None:
    """Sweeps, prints every configuration, and writes the JSON if told where to."""
    parser = argparse.ArgumentParser(prog="scripts/bench/sweep", description=__doc__)
    parser.add_argument("--shards", nargs="+", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each configuration")
    parser.add_argument("--output", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    tried: list[Settings] = []

    def measured(settings: Settings) -> float:
        rate = images_per_second(arguments.shards, settings, arguments.seconds)
        tried.append({**settings, "images_per_second": rate})
        sys.stdout.write(json.dumps(tried[-1]) + "\n")
        sys.stdout.flush()
        return rate

    best = fastest(CHOICES, measured)
    sys.stdout.write(json.dumps({"best": best}) + "\n")
    if arguments.output:
        result = {"machine": machine(), "best": best, "tried": tried}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def fastest(choices: dict[str, Sequence[Any]], measured: Callable[[Settings], float]) -> Settings:
    """The settings that a search along one setting after another ends with."""
    best: Settings = {name: values[0] for name, values in choices.items()}
    rates: dict[str, float] = {}

    def rate(settings: Settings) -> float:
        key = json.dumps(settings)
        if key not in rates:
            rates[key] = measured(settings)
        return rates[key]

    for _ in range(_PASSES):
        for name, values in choices.items():
            best = max(({**best, name: value} for value in values), key=rate)
    return best


def images_per_second(shards: Sequence[Path], settings: Settings, seconds: float) -> float:
    """Of decoding and resizing, after some batches that do not count."""
    knobs = dict(settings)
    device = "cuda" if gpu_name() else "cpu"
    task = Task(list(shards), batch=knobs.pop("batch"), threads=knobs.pop("threads"), device=device, antialias=True)
    samples = ShardSet.open(sorted(shards))
    plan = Plan(all_samples(len(samples)), task.batch, last_batch="pad")
    epoch = floors.decode(task, samples, plan, load_preset("imagenet_train"), resize=True, **knobs)
    images, batches, started = 0, 0, 0.0
    while batches <= _WARM_UP_BATCHES or time.perf_counter() - started < seconds:
        for batch in epoch(0):
            batches += 1
            images += len(batch) if batches > _WARM_UP_BATCHES else 0
            float(batch.sum())
            if batches == _WARM_UP_BATCHES:
                started = time.perf_counter()
    return images / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
