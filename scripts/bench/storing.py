"""Measures the ways in which large photographs can be stored: CPU time, memory and bytes.

Each way is packed once, by `gpuloader pack`, into a folder of `--work`. Then each round runs one process for each way
and recipe: two epochs in memory, of which the first does not count. All figures are of this machine's page cache.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from facts import machine

from gpuloader import GPULoader
from gpuloader.pack import pack

say = partial(print, flush=True)

WAYS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "--seekable": {"seekable": True},
    "--mipmaps 1024,512": {"mipmaps": (1024, 512)},
    "--mipmaps 1280,640": {"mipmaps": (1280, 640)},
    "--max-size 512": {"max_size": 512},
    "--max-size 1024 --mipmaps 512": {"max_size": 1024, "mipmaps": (512,)},
}
RECIPES = {"imagenet_train": (64, 1.5), "imagenet_eval": (64, 2), "dino": (32, 1.5), "detr": (8, 1.5)}
"""The batch size of each, and how sharp a smaller copy has to be."""


def main(command_line: Sequence[str] | None = None) -> None:
    """Measures, prints a table, and writes the JSON if told where to."""
    parser = argparse.ArgumentParser(prog="scripts/bench/storing", description=__doc__)
    parser.add_argument("--shards", type=Path, required=True, help="a folder of shards, as make_large makes them")
    parser.add_argument("--work", type=Path, default=Path(".bench/storing"))
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--recipes", nargs="*", choices=RECIPES, default=list(RECIPES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a JSON file")
    arguments = parser.parse_args(command_line)
    folders = {way: _packed(arguments.shards, arguments.work, way) for way in arguments.ways}
    size_bytes = {way: sum(file.stat().st_size for file in folder.glob("*.tar")) for way, folder in folders.items()}
    found: dict[str, dict[str, list[dict[str, float]]]] = {way: {} for way in folders}
    for _ in range(arguments.rounds):
        for recipe in arguments.recipes:
            for way, folder in folders.items():
                found[way].setdefault(recipe, []).append(_run(folder, recipe, takes_copies="mipmaps" in WAYS[way]))
    say("| packed with | bytes | " + " | ".join(arguments.recipes) + " | peak memory |")
    say("|---|---|" + "---|" * len(arguments.recipes) + "---|")
    for way, of_recipes in found.items():
        times = [f"{median(each['cpu_ms'] for each in rounds):.1f}" for rounds in of_recipes.values()]
        memory = max(each["rss_mb"] for rounds in of_recipes.values() for each in rounds)
        share = size_bytes[way] / max(size_bytes.get("as they are", 0), 1)
        say(f"| {way} | {share:.2f} | {' | '.join(times)} | {memory:,.0f} MB |")
    if arguments.output:
        result = {"machine": machine(), "bytes": size_bytes, "rounds": found}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def _packed(shards: Path, work: Path, way: str) -> Path:
    folder = work / way.replace(" ", "")
    if not folder.exists():
        pack(shards, folder, shuffle=False, **WAYS[way])
    return folder


def _run(folder: Path, recipe: str, *, takes_copies: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "measure", str(folder), recipe, str(int(takes_copies))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def measure(folder: str, recipe: str, takes_copies: str) -> None:
    """Prints core-ms an image in the second epoch, and the most memory in MB."""
    batch_size, sharp = RECIPES[recipe]
    mipmaps = sharp if int(takes_copies) else "off"
    with GPULoader(folder, batch_size, None, preset={recipe: {"mipmaps": mipmaps}}, label_from=None) as loader:
        for _ in loader:
            pass
        images, started = loader.stats().samples, time.process_time()
        for _ in loader:
            pass
        cpu_ms = 1000 * (time.process_time() - started) / (loader.stats().samples - images)
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    say(json.dumps({"cpu_ms": cpu_ms, "rss_mb": memory_mb}))


if __name__ == "__main__":
    measure(*sys.argv[2:]) if sys.argv[1:2] == ["measure"] else main()
