"""Trains with Ray Train. If a worker dies or a node comes, Ray restarts as many workers as there is room for, and they
resume from the last checkpoint.

python scripts/examples/ray_train.py --shards '/data/train-{0000..0147}.tar' --folder /data/runs --workers 1 8 --use-gpu
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch.nn import functional

from gpuloader import GPULoader


def train(options: dict[str, Any]) -> None:
    """What each worker does."""
    torch.manual_seed(0)
    smaller = {"RandomResizedCrop": {"size": options["size"]}}
    batch_size = options["global_batch"] // dist.get_world_size()
    loader = GPULoader(options["shards"], batch_size, preset={"imagenet_train": smaller}, output="dict")
    classifier = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 10))
    model = prepare_model(classifier)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    stateful = {"model": model, "optimizer": optimizer, "loader": loader}
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        for name, part in stateful.items():
            part.load_state_dict(state[name])

    steps = 0
    for epoch in range(loader.state_dict()["epoch"], options["epochs"]):
        loader.set_epoch(epoch)
        seen, losses = [], []
        for batch in loader:
            loss = functional.cross_entropy(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += batch["index"].tolist()
            losses.append(loss.item())
            steps += 1
            if steps % options["save_every"] == 0:
                report({"epoch": epoch}, stateful)
            if steps == options["fail_after"] and checkpoint is None:
                raise RuntimeError("failed, as --fail-after asked for")
        ids, all_losses = gathered(seen), gathered(losses)
        mean_loss = torch.tensor(all_losses).mean().item()
        report({"epoch": epoch, "samples": len(ids), "different": len(set(ids)), "loss": mean_loss}, stateful)


def gathered(values: list[Any]) -> list[Any]:
    """Those of all workers."""
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, values)
    return [value for values in lists for value in values]


def report(metrics: dict[str, Any], stateful: dict[str, Any]) -> None:
    """Tells Ray how far training is; the first rank saves."""
    with TemporaryDirectory() as folder:
        saves = dist.get_rank() == 0
        if saves:
            torch.save({name: part.state_dict() for name, part in stateful.items()}, Path(folder, "state.pt"))
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder) if saves else None)


def main() -> None:
    """Starts the workers and prints what the last epoch saw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", required=True, help="an absolute path")
    parser.add_argument("--folder", required=True, help="for the checkpoints, an absolute path")
    parser.add_argument("--workers", type=int, nargs=2, default=(2, 2), metavar=("LEAST", "MOST"))
    parser.add_argument("--use-gpu", action="store_true")
    parser.add_argument("--global-batch", type=int, default=128, help="of all workers together")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--fail-after", type=int, help="fail after that many steps, to see it go on")
    options = parser.parse_args()

    trainer = TorchTrainer(
        train,
        train_loop_config=vars(options),
        scaling_config=ScalingConfig(num_workers=tuple(options.workers), use_gpu=options.use_gpu),
        run_config=RunConfig(storage_path=options.folder, failure_config=FailureConfig(max_failures=3)),
    )
    last = trainer.fit().metrics
    ray.shutdown()
    print("epoch {epoch}: {samples} samples, {different} different, loss {loss:.4f}".format(**last))


if __name__ == "__main__":
    main()
