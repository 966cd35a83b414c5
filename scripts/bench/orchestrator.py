"""Runs every system in its own process, in turn, and writes the results as JSON, a table and a plot."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import facts
from peers import PLOT, SYSTEMS, TARGETS, NotInstalledError, System, python_of, reason
from processes import tree_pss_bytes
from repacking import repack
from report import summary, table
from systems.tars import one_folder

from gpuloader import GPULoaderError

_HERE = Path(__file__).resolve().parent
RECIPES = {
    "train": ["train"],
    "eval": ["eval", "--antialias"],
    "resnet50_v2": ["resnet50_v2", "--antialias"],
    "randaugment": ["randaugment", "--antialias"],
    "decoded-train": ["decoded-train"],
    "decoded-serve": ["decoded-serve"],
    "detect": ["detect"],
    "segment": ["segment"],
}
_TIMEOUT_SECONDS = 3600


class RunError(Exception):
    """A runner ended with an error; the message says which."""


@dataclass(frozen=True)
class Arguments:
    """The command line: see `parse`."""

    shards: list[Path]
    systems: list[str]
    recipes: list[str]
    rounds: int
    epochs: int
    batch: int
    threads: int
    repeat: int
    title: str
    work: Path
    output: Path


def parse(command_line: Sequence[str] | None = None) -> Arguments:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/run", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--shards", nargs="+", type=Path, default=[], help="tars; by default 2,000 pictures are made")
    usual = [name for name in SYSTEMS if name != "stock-dali-regions"]  # which differs on a GPU alone
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=usual, metavar="NAME")
    without_targets = [recipe for recipe in RECIPES if recipe not in TARGETS]
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=without_targets)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each system for each recipe")
    parser.add_argument("--epochs", type=int, default=3, help="in each process; the first does not count")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=1, help="how often an epoch goes through the shards")
    parser.add_argument("--title", default="", help="names the data in the table")
    parser.add_argument(
        "--work", type=Path, default=Path(".bench"), help="environments, and what systems make from the shards"
    )
    parser.add_argument("--output", type=Path, default=Path(".bench/results"), help="the folder for the results")
    arguments = Arguments(**vars(parser.parse_args(command_line)))
    if arguments.epochs < 2:
        parser.error("--epochs: at least 2, since the first does not count")
    return arguments


def measure(arguments: Arguments) -> dict[str, Any]:
    """All that was measured, as it is written to the JSON file."""
    work = arguments.work.resolve()
    given = [shard.resolve() for shard in arguments.shards] or _pictures(work / "pictures")
    shards = _repeat(given, work / "shards", arguments.repeat)
    device = "cuda" if facts.gpu_name() else "cpu"
    systems: dict[str, dict[str, Any]] = {}
    runners: dict[str, list[str]] = {}
    about_seekable: dict[str, Any] = {}
    for name in arguments.systems:
        system = SYSTEMS[name]
        systems[name] = {"title": system.title, "note": system.note, "status": "measured"}
        read = shards
        try:
            if system.plain:
                systems[name]["plain"] = system.plain
                packed, about_seekable = repack(given, work)
                read = _repeat(packed, work / "seekable", arguments.repeat)
            elif system.folder:
                read = [one_folder(shards, work)]
            runners[name] = _ready(system, read, arguments, work, device)
        except NotInstalledError as why:
            systems[name] |= {"status": "not installed", "reason": str(why)}
        except RunError as why:
            systems[name] |= {"status": "not available", "reason": str(why)}
        except GPULoaderError as why:
            systems[name] |= {"status": "not available", "reason": reason(str(why))}
        _say(f"{name}: {systems[name]['status']} {systems[name].get('reason', '')}")
    rounds = []
    for recipe in arguments.recipes:
        for number in range(arguments.rounds):
            for name, command in list(runners.items()):
                if recipe not in SYSTEMS[name].recipes:
                    continue
                try:
                    run = _run([*command, "--recipe", *RECIPES[recipe], "--epochs", str(arguments.epochs)])
                except RunError as why:
                    systems[name] |= {"status": "failed", "reason": f"{recipe}, round {number}: {why}"}
                    del runners[name]
                    continue
                systems[name] |= run.pop("loader")
                rounds.append({"system": name, "recipe": recipe, "round": number, **run})
            _say(f"{recipe}: round {number + 1} of {arguments.rounds}")
    result = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "title": arguments.title,
        "machine": facts.machine(),
        "data": facts.images(shards),
        **({"seekable": about_seekable} if about_seekable else {}),
        "batch": arguments.batch,
        "device": device,
        "systems": systems,
        "rounds": rounds,
    }
    return result | {"summary": summary(result)}


def _repeat(shards: Sequence[Path], folder: Path, times: int) -> list[Path]:
    """The shards by other names, links in the folder, so that one can be there several times."""
    folder.mkdir(parents=True, exist_ok=True)
    links = []
    for repetition in range(times):
        for number, shard in enumerate(shards):
            link = folder / f"{repetition:03d}-{number:06d}-{shard.name}"
            link.unlink(missing_ok=True)
            link.symlink_to(shard)
            links.append(link)
    return links


def _pictures(folder: Path) -> list[Path]:
    from gpuloader.demo.pictures import write_shards

    if not (shards := sorted(folder.glob("*.tar"))):
        _say("drawing 2,000 pictures ...")
        shards = write_shards(folder, "pictures", 2000, seed=0)
    return [shard.resolve() for shard in shards]


def _ready(system: System, shards: Sequence[Path], arguments: Arguments, work: Path, device: str) -> list[str]:
    """The command that runs the system, after a first run in which it made its indexes and caches.

    Raises:
        NotInstalledError, RunError: it cannot run here.
    """
    python = python_of(system.environment, work)
    command = [str(python), "-m", f"systems.{system.module}", "--shards", *map(str, shards)]
    command += ["--batch", str(arguments.batch), "--threads", str(arguments.threads), "--device", device]
    command += ["--work", str(work / "made" / system.name)]
    command += ["--variant", system.variant] if system.variant else []
    recipes = [recipe for recipe in arguments.recipes if recipe in system.recipes]
    for recipe in recipes:
        _run([*command, "--recipe", *RECIPES[recipe], "--epochs", "1"])
    return command


def _run(command: Sequence[str]) -> dict[str, Any]:
    """One process of a system: what it said of itself, its epochs, and what its tree took."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_HERE)
    shared_bytes = 0
    for _ in range(_TIMEOUT_SECONDS):
        try:
            output, errors = process.communicate(timeout=1)
            break
        except subprocess.TimeoutExpired:
            shared_bytes = max(shared_bytes, tree_pss_bytes(process.pid))
    else:
        process.kill()
        output, errors = process.communicate()
    if process.returncode:
        raise RunError(reason(errors))
    loader, *epochs = map(json.loads, output.splitlines())
    return {
        "loader": loader,
        "peak_rss_bytes": max(shared_bytes, epochs[-1]["peak_rss_bytes"]),
        "epochs": epochs,
    }


def _plot(results: Path, image: Path, work: Path) -> None:
    try:
        subprocess.run([python_of(PLOT, work), str(_HERE / "plot.py"), str(results), str(image)], check=True)
    except NotInstalledError as why:
        _say(f"no plot: {why}")


def _say(text: str) -> None:
    sys.stderr.write(text.rstrip() + "\n")


def main(command_line: Sequence[str] | None = None) -> None:
    """Measures, and writes results.json, table.md and plot.png."""
    arguments = parse(command_line)
    result = measure(arguments)
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = arguments.output / "results.json"
    results.write_text(json.dumps(result, indent=1) + "\n")
    text = table(result)
    (arguments.output / "table.md").write_text(text)
    sys.stdout.write(text)
    if result["rounds"]:
        _plot(results, arguments.output / "plot.png", arguments.work.resolve())


if __name__ == "__main__":
    main()
