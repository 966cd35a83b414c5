"""Trains with transforms of albumentations, behind a crop that gpuloader makes. Needs albumentations.

python scripts/examples/albumentations_train.py --shards shards/train/ --classes 10
"""

from __future__ import annotations

import argparse

import albumentations as A  # noqa: N812
import torch

from gpuloader import Compose, GPULoader
from gpuloader.transforms import Apply, Normalize, RandomHorizontalFlip, RandomResizedCrop


def main() -> None:
    """Trains a small net for some epochs, and prints the loss of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", required=True)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    own = A.Compose([A.RandomBrightnessContrast(), A.CLAHE(p=0.3), A.OneOf([A.GaussNoise(), A.ISONoise()], p=0.2)])
    recipe = Compose(
        [
            RandomResizedCrop(options.size),
            RandomHorizontalFlip(),
            Apply(own, name="colours and noise"),
            Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
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
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    main()
