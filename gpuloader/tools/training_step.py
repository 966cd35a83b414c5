"""Measures what a loader costs a training: steps on its batches, and steps on a batch already on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from statistics import median

import torch
from torch import nn

from gpuloader.errors import ConfigError
from gpuloader.loading.loader import GPULoader
from gpuloader.tools.measuring import images_of
from gpuloader.tools.small_net import small_net

_ROUNDS = 5
_CLASSES = 1000


@dataclass(frozen=True)
class TrainingFigures:
    """A training step with the loader and without it. Both are run in turn; figures are medians over the rounds.

    Attributes:
        model: the network's name.
        resident_step_seconds: a step on one synthetic batch that stays on the device.
        loaded_step_seconds: a step and its batch from the loader.
        waiting_share: the share of `loaded_step_seconds` spent waiting for the loader, in [0, 1].
        overhead: how much longer the loaded step takes, as a share of the resident one; on a CPU this includes what
            decoding takes from the net.
        noise: the spread of the resident steps, as a share of their time; a smaller overhead means nothing.
    """

    model: str
    resident_step_seconds: float
    loaded_step_seconds: float
    waiting_share: float
    overhead: float
    noise: float


def prepare_training(loader: GPULoader, model: str) -> Callable[[float], TrainingFigures]:
    """Makes a network, and returns a function that trains it for about the given number of seconds.

    A step is forward, backward and update; on a GPU in bfloat16 and channels_last.

    Args:
        loader: its recipe must make one view, in a float dtype.
        model: "small", or a name that torchvision or timm knows.

    Raises:
        ConfigError: neither library knows the name, or a network cannot use the recipe's output.
    """
    preset = loader.preset
    if len(preset.each_view) > 1 or preset.dtype == "uint8":
        raise ConfigError(
            f"a training needs one image of each sample, in a float dtype; this recipe makes {len(preset.each_view)} "
            f"in {preset.dtype}: use another preset, or measure without a training"
        )
    step = _training_step(make_model(model), loader.device)
    return lambda seconds: _measure(loader, model, step, seconds)


def make_model(name: str) -> nn.Module:
    """A network by its name: "small" is the demo's; then the names of torchvision and timm, if they are installed.

    Raises:
        ConfigError: the name is unknown.
    """
    known, absent = ["small"], ""
    if name == "small":
        return small_net(_CLASSES)
    for package in ("torchvision", "timm"):
        try:
            names, make = _networks(package)
        except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision is for another torch
            absent += f"; {package} cannot be imported ({error})"
            continue
        if name in names:
            return make(name)
        known += names
    close = [f" (did you mean {each}?)" for each in get_close_matches(name, known, 1)]
    raise ConfigError(
        f"no network is called {name!r}{''.join(close)}; allowed are small and the names of torchvision.models and timm"
        f"{absent}"
    )


def _networks(package: str) -> tuple[list[str], Callable[[str], nn.Module]]:
    if package == "timm":
        import timm

        return timm.list_models(), timm.create_model
    from torchvision import models

    return models.list_models(), models.get_model


def _measure(loader: GPULoader, model: str, step: Callable[[torch.Tensor], None], seconds: float) -> TrainingFigures:
    fed = _epochs(loader)
    resident = torch.randn_like(next(fed))
    step(resident)
    waited = 0.0

    def fed_step() -> None:
        nonlocal waited
        started = time.perf_counter()
        images = next(fed)
        waited += time.perf_counter() - started
        step(images)

    slot = seconds / _ROUNDS / 2
    alone: list[float] = []
    with_loader: list[float] = []
    waiting: list[float] = []
    for _ in range(_ROUNDS):
        alone.append(_time_steps(lambda: step(resident), loader.device, slot)[0])
        _time_steps(fed_step, loader.device, slot / 4)  # uses up the batches that were made in the meantime
        waited = 0.0
        step_seconds, steps = _time_steps(fed_step, loader.device, slot)
        with_loader.append(step_seconds)
        waiting.append(waited / steps / step_seconds)
    usual = median(alone)
    return TrainingFigures(
        model=model,
        resident_step_seconds=usual,
        loaded_step_seconds=median(with_loader),
        waiting_share=median(waiting),
        overhead=median(with_loader) / usual - 1,
        noise=(max(alone) - min(alone)) / usual,
    )


def _training_step(network: nn.Module, device: torch.device) -> Callable[[torch.Tensor], None]:
    on_gpu = device.type == "cuda"
    memory_format = torch.channels_last if on_gpu else torch.contiguous_format
    network = network.to(device=device, memory_format=memory_format).train()  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step(images: torch.Tensor) -> None:
        labels = torch.zeros(len(images), dtype=torch.int64, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            loss = nn.functional.cross_entropy(network(images.to(torch.float32, memory_format=memory_format)), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _epochs(loader: GPULoader) -> Iterator[torch.Tensor]:
    while True:
        for batch in loader:
            yield next(images_of(batch))


def _time_steps(step: Callable[[], None], device: torch.device, seconds: float) -> tuple[float, int]:
    """The mean time of a step over at least this long and at least one step; and the number of steps."""
    _wait(device)
    steps, started = 0, time.perf_counter()
    while steps == 0 or time.perf_counter() - started < seconds:
        step()
        steps += 1
    _wait(device)
    return (time.perf_counter() - started) / steps, steps


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
