#!/usr/bin/env python3
"""Trains an image classifier on TAR shards through GPULoader: in one process, or under torchrun in any number of them.

    torchrun --nproc-per-node 8 scripts/train_imagenet.py --config configs/train/resnet50.yaml --set output=runs/1

`Config` has the keys. The folder `output` gets the checkpoint `last.pt`; `result.json`, the last evaluation, when all
epochs are done; and TensorBoard's events. If there is a checkpoint, a run resumes from it, in mid-epoch, on any number
of ranks. On SIGTERM or SIGUSR1 all ranks end after the same step, with a checkpoint and exit status 0.

It is one file without a framework, for you to copy and change.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gpuloader import Compose, GPULoader, Stats

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

AMP = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Config(BaseModel):
    """The settings of a run.

    Attributes:
        train, val: the shards, as GPULoader takes them.
        output: the run's folder, which all nodes must see.
        model: a name from torchvision, `timm:NAME`, or the built-in `tiny`.
        train_preset, val_preset: the recipes; `train_overrides` and `val_overrides` replace values in them.
        global_batch: samples in a step of the optimiser, over all ranks.
        accumulation: the number of parts in which a rank handles its share of that, one after the other.
        lr: the highest learning rate: it rises to this over `warmup_epochs`, then falls to 0 as a cosine.
        norm_weight_decay: for normalisation layers; null means `weight_decay`.
        ema_decay: of a moving average of the weights, updated every `ema_every` steps and also evaluated; or null.
        amp: the dtype in which the net computes; "none" is float32.
        on_error: what to do with bad images, see GPULoader.
        save_every, log_every: in steps. A run is also saved at each epoch's end.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: str | list[str]
    val: str | list[str]
    output: Path
    model: str
    classes: PositiveInt = 1000
    train_preset: str
    train_overrides: dict[str, Any] = {}
    val_preset: str
    val_overrides: dict[str, Any] = {}
    epochs: PositiveInt
    global_batch: PositiveInt
    accumulation: PositiveInt = 1
    lr: PositiveFloat
    warmup_epochs: NonNegativeFloat = 0
    momentum: NonNegativeFloat = 0.9
    weight_decay: NonNegativeFloat = 0
    norm_weight_decay: NonNegativeFloat | None = None
    label_smoothing: NonNegativeFloat = 0
    ema_decay: float | None = Field(None, ge=0, le=1)
    ema_every: PositiveInt = 1
    amp: Literal["none", "bf16", "fp16"] = "none"
    channels_last: bool = False
    on_error: Literal["raise", "replace"] = "raise"
    seed: int = 0
    save_every: PositiveInt = 1000
    log_every: PositiveInt = 50


