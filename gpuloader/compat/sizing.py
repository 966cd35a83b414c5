"""How many workers, how large a batch, and how fast a loader is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from gpuloader.errors import ConfigError, DeviceError
from gpuloader.helpers.cores import available_cores
from gpuloader.helpers.text import counted
from gpuloader.loading.world import World

_ON_A_CPU = 32
_SHARE = 0.8  # of the largest batch, because the optimizer's state and fragmentation need memory, too


def get_optimal_num_workers(device_type: str = "cuda") -> int:
    """Returns the number of workers: up to four for each GPU, limited by the cores; 0 for training on the CPU.

    Processes that torchrun starts on one machine share its GPUs and cores.

    Example:
        >>> from gpuloader.compat import get_optimal_num_workers
        >>> get_optimal_num_workers("cpu")
        0
    """
    if device_type == "cpu":
        return 0
    processes = World.detect().local_world_size
    gpus = max(1, torch.cuda.device_count() // processes)
    return max(1, min(4 * gpus, available_cores() // processes))


def calculate_optimal_batch_size(
    model: torch.nn.Module, input_shape: Sequence[int], device: str | torch.device = "cuda", *, most: int = 512
) -> int:
    """Returns 80 % of the largest batch that fits through the model, at most of `most`: sizes double while they fit.

    A model in training mode runs forward and backward; in evaluation mode, forward only. It is left unchanged:
    parameters, gradients, buffers such as BatchNorm's averages, mode and random numbers.

    Args:
        model: takes a float tensor (B, *input_shape); on the device.
        input_shape: of one sample, such as (3, 224, 224).
        device: on a CPU the answer is 32, because memory does not limit there.
        most: the largest batch that is tried.

    Raises:
        DeviceError: the memory has no room for 2 samples.

    Example:
        >>> import torch
        >>> from gpuloader.compat import calculate_optimal_batch_size
        >>> calculate_optimal_batch_size(torch.nn.Linear(4, 2), (4,), device="cpu")
        32
    """
    if torch.device(device).type == "cpu":
        return _ON_A_CPU
    fitting, size = 0, 2  # BatchNorm refuses a single sample
    while size <= most and _fits(model, (size, *input_shape), device):
        fitting, size = size, 2 * size
    torch.cuda.empty_cache()
    if not fitting:
        raise DeviceError(
            f"2 samples of {tuple(input_shape)} do not fit next to the model: is another process using the GPU? "
            f"If not, use smaller inputs or a smaller model"
        )
    return max(1, int(_SHARE * fitting))


def _fits(model: torch.nn.Module, shape: tuple[int, ...], device: str | torch.device) -> bool:
    devices = [device] if torch.device(device).type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), torch.set_grad_enabled(model.training):
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            outputs = torch.func.functional_call(model, buffers, (torch.randn(shape, device=device),))
            if model.training:
                losses = [tensor.float().sum() for tensor in _tensors(outputs) if tensor.requires_grad]
                learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
                if losses:
                    torch.autograd.grad(losses, learning, allow_unused=True)
    except torch.cuda.OutOfMemoryError:
        return False
    return True


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401
    """Yields the tensors in a model's output: a tensor, or mappings and sequences of tensors."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, (Mapping, list, tuple)):
        for part in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from _tensors(part)


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
        >>> from gpuloader.compat import diagnose_dataloader_speed
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
