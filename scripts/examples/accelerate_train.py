"""Trains with Hugging Face Accelerate, on any number of processes, and resumes in the middle of an epoch.

accelerate launch scripts/examples/accelerate_train.py --shards shards/train/ --folder checkpoint
torchrun --nproc_per_node 2 scripts/examples/accelerate_train.py ...    # also on CPUs
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn import functional

from gpuloader import GPULoader


def main() -> None:
    """Saves after every `--save-every` steps; begins where the folder says, if it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoint")
    parser.add_argument("--batch-size", type=int, default=64, help="of one process")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--stop-after", type=int, help="stop after that many steps, as if it were killed")
    options = parser.parse_args()

    torch.manual_seed(0)
    # Accelerate makes a group of processes on CPUs only if it is told.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    smaller = {"RandomResizedCrop": {"size": options.size}}
    loader = GPULoader(options.shards, options.batch_size, preset={"imagenet_train": smaller}, output="dict")
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)  # the loader comes back as it is
    accelerator.register_for_checkpointing(loader)
    if options.folder.exists():
        accelerator.load_state(options.folder)

    steps = 0
    for epoch in range(loader.state_dict()["epoch"], options.epochs):
        loader.set_epoch(epoch)
        seen, losses = [], []
        for batch in loader:
            loss = functional.cross_entropy(model(batch["image"]), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen += accelerator.gather(batch["index"]).tolist()
            losses.append(accelerator.gather(loss.detach()).mean())
            steps += 1
            if steps % options.save_every == 0:
                accelerator.save_state(options.folder)
            if steps == options.stop_after:
                return
        mean_loss = torch.tensor(losses).mean()
        accelerator.print(f"epoch {epoch}: {len(seen)} samples, {len(set(seen))} different, loss {mean_loss:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
