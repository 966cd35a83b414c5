"""Seeds everything that draws random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch


def worker_init_fn(worker_id: int) -> None:
    """Seeds `random` and NumPy in a DataLoader's worker, from torch's seed there.

    Example:
        >>> from gpuloader.data import worker_init_fn
        >>> from torch.utils.data import DataLoader
        >>> loader = DataLoader(range(8), num_workers=1, worker_init_fn=worker_init_fn)
    """
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def set_reproducible_training(seed: int = 42) -> tuple[Callable[[int], None], torch.Generator]:
    """Seeds `random`, NumPy and torch on all devices, and makes cuDNN deterministic.

    Returns:
        `worker_init_fn` and a seeded generator, for a DataLoader's arguments `worker_init_fn` and `generator`.

    Example:
        >>> from gpuloader.data import set_reproducible_training
        >>> seed_worker, generator = set_reproducible_training(42)
        >>> generator.initial_seed()
        42
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # of all GPUs, too
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return worker_init_fn, torch.Generator().manual_seed(seed)
