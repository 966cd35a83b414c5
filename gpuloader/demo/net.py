"""A small convolutional network that trains quickly on a CPU."""

from __future__ import annotations

from torch import nn


def stage(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """A stage from (B, inputs, H, W) to (B, outputs, H / 2 / stride, W / 2 / stride)."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
    )


def small_net(classes: int = 10) -> nn.Module:
    """A network from normalised pictures, (B, 3, 96, 96) float32, to a score for each class, (B, classes) float32."""
    return nn.Sequential(
        stage(3, 24, kernel=5, stride=2),
        stage(24, 64),
        stage(64, 128),
        stage(128, 256),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, classes),
    )
