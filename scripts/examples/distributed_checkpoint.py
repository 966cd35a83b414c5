"""Trains with DistributedDataParallel and saves with torch.distributed.checkpoint; any world size can resume from it.

torchrun --nproc_per_node 8 scripts/examples/distributed_checkpoint.py --shards shards/train/ --folder checkpoint
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gpuloader import GPULoader


def main() -> None:
    """Trains in this process of several."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoint")
    parser.add_argument("--batch-size", type=int, default=64, help="of one process")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--stop-after", type=int, help="stop after that many steps, as if it were killed")
    options = parser.parse_args()

    dist.init_process_group()
    train(options)
    # Once DistributedDataParallel is gone: if that is the last to hold the group, freeing it can wait for ever.
    dist.destroy_process_group()


def train(options: argparse.Namespace) -> None:
    """Saves after every `--save-every` steps; begins where the folder says, if it is there."""
    torch.manual_seed(0)
    smaller = {"RandomResizedCrop": {"size": options.size}}
    loader = GPULoader(options.shards, options.batch_size, preset={"imagenet_train": smaller})
    classifier = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 10))
    model = DistributedDataParallel(classifier.to(loader.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if options.folder.exists():
        load(model, optimizer, loader, options.folder)

    steps = 0
    for epoch in range(loader.state_dict()["epoch"], options.epochs):
        loader.set_epoch(epoch)
        losses = []
        for images, labels in loader:
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            steps += 1
            if steps % options.save_every == 0:
                save(model, optimizer, loader, options.folder)
            if steps == options.stop_after:
                return
        mean_loss = torch.tensor(losses, device=loader.device).mean() / dist.get_world_size()
        dist.all_reduce(mean_loss)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {len(losses)} steps, loss {mean_loss:.4f}")


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: GPULoader, folder: Path) -> None:
    """Writes the state of all to a folder, each rank its part."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "loader": loader}, checkpoint_id=folder)


def load(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: GPULoader, folder: Path) -> None:
    """Takes over what `save` wrote."""
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "loader": loader}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


if __name__ == "__main__":
    main()
