"""Measures the ways in which large photographs can be stored: CPU time, memory, bytes, packing, and the difference.

Each way is packed once, by `gpuloader pack`, into a folder of `--work`. Then each round runs one process for each way
and recipe: two epochs in memory, of which the first does not count. turboloader reads the pictures as they are. All
figures are of this machine's page cache.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from facts import images, machine
from peers import SYSTEMS, python_of

from gpuloader import GPULoader
from gpuloader.pack import pack

say = partial(print, flush=True)


@dataclass(frozen=True)
class Way:
    """A way to store pictures.

    Attributes:
        options: of `pack`.
        oversampling: whether the recipe has the key `oversampling`.
    """

    options: dict[str, Any] = field(default_factory=dict)
    oversampling: bool = False


WAYS = {
    "nothing": Way(),
    "nothing, `oversampling`": Way(oversampling=True),
    "`--seekable`": Way({"seekable": True}),
    "`--seekable`, `oversampling`": Way({"seekable": True}, oversampling=True),
    "`--mipmaps 1024,512`": Way({"mipmaps": (1024, 512)}, oversampling=True),
    "`--mipmaps 1280,640`": Way({"mipmaps": (1280, 640)}, oversampling=True),
    "`--max-size 512`": Way({"max_size": 512}),
    "`--max-size 1024 --mipmaps 512`": Way({"max_size": 1024, "mipmaps": (512,)}, oversampling=True),
    "`--max-size 2052`": Way({"max_size": 2052}),
    "`--max-size 2052 --mipmaps 1024,512`": Way({"max_size": 2052, "mipmaps": (1024, 512)}, oversampling=True),
}
PLAIN, COPIES = "nothing", "`--mipmaps 1024,512`"
RECIPES = {"imagenet_train": (64, 1.5), "imagenet_eval": (64, 2), "dino": (32, 1.5), "detr": (8, 1.5)}
"""The batch size of each, and its `oversampling`, for the ways that have the key."""
ONCE = {"dino", "detr"}  # which take ten times as long
NOT_SHOWN = {"`--max-size 2052`", "`--max-size 2052 --mipmaps 1024,512`"}
CROPS, LARGER = ("imagenet_train", "imagenet_eval"), ("dino", "detr")
PEER = "turboloader"
QUALITIES = (("imagenet_train", 1.5), ("imagenet_train", 2), ("imagenet_eval", 2))
EPOCHS_COMPARED = 4


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
    count = images(sorted(arguments.shards.glob("*.tar")))["images"]
    packed = {way: _pack(arguments.shards, arguments.work, way) for way in arguments.ways}
    rounds: dict[str, dict[str, list[dict[str, float]]]] = {way: {} for way in (*packed, PEER)}
    for number in range(arguments.rounds):
        for recipe in arguments.recipes if number == 0 else set(arguments.recipes) - ONCE:
            for way in packed:
                rounds[way].setdefault(recipe, []).append(_run(_folder(arguments.work, way), recipe, way))
            if recipe.removeprefix("imagenet_") in SYSTEMS[PEER].recipes:
                rounds[PEER].setdefault(recipe, []).append(_run_peer(arguments.shards, arguments.work, recipe))
    result = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": machine(),
        "images": count,
        "bytes": {way: size_bytes for way, (size_bytes, _) in packed.items()},
        "packing_ms": {way: 1000 * seconds / count for way, (_, seconds) in packed.items()},
        "rounds": rounds,
        "decibels": compare(arguments.work) if COPIES in packed else {},
    }
    say(table(result))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def table(result: dict[str, Any]) -> str:
    """Two tables of medians; then what turboloader took, and how far crops from copies are off."""
    ways = [way for way in result["bytes"] if way in WAYS and way not in NOT_SHOWN]
    share = {way: f"{result['bytes'][way] / result['bytes'][PLAIN]:.2f}" for way in ways}
    packing = {way: f"{result['packing_ms'][way]:.0f}" for way in ways}
    lines = []
    for recipes, title, cells in ((CROPS, "bytes", share), (LARGER, "packing", packing)):
        measured = [recipe for recipe in recipes if recipe in result["rounds"][PLAIN]]
        lines += [f"| packed with | {' | '.join(measured)} | {title} |", "|---" * (len(measured) + 2) + "|"]
        for way in ways:
            times = [_median(result, way, recipe) for recipe in measured]
            lines.append(f"| {' | '.join([way, *times, cells[way]])} |")
        lines.append("")
    peer = " and ".join(f"{_median(result, PEER, recipe)} ({recipe})" for recipe in result["rounds"][PEER])
    lines += [f"turboloader took {peer} for the pictures as they are.", "", "The most memory, by recipe:", ""]
    for recipe in result["rounds"][PLAIN]:
        used = [max(each["rss_mb"] for each in result["rounds"][way][recipe]) / 1000 for way in ways]
        lines.append(f"- {recipe}, batches of {RECIPES[recipe][0]}: {min(used):.1f} to {max(used):.1f} GB")
    lines += ["", "The peak signal-to-noise ratio of crops from copies, against crops of the pictures:", ""]
    for name, found in result["decibels"].items():
        lines.append(f"- {name}: {found['pooled']:.1f} dB, the worst crop {found['worst']:.1f} dB")
    place = f"{result['machine']['cpu']}, {result['machine']['cores']} cores"
    return "\n".join([*lines, "", f"{result['images']} pictures; {place}; {result['date']}.", ""])


def _median(result: dict[str, Any], way: str, recipe: str) -> str:
    return f"{median(each['cpu_ms'] for each in result['rounds'][way][recipe]):.1f}"


def _folder(work: Path, way: str) -> Path:
    return work / "".join(letter for letter in way if letter.isalnum())


def _pack(shards: Path, work: Path, way: str) -> tuple[int, float]:
    """Packs the shards; returns the bytes, and the CPU seconds of it."""
    folder = _folder(work, way)
    shutil.rmtree(folder, ignore_errors=True)
    before = _cpu_seconds()
    pack(shards, folder, shuffle=False, **WAYS[way].options)
    return sum(file.stat().st_size for file in folder.glob("*.tar")), _cpu_seconds() - before


def _cpu_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def _run(folder: Path, recipe: str, way: str) -> dict[str, float]:
    command = [sys.executable, __file__, "measure", str(folder), recipe, str(int(WAYS[way].oversampling))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def _run_peer(shards: Path, work: Path, recipe: str) -> dict[str, float]:
    system, work = SYSTEMS[PEER], work.resolve()
    command = [str(python_of(system.environment, work)), "-m", f"systems.{system.module}", "--antialias"]
    command += ["--shards", *map(str, sorted(shards.resolve().glob("*.tar"))), "--batch", str(RECIPES[recipe][0])]
    command += ["--recipe", recipe.removeprefix("imagenet_"), "--epochs", "2", "--work", str(work / PEER)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    epoch = json.loads(done.stdout.splitlines()[-1])
    return {"cpu_ms": 1000 * epoch["cpu_seconds"] / epoch["images"], "rss_mb": epoch["peak_rss_bytes"] / 1e6}


def measure(folder: str, recipe: str, oversamples: str) -> None:
    """Prints core-ms an image in the second epoch, and the most memory in MB."""
    batch_size, sharp = RECIPES[recipe]
    oversampling = sharp if int(oversamples) else "off"
    with GPULoader(
        folder,
        batch_size,
        None,
        preset={recipe: {"oversampling": oversampling}},
        label_from=None,
        output="dict",
        last_batch="partial",
    ) as loader:
        for _ in loader:
            pass
        delivered, started = loader.stats().samples, time.process_time()
        for _ in loader:
            pass
        cpu_ms = 1000 * (time.process_time() - started) / (loader.stats().samples - delivered)
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    say(json.dumps({"cpu_ms": cpu_ms, "rss_mb": memory_mb}))


def compare(work: Path) -> dict[str, dict[str, float]]:
    """Returns the peak signal-to-noise ratios of the crops that come from copies, against crops of the pictures."""
    found = {}
    for recipe, sharp in QUALITIES:
        errors: list[float] = []
        options: dict[str, Any] = {"label_from": None, "shuffle": "none", "last_batch": "partial"}
        of_copies, of_pictures = (
            GPULoader(
                _folder(work, COPIES), 32, None, preset={recipe: {"Normalize": None, "oversampling": each}}, **options
            )
            for each in (sharp, "off")
        )
        with of_copies, of_pictures:
            for _ in range(EPOCHS_COMPARED):
                for one, other in zip(of_copies, of_pictures, strict=True):
                    errors += (one[0] - other[0]).square().mean((1, 2, 3)).tolist()
        errors = [error for error in errors if error]  # those that come from the picture are equal
        mean = sum(errors) / len(errors)
        found[f"`{recipe}` with {sharp}"] = {"pooled": _decibels(mean), "worst": _decibels(max(errors))}
    return found


def _decibels(error: float) -> float:
    return -10 * math.log10(error)


if __name__ == "__main__":
    measure(*sys.argv[2:]) if sys.argv[1:2] == ["measure"] else main()