@dataclass
class Run:
    """What is trained and the progress: the content of a checkpoint.

    Attributes:
        steps_per_epoch: steps of the optimiser.
        epoch: the finished epochs, including their evaluation.
        step: the finished steps of the optimiser.
    """

    net: nn.Module
    ema: AveragedModel | None
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    loader: GPULoader
    steps_per_epoch: int
    epoch: int = 0
    step: int = 0

    def parts(self) -> dict[str, Any]:
        """The parts with a state."""
        return {name: part for name, part in vars(self).items() if hasattr(part, "state_dict")}


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains until all epochs are done, or a signal comes."""
    config = read_config(arguments)
    catch_signals()
    world_size, device = join_ranks()
    train(config, world_size, device)
    if dist.is_initialized():
        # After DistributedDataParallel is gone: if it is the last to hold the group, freeing it can wait for ever.
        dist.destroy_process_group()


def train(config: Config, world_size: int, device: torch.device) -> None:
    """Trains as one rank."""
    batch_size, rest = divmod(config.global_batch, world_size * config.accumulation)
    if rest:
        sys.exit(
            f"global_batch={config.global_batch} cannot be divided evenly among {world_size} ranks with "
            f"accumulation={config.accumulation}: use a multiple of {world_size * config.accumulation}"
        )
    train_loader, val_loader = make_loaders(config, batch_size, device)
    run = begin(config, train_loader)
    resume(run, config)
    rank = train_loader.world.rank
    if rank == 0 and run.epoch < config.epochs:
        (config.output / "result.json").unlink(missing_ok=True)  # it is from fewer epochs
    model = run.net
    if world_size > 1:
        model = DistributedDataParallel(run.net, device_ids=None if device.index is None else [device.index])
    with train_loader, val_loader, open_log(config.output, rank, run.step) as log:
        log.console.print(f"{world_size} x {device.type}, each {batch_size} x {config.accumulation} samples a step")
        log.console.print(f"{run.epoch} of {config.epochs} epochs and {run.step} steps are done")
        stopped = False
        while run.epoch < config.epochs and not stopped:
            stopped = not train_epoch(run, model, config, log)
            if not stopped:
                finish_epoch(run, val_loader, config, log)
                stopped = stop_requested()
        log.console.print(f"stopped by a signal after step {run.step}" if run.epoch < config.epochs else "done")


def read_config(arguments: Sequence[str] | None) -> Config:
    """Reads the file that the command line names, and the values that it sets."""
    parser = argparse.ArgumentParser(description="Trains an image classifier on TAR shards.")
    parser.add_argument("--config", type=Path, required=True, help="YAML, such as configs/train/resnet50.yaml")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="VALUE as in YAML")
    options = parser.parse_args(arguments)
    values = yaml.safe_load(options.config.read_text())
    for each in options.set:
        key, _, value = each.partition("=")
        values[key] = yaml.safe_load(value)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in error.errors()]
        keys = ", ".join(Config.model_fields)
        parser.error(f"{options.config} with {options.set}: {'; '.join(problems)}. The keys are {keys}")


def join_ranks() -> tuple[int, torch.device]:
    """Returns the number of ranks and this one's device; several ranks join torch.distributed."""
    world_size, device = int(os.environ.get("WORLD_SIZE", "1")), torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    if world_size > 1:
        # The ranks agree on signals through gloo, on the CPU, which does not wait for the GPU.
        dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    return world_size, device


def over_ranks(tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:  # noqa: ANN401
    """Reduces a tensor over all ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor, op)
    return tensor


_signals: set[int] = set()


def catch_signals() -> None:
    """Keeps SIGTERM, and SIGUSR1 as Slurm sends it before the time limit, for `stop_requested`."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: _signals.add(number))


def stop_requested() -> bool:
    """Whether a signal came to any rank. All ranks ask together, and get the same answer."""
    return bool(over_ranks(torch.tensor(len(_signals)), dist.ReduceOp.MAX))


def make_loaders(config: Config, batch_size: int, device: torch.device) -> tuple[GPULoader, GPULoader]:
    """Makes the loader for training, and the one for evaluation, which gives each sample once."""
    layout = {"layout": "channels_last" if config.channels_last else "nchw"}
    train = Compose.load(config.train_preset, **{**layout, **config.train_overrides})
    if train.mix is not None:
        train = Compose.load(train, mix={"num_classes": config.classes})
    val = Compose.load(config.val_preset, **{**layout, **config.val_overrides})
    same: dict[str, Any] = {"device_id": device.index, "seed": config.seed, "on_error": config.on_error}
    return (
        GPULoader(config.train, batch_size, preset=train, shuffle="full", last_batch="drop", **same),
        GPULoader(config.val, batch_size, preset=val, shuffle="none", last_batch="partial", output="dict", **same),
    )


def begin(config: Config, loader: GPULoader) -> Run:
    """A run at its first step, equal on all ranks."""
    torch.manual_seed(config.seed)
    net = make_net(config.model, config.classes).to(loader.device)
    if config.channels_last:
        net = net.to(memory_format=torch.channels_last)
    ema = None
    if config.ema_decay is not None:
        ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(config.ema_decay), use_buffers=True)
    scaler = torch.amp.GradScaler(loader.device.type, enabled=config.amp == "fp16")
    steps_per_epoch = len(loader) // config.accumulation  # the epoch's remaining batches are not used
    if not steps_per_epoch:
        sys.exit(f"global_batch={config.global_batch} is more than the samples of {config.train}: use a smaller one")
    return Run(net, ema, make_optimizer(net, config), scaler, loader, steps_per_epoch)


def make_net(name: str, classes: int) -> nn.Module:
    """A net from images, (B, 3, H, W), to scores, (B, classes)."""
    try:
        if name == "tiny":
            return tiny_net(classes)
        if name.startswith("timm:"):
            import timm

            return timm.create_model(name.removeprefix("timm:"), num_classes=classes)
        import torchvision

        return torchvision.models.get_model(name, num_classes=classes)
    except ImportError as error:
        sys.exit(f"model={name}: {error}: install it, or use model=tiny, which is built in")


