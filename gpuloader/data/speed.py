"""Measures how fast a loader is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch

from gpuloader.errors import ConfigError
from gpuloader.helpers.text import counted

_SLOW_SECONDS = 0.1
_ADVICE = """\
Consider:
- Increasing num_workers
- Using pin_memory=True (for GPU training)
- Enabling persistent_workers
- Increasing prefetch_factor"""


def diagnose_dataloader_speed(dataloader: Iterable[Any], batches: int = 10, warmup: int = 3) -> float:
    """Prints and returns the seconds that a batch takes to load; prints advice if they are more than 0.1.

    All batches are from one epoch, because beginning a new one for each batch would measure the beginning.

    Args:
        dataloader: torch's, a `GPULoader`, or any other iterable of batches.
        batches: how many are measured; fewer if the epoch ends earlier.
        warmup: how many are skipped first, while workers start and caches fill.

    Raises:
        ConfigError: the epoch has no batches after the warm-up.

    Example:
        >>> from gpuloader.data import diagnose_dataloader_speed
        >>> seconds = diagnose_dataloader_speed(range(20))  # doctest: +ELLIPSIS
        Average batch load time: 0.0...s
    """
    epoch = iter(dataloader)
    passed = sum(1 for _ in islice(epoch, warmup))
    _wait_for_copies()
    started = time.perf_counter()
    measured = sum(1 for _ in islice(epoch, batches))
    _wait_for_copies()
    if measured == 0:
        raise ConfigError(f"an epoch has {counted(passed, 'batch', 'batches')}: it must have more than warmup={warmup}")
    seconds = (time.perf_counter() - started) / measured
    print(f"Average batch load time: {seconds:.3f}s")
    if seconds > _SLOW_SECONDS:
        print(_ADVICE)
    return seconds


def _wait_for_copies() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
