"""Trains on several views of the same crops: with timm's JSD loss (--aug-splits 3), or as FixMatch does.

python scripts/examples/shared_views.py --shards shards/train/ --classes 10 --loss jsd
"""

from __future__ import annotations

import argparse

import torch
from torch.nn.functional import cross_entropy, kl_div

from gpuloader import Compose, GPULoader
from gpuloader.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop, TimmRandAugment, View

SURE = 0.95  # FixMatch's threshold


def main() -> None:
    """Trains a small net for some epochs, and prints the loss of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--loss", choices=["jsd", "fixmatch"], default="jsd")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    normalize = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    recipe = Compose(
        [RandomResizedCrop(options.size), RandomHorizontalFlip()],  # once for all views
        views=[View([normalize]), View([TimmRandAugment(), normalize], count=2 if options.loss == "jsd" else 1)],
    )
    loader = GPULoader(options.shards, options.batch_size, preset=recipe)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(256, options.classes),
    ).to(loader.device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for epoch in range(options.epochs):
        losses = []
        for images, labels in loader:
            loss = (jsd_loss if options.loss == "jsd" else fixmatch_loss)(model, images, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: {len(images)} views, {options.loss} loss {sum(losses) / len(losses):.4f}")


def jsd_loss(model: torch.nn.Module, images: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """timm's `JsdCrossEntropy`: the labels for the first view, and all views' predictions near their mean."""
    logits = model(torch.cat(images)).chunk(len(images))
    shares = torch.stack([each.softmax(1) for each in logits])
    mean = shares.mean(0).clamp(1e-7, 1).log()
    return cross_entropy(logits[0], labels) + 12 * sum(
        kl_div(mean, each, reduction="batchmean") for each in shares
    ) / len(shares)


def fixmatch_loss(model: torch.nn.Module, images: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """FixMatch's, of one loader: the second half of a batch is without labels.

    Where the prediction for the weak view is sure, it is the label of the strong view.
    """
    weak, strong = images
    labelled = len(labels) // 2
    logits = model(torch.cat([weak, strong[labelled:]]))
    share, pseudo = logits[labelled : len(weak)].detach().softmax(1).max(1)
    unlabelled = cross_entropy(logits[len(weak) :], pseudo, reduction="none")
    return cross_entropy(logits[:labelled], labels[:labelled]) + (unlabelled * (share >= SURE)).mean()


if __name__ == "__main__":
    main()
