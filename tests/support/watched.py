"""Runs an elastic script of scripts/examples as one of its ranks, and notes each rank's batches.

    python watched.py FOLDER NODE SCRIPT ARGUMENT...

Each process writes a line for each batch to a file of its own, FOLDER/NODE-PROCESS.jsonl. So that a test can kill a
node at a known step, all four ranks wait at their fifth batch until FOLDER/killed exists, and fewer ranks wait at their
third until they are ended. `counted_once` reads the notes.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

import gpuloader

ALL_RANKS = 4
GLOBAL_BATCH, STEPS = 8, 30  # enough that a busy machine may restart some more times
SAMPLES = GLOBAL_BATCH * STEPS
ARGUMENTS = ("--global-batch", GLOBAL_BATCH, "--size", 32, "--save-every", 2)


class Watched(gpuloader.GPULoader):
    """The loader that the script gets."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        self._gives = options.pop("output", "tuple")
        super().__init__(*arguments, **options, output="dict")

    def __iter__(self) -> Iterator[Any]:
        begun = [time.time_ns()]
        dist.broadcast_object_list(begun)  # the same on all ranks
        ranks, done = dist.get_world_size(), self.state_dict()["delivered"]
        with (folder / f"{node}-{os.getpid()}.jsonl").open("a", buffering=1) as notes:
            for count, batch in enumerate(super().__iter__(), start=1):
                note = {"begun": begun[0], "ranks": ranks, "done": done, "count": count, "keys": batch["key"]}
                notes.write(json.dumps(note) + "\n")
                while count == 3 if ranks < ALL_RANKS else count == 5 and not (folder / "killed").exists():
                    time.sleep(0.01)
                yield batch if self._gives == "dict" else (batch["image"], batch["label"])


def notes_in(folder: Path) -> list[dict[str, Any]]:
    """What the ranks were given so far."""
    texts = [path.read_text() for path in folder.glob("*.jsonl")]
    return [json.loads(line) for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_for(ranks: int, count: int, folder: Path, run: subprocess.Popen[Any]) -> None:
    """Returns when the ranks that began last are that many, and wait at their batch of that number."""
    deadline = time.monotonic() + 300
    while True:
        notes = notes_in(folder)
        last = max((note["begun"] for note in notes), default=0)
        at = [note["ranks"] for note in notes if (note["begun"], note["count"]) == (last, count)]
        if at == [ranks] * ranks:
            return
        if run.poll() is not None or time.monotonic() > deadline:
            raise AssertionError("\n".join(log.read_text() for log in sorted(folder.glob("*.txt"))))
        time.sleep(0.05)


def check_that_each_sample_counts_once(folder: Path, shards: Path) -> None:
    """All ranks ran, then half of them, then all; up to the states that they used, they got the tars' samples once."""
    starts = []  # of the ranks together: their number, the samples before them, and the keys of each step
    notes = sorted(notes_in(folder), key=lambda note: (note["begun"], note["count"]))
    for _, of_start in groupby(notes, lambda note: note["begun"]):
        steps = [list(of_step) for _, of_step in groupby(of_start, lambda note: note["count"])]
        keys_of_steps = [[key for note in step for key in note["keys"]] for step in steps]
        starts.append((steps[0][0]["ranks"], steps[0][0]["done"], keys_of_steps))
    ranks, before, keys = zip(*starts, strict=True)
    assert [number for number, _ in groupby(ranks)][-3:] == [4, 2, 4]  # the first node may begin alone
    assert len(set(before)) >= 3  # each went on from a state of those before
    assert sum(map(len, keys)) > STEPS  # those after a state were done again

    lengths = [(end - begin) // GLOBAL_BATCH for begin, end in zip(before, [*before[1:], SAMPLES], strict=True)]
    counted = [key for of_start, length in zip(keys, lengths, strict=True) for key in chain(*of_start[:length])]
    listed = [subprocess.check_output(["tar", "-tf", shard], text=True) for shard in shards.glob("*.tar")]
    assert sorted(counted) == sorted(re.findall(r"^(.*)\.jpg$", "".join(listed), re.MULTILINE))


def weights_of_one_process(shards: Path) -> list[torch.Tensor]:
    """Those of a plain loop that trains what the scripts do."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    smaller = {"RandomResizedCrop": {"size": 32}}
    with gpuloader.GPULoader(shards, GLOBAL_BATCH, None, preset={"imagenet_train": smaller}) as loader:
        for images, labels in loader:
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return list(model.state_dict().values())


if __name__ == "__main__":
    folder, node = Path(sys.argv[1]), sys.argv[2]
    vars(gpuloader)["GPULoader"] = Watched
    sys.argv = sys.argv[3:]
    runpy.run_path(sys.argv[0], run_name="__main__")
