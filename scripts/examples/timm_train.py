"""Trains a timm model with timm's optimizer, schedule, averaged weights and loss, on DeiT's recipe.

python scripts/examples/timm_train.py --shards shards/train/ --val shards/val/
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy

from gpuloader import GPULoader


def main() -> None:
    """Trains, and evaluates the averaged weights after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--val", required=True, help="shards to evaluate on")
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--scale", type=float, nargs=2, default=[0.08, 1], help="of a crop's area")
    parser.add_argument("--mixup", type=float, default=0.8)
    parser.add_argument("--cutmix", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--lr", type=float, default=5e-4, help="of a batch of 512")
    options = parser.parse_args()

    train = GPULoader(
        options.shards,
        options.batch_size,
        preset={
            "deit": {
                "RandomResizedCrop": {"size": options.size, "scale": options.scale},
                "mix": {"num_classes": options.classes, "mixup_alpha": options.mixup, "cutmix_alpha": options.cutmix},
            }
        },
    )
    val = GPULoader(
        options.val,
        options.batch_size,
        preset={"deit_eval": {"Resize": {"size": options.size}, "CenterCrop": {"size": options.size}}},
    )
    # Transformers are built for one size of images; most networks of convolutions take any, and no such argument.
    config = timm.get_pretrained_cfg(options.model)
    size = {"img_size": options.size} if config and config.fixed_input_size else {}
    model = timm.create_model(options.model, num_classes=options.classes, **size).to(train.device)
    ema = ModelEmaV3(model, decay=0.9999, use_warmup=True)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=options.lr * options.batch_size / 512, weight_decay=0.05)
    schedule, epochs = create_scheduler_v2(
        optimizer, num_epochs=options.epochs, step_on_epochs=False, updates_per_epoch=len(train)
    )
    for epoch in range(epochs):
        train.set_epoch(epoch)
        loss = train_one_epoch(epoch, model, train, optimizer, SoftTargetCrossEntropy(), schedule, ema)
        top1, samples = validate(ema.module, val)
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {top1:.1f}% of {samples} samples")


def train_one_epoch(
    epoch: int,
    model: torch.nn.Module,
    loader: GPULoader,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    lr_scheduler: Scheduler,
    model_ema: ModelEmaV3,
) -> float:
    """The function of that name in timm's train.py, in short: the mean loss of an epoch."""
    losses = AverageMeter()
    model.train()
    for update, (images, targets) in enumerate(loader, start=epoch * len(loader)):  # targets: (B, classes)
        loss = loss_fn(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model_ema.update(model, step=update)
        lr_scheduler.step_update(num_updates=update + 1)
        losses.update(loss.item(), len(images))
    return losses.avg


@torch.no_grad()
def validate(model: torch.nn.Module, loader: GPULoader) -> tuple[float, int]:
    """Top-1 accuracy in percent, and of how many samples."""
    top1 = AverageMeter()
    model.eval()
    for images, labels in loader:
        [percent] = accuracy(model(images), labels)
        top1.update(percent.item(), len(images))
    return top1.avg, top1.count


if __name__ == "__main__":
    main()
