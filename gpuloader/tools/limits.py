"""What limits a loader, and what to change: arithmetic on what its stages cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal["disk", "read", "gate", "decode", "resize", "pixels", "loader"]
"""The stages, each with all before it; but "disk" is "read" where nothing is in the page cache."""

Limit: TypeAlias = Literal["disk", "read", "gate", "decode", "resize", "pixels", "delivery", "training"]

_READER_IS_BUSY = 0.8
_SMALL_OVERHEAD = 0.05
_MUCH_NOISE = 0.2


@dataclass(frozen=True)
class Cost:
    """What a stage takes, with all stages before it, for 1,000 images.

    Attributes:
        seconds: the time on the clock.
        cpu_seconds: core-seconds of CPU time.
    """

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Setup:
    """What the advice depends on.

    Attributes:
        on_gpu: whether a GPU decodes.
        fits_in_memory: whether the page cache can hold the shards, so that the disk is read in the first epoch only.
        decoded: whether the shards hold decoded images.
        shuffle: the order.
        threads, cores: those that decode, and those that there are.
    """

    on_gpu: bool
    fits_in_memory: bool
    decoded: bool
    shuffle: str
    threads: int
    cores: int


def cpu_shares(costs: Mapping[Stage, Cost]) -> dict[Stage, float]:
    """The share of the CPU time that each stage adds to those before it; together 1. "disk" is none of them."""
    chain = [stage for stage in costs if stage != "disk"]
    before = [0.0, *(costs[stage].cpu_seconds for stage in chain)]
    added = [max(0.0, costs[stage].cpu_seconds - less) for stage, less in zip(chain, before)]
    return {stage: share / (sum(added) or 1.0) for stage, share in zip(chain, added)}


def limit_of(costs: Mapping[Stage, Cost], setup: Setup) -> tuple[Limit, float]:
    """What limits the loader, and the share of its time that goes into that.

    A thread of its own reads and gates beside the decoding: it limits where it is busy nearly all of the time. Else the
    stage does that adds most: to the CPU time, or on a GPU to the time on the clock.
    """
    reading = costs["read" if setup.fits_in_memory else "disk"].seconds
    gating = max(0.0, costs["gate"].seconds - costs["read"].seconds)
    busy = (reading + gating) / costs["loader"].seconds
    if busy > _READER_IS_BUSY:
        if gating > reading:
            return "gate", min(1.0, busy)
        return ("read" if setup.fits_in_memory else "disk"), min(1.0, busy)
    behind: list[Stage] = [stage for stage in ("decode", "resize", "pixels", "loader") if stage in costs]
    if setup.on_gpu:
        before = [0.0, *(costs[stage].seconds for stage in behind)]
        added = {stage: costs[stage].seconds - less for stage, less in zip(behind, before)}
        whole = costs["loader"].seconds
    else:
        added = {stage: cpu_shares(costs)[stage] for stage in behind}
        whole = 1.0
    most = max(behind, key=lambda stage: added[stage])
    return ("delivery" if most == "loader" else most), min(1.0, added[most] / whole)


def advice(limit: Limit, share: float, setup: Setup) -> str:
    """What limits and what to change, in one sentence."""
    part = f"{share:.0%} of the {'time' if setup.on_gpu or limit in ('disk', 'read', 'gate') else 'CPU time'}"
    more = f"more threads ({setup.threads} of {setup.cores} cores decode)"
    stronger = f"{more if setup.threads < setup.cores else 'more cores'} or a GPU"
    if setup.on_gpu:
        stronger = "larger batches and other thread counts (`gpuloader tune`)"
    smaller = "smaller images (`gpuloader pack --max-size`)"
    block = ', or use shuffle="block", which reads neighbours together' if setup.shuffle == "full" else ""
    encoded = ", or encoded ones in place of arrays" if setup.decoded else ""
    return {
        "disk": f"Reading from the disk limits, {part}: put the shards on a faster one{block}.",
        "read": f"Copying the images out of the page cache limits, {part}: store {smaller}{encoded}.",
        "gate": f"What is done for each image before decoding limits (header, draws, labels, fields), {part}: take "
        f"labels from .cls and ask for fewer `fields`, or spread the work over more processes.",
        "decode": f"Decoding limits, {part}: give it {stronger}, or store {smaller} or decoded ones "
        f"(`gpuloader pack --decoded`).",
        "resize": f"Resizing and normalising limit, {part}: give them {stronger}, or store {smaller}.",
        "pixels": f"The recipe's operations on pixels limit, {part}: give them {stronger}, or take fewer of them.",
        "delivery": f"Handing batches out limits (labels to the device, mixing), {part}: use larger batches"
        f"{'' if setup.on_gpu else ', or a GPU'}.",
        "training": f"The model limits, the loader makes a step {max(0.0, share):.1%} longer: a faster one would "
        f"change next to nothing.",
    }[limit]


def what_limits(costs: Mapping[Stage, Cost], setup: Setup, overhead: float | None = None, noise: float = 0.0) -> str:
    """The advice; for a training, where the `overhead` of the loader on its step is known and not lost in the noise."""
    if overhead is not None and overhead < _SMALL_OVERHEAD and noise < _MUCH_NOISE:
        return advice("training", overhead, setup)
    return advice(*limit_of(costs, setup), setup)
