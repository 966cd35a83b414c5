"""Runs scripts/examples/elastic_train.py as a rank that notes its batches: python watched.py FOLDER NODE ARGUMENT...

Each process writes a line for each batch to a file of its own, FOLDER/NODE-PROCESS.jsonl. So that a test can kill a
node at a known step, all four ranks wait at their fifth batch until FOLDER/killed exists, and fewer ranks wait at their
third until torchrun ends them.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

import gpuloader

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "examples" / "elastic_train.py"
ALL_RANKS = 4


class Watched(gpuloader.GPULoader):
    """The loader that the script gets."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
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
                yield batch["image"], batch["label"]


if __name__ == "__main__":
    folder, node = Path(sys.argv[1]), sys.argv[2]
    vars(gpuloader)["GPULoader"] = Watched
    sys.argv = [str(SCRIPT), *sys.argv[3:]]
    runpy.run_path(str(SCRIPT), run_name="__main__")