def tiny_net(classes: int) -> nn.Module:
    """A small net for quick trials. It has no batch statistics, so the number of ranks changes nothing."""
    return nn.Sequential(
        nn.Conv2d(3, 16, kernel_size=3, stride=2),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def make_optimizer(net: nn.Module, config: Config) -> torch.optim.Optimizer:
    """SGD with momentum, and a separate weight decay for normalisation layers."""
    kinds = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    norms = {each for part in net.modules() if isinstance(part, kinds) for each in part.parameters()}
    norm_decay = config.weight_decay if config.norm_weight_decay is None else config.norm_weight_decay
    groups = [
        {"params": [each for each in net.parameters() if each not in norms], "weight_decay": config.weight_decay},
        {"params": [each for each in net.parameters() if each in norms], "weight_decay": norm_decay},
    ]
    return torch.optim.SGD(groups, config.lr, config.momentum)


def learning_rate(config: Config, epochs_done: float) -> float:
    """Linear from a hundredth, then a cosine. It depends on the progress only, so there is no state to save."""
    if epochs_done < config.warmup_epochs:
        return config.lr * (0.01 + 0.99 * epochs_done / config.warmup_epochs)
    share = (epochs_done - config.warmup_epochs) / (config.epochs - config.warmup_epochs)
    return config.lr * (1 + math.cos(math.pi * share)) / 2


def train_epoch(run: Run, model: nn.Module, config: Config, log: Log) -> bool:
    """Trains the rest of the epoch; returns False if a signal ended it earlier, and the run is saved."""
    steps = run.steps_per_epoch
    end = (run.epoch + 1) * steps
    run.loader.set_epoch(run.epoch)
    batches = iter(run.loader)
    log.bar.update(log.task, description=f"epoch {run.epoch + 1}/{config.epochs}", total=config.epochs * steps)
    losses, before = [], (time.perf_counter(), run.loader.stats())
    model.train()
    while run.step < end:
        rate = learning_rate(config, run.step / steps)
        for group in run.optimizer.param_groups:
            group["lr"] = rate
        torch.manual_seed(hash((config.seed, run.step, run.loader.world.rank)))  # for dropout: again no state to save
        losses.append(train_step(run, model, batches, config))
        run.step += 1
        if run.ema is not None and run.step % config.ema_every == 0:
            if run.step < config.warmup_epochs * steps:
                run.ema.n_averaged.zero_()  # so that it is a copy
            run.ema.update_parameters(run.net)
        log.bar.update(log.task, completed=run.step)
        if run.step % config.log_every == 0 or run.step == end:
            log.values(run.step, "train", {"lr": rate, **measured(run.loader, before, losses)})
            losses, before = [], (time.perf_counter(), run.loader.stats())
        stop = stop_requested()
        if stop or run.step % config.save_every == 0:
            save(run, config)
        if stop:
            return False
    return True


def measured(loader: GPULoader, before: tuple[float, Stats], losses: list[Tensor]) -> dict[str, float]:
    """The steps since `before`: loss and speed of all ranks together, and how long this rank waited for its data."""
    seconds, now, ranks = time.perf_counter() - before[0], loader.stats(), loader.world.world_size
    return {
        "loss": over_ranks(torch.stack(losses).mean()).item() / ranks,
        "images_per_second": (now.samples - before[1].samples) * ranks / seconds,
        "waiting": (now.waiting_seconds - before[1].waiting_seconds) / seconds,
    }


def train_step(run: Run, model: nn.Module, batches: Iterator[Any], config: Config) -> Tensor:
    """Runs a step of the optimiser; returns the mean loss of this rank's samples, still on its device."""
    loss_sum = torch.zeros((), device=run.loader.device)
    for part in range(config.accumulation):
        images, labels = next(batches)
        more = part + 1 < config.accumulation
        with model.no_sync() if more and isinstance(model, DistributedDataParallel) else nullcontext():
            with autocast(images, config.amp):
                loss = cross_entropy(model(images), labels, label_smoothing=config.label_smoothing)
            run.scaler.scale(loss / config.accumulation).backward()
        loss_sum += loss.detach() / config.accumulation
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.optimizer.zero_grad()
    return loss_sum


def autocast(images: Tensor, amp: str) -> torch.autocast:
    """Mixed precision, or none."""
    return torch.autocast(images.device.type, AMP[amp], enabled=amp != "none")


def finish_epoch(run: Run, loader: GPULoader, config: Config, log: Log) -> None:
    """Evaluates and saves."""
    nets = {"net": run.net} if run.ema is None else {"net": run.net, "ema": run.ema.module}
    results = {name: evaluate(net, loader, config.amp) for name, net in nets.items()}
    for name, values in results.items():
        log.values(run.step, name, values)
    run.epoch += 1
    if run.epoch == config.epochs and run.loader.world.rank == 0:
        with replacing(config.output / "result.json") as file:
            file.write(json.dumps(results, indent=2).encode())
    save(run, config)


@torch.inference_mode()
def evaluate(net: nn.Module, loader: GPULoader, amp: str) -> dict[str, float]:
    """Accuracy and loss: each sample counts once over all ranks, and replacements of bad images do not."""
    net.eval()
    for buffer in net.buffers() if dist.is_initialized() else ():
        dist.broadcast(buffer, 0)  # ranks have different batch statistics; the checkpoint has those of rank 0
    sums = torch.zeros(4, dtype=torch.float64, device=loader.device)
    for batch in loader:
        images, labels, valid = batch["image"], batch["label"], batch["valid"]
        if not len(images):  # a last batch can have fewer samples than ranks
            continue
        with autocast(images, amp):
            scores = net(images).float()
        right = scores.topk(min(5, scores.shape[1])).indices == labels[:, None]
        loss = cross_entropy(scores, labels, reduction="none")
        sums += (torch.stack([right[:, 0], right.any(1), loss, valid]) * valid).sum(1)
    count = over_ranks(sums)[3].item()
    return {**dict(zip(("top1", "top5", "loss"), (sums / count).tolist())), "images": int(count)}


def save(run: Run, config: Config) -> None:
    """Rank 0 writes the checkpoint."""
    if run.loader.world.rank == 0:
        state: dict[str, Any] = {name: part.state_dict() for name, part in run.parts().items()}
        state |= {"epoch": run.epoch, "step": run.step, "config": config.model_dump(mode="json")}
        with replacing(config.output / "last.pt") as file:
            torch.save(state, file)


def resume(run: Run, config: Config) -> None:
    """Resumes from the checkpoint, if there is one."""
    path = config.output / "last.pt"
    if path.exists():
        state = torch.load(path, map_location="cpu", weights_only=True)
        for key in ("model", "classes", "global_batch", "ema_decay"):
            was, now = state["config"][key], getattr(config, key)
            if was != now:
                sys.exit(f"{path} has {key}={was}, but this run has {now}: set the old value, or another output")
        for name, part in run.parts().items():
            part.load_state_dict(state[name])
        run.epoch, run.step = state["epoch"], state["step"]
    most, least = over_ranks(torch.tensor([run.step, -run.step]), dist.ReduceOp.MAX).tolist()
    if most != -least:
        sys.exit(f"{path} is at step {-least} for some ranks, {most} for others: use a folder that all nodes share")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file that replaces the old one when it is complete, so that nobody ever finds half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


@dataclass
class Log:
    """The output of rank 0: lines, a bar on a terminal, TensorBoard's events. Other ranks print nothing."""

    console: Console
    bar: Progress
    task: TaskID
    board: SummaryWriter | None

    def values(self, step: int, name: str, values: Mapping[str, float]) -> None:
        """Measured values, as a line and as events."""
        self.console.print(f"step {step}  {name}:", *(f"{key} {value:.5g}" for key, value in values.items()))
        for key, value in values.items():
            if self.board is not None:
                self.board.add_scalar(f"{name}/{key}", value, step)


@contextmanager
def open_log(folder: Path, rank: int, step: int) -> Iterator[Log]:
    """A log that continues after a step; later events in the folder become void."""
    console = Console(quiet=rank != 0, soft_wrap=True, highlight=False, markup=False)
    board = None
    if rank == 0:
        try:
            from torch.utils.tensorboard import SummaryWriter

            board = SummaryWriter(folder, purge_step=step + 1)
        except ImportError:
            console.print("TensorBoard is not installed: there will be no events for it")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=rank != 0 or not console.is_terminal) as bar:
        yield Log(console, bar, bar.add_task("", total=None), board)
    if board is not None:
        board.close()


if __name__ == "__main__":
    main()
