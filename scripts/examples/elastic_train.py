"""Trains under torchrun on nodes that come and go: on any number of ranks, from the last saved state.

The same on each node: export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
torchrun --nnodes 5:8 --nproc-per-node 8 --max-restarts 100 --rdzv-backend c10d --rdzv-endpoint HOST:29400 \\
    scripts/examples/elastic_train.py --shards /shared/train/ --folder /shared/run
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gpuloader import GPULoader


def main() -> None:
    """Trains in this process of several; torchrun calls it again after each change of nodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the state; all nodes share it")
    parser.add_argument("--global-batch", type=int, default=512, help="of all ranks together")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=100, help="in steps")
    options = parser.parse_args()

    # If a node dies on GPUs, its peers notice this after that time.
    dist.init_process_group(timeout=timedelta(minutes=5))
    train(options)
    # Once DistributedDataParallel is gone: if that is the last to hold the group, freeing it can wait for ever.
    dist.destroy_process_group()


def train(options: argparse.Namespace) -> None:
    """Resumes from the folder's state, if there is one, and trains to the end."""
    torch.manual_seed(0)
    smaller = {"RandomResizedCrop": {"size": options.size}}
    batch_size = options.global_batch // dist.get_world_size()
    loader = GPULoader(options.shards, batch_size, preset={"imagenet_train": smaller})
    classifier = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 10))
    model = DistributedDataParallel(classifier.to(loader.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    stateful = {"model": model, "optimizer": optimizer, "loader": loader}
    resume(stateful, options.folder / "state.pt")

    steps = 0
    for epoch in range(loader.state_dict()["epoch"], options.epochs):
        loader.set_epoch(epoch)
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps % options.save_every == 0 and dist.get_rank() == 0:
                save(stateful, options.folder / "state.pt")
    if dist.get_rank() == 0:
        save(stateful, options.folder / "state.pt")


def resume(stateful: dict[str, Any], path: Path) -> None:
    """Rank 0 reads the state and sends it to the others, so all resume from the same one."""
    state = [None]
    if dist.get_rank() == 0 and path.exists():
        state = [torch.load(path, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(state)
    for name, part in stateful.items() if state[0] else ():
        part.load_state_dict(state[0][name])


def save(stateful: dict[str, Any], path: Path) -> None:
    """Writes to another name first, so a node that dies while it writes leaves the state before it."""
    torch.save({name: part.state_dict() for name, part in stateful.items()}, path.with_suffix(".partial"))
    path.with_suffix(".partial").replace(path)


if __name__ == "__main__":
    main()
