"""Finds what limits a loader, and what to change, from the costs of its stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpuloader.loading.monitor import MOST_OF_THE_TIME, Bottleneck, describe_bottleneck

StageName: TypeAlias = Literal["read", "gate", "decode", "resize", "pixels", "loader"]
"""The stages, each with all stages before it."""

_READER_IS_BUSY = 0.8
_MUCH_NOISE = 0.2
TITLES: Mapping[StageName, str] = {
    "read": "read, from the page cache",
    "gate": "+ headers, random numbers, labels",
    "decode": "+ decode the regions",
    "resize": "+ resize, crop, flip",
    "pixels": "+ change pixels, normalise",
    "loader": "the loader: + deliver batches",
}


@dataclass(frozen=True)
class Cost:
    """The cost of a stage, with all stages before it, for 1,000 images.

    Attributes:
        seconds: elapsed time.
        cpu_seconds: core-seconds of CPU time, with child processes.
        own_code_seconds: the part of `seconds` that the loader waited for own code.
    """

    seconds: float
    cpu_seconds: float
    own_code_seconds: float = 0.0


def cpu_shares(costs: Mapping[StageName, Cost]) -> dict[StageName, float]:
    """Returns the share of the CPU time that each stage adds to those before it; together 1."""
    before = [0.0, *(cost.cpu_seconds for cost in costs.values())]
    added = [max(0.0, cost.cpu_seconds - less) for cost, less in zip(costs.values(), before)]
    return {stage: share / (sum(added) or 1.0) for stage, share in zip(costs, added)}


def limit_of(costs: Mapping[StageName, Cost], on_gpu: bool) -> tuple[Bottleneck, float]:
    """Returns what limits the loader, and its share of the loader's time.

    A separate thread reads and validates images while others decode. It limits the loader if it is busy nearly all of
    the time. Own code limits the loader if it is waited for most of the time. Otherwise the limit is the stage that
    adds most CPU time, or on a GPU most elapsed time.
    """
    reading, gated = costs["read"].seconds, costs["gate"].seconds
    busy = max(reading, gated) / costs["loader"].seconds
    if busy > _READER_IS_BUSY:
        return "gate" if gated > 2 * reading else "read", min(1.0, busy)
    waited = costs["loader"].own_code_seconds / costs["loader"].seconds
    if waited > MOST_OF_THE_TIME:
        return "own code", min(1.0, waited)
    behind: list[StageName] = [stage for stage in ("decode", "resize", "pixels", "loader") if stage in costs]
    if on_gpu:
        before = [0.0, *(costs[stage].seconds for stage in behind)]
        added = {stage: costs[stage].seconds - less for stage, less in zip(behind, before)}
        total = costs["loader"].seconds
    else:
        added = {stage: cpu_shares(costs)[stage] for stage in behind}
        total = 1.0
    most = max(behind, key=lambda stage: added[stage])
    return ("delivery" if most == "loader" else most), min(1.0, added[most] / total)


def contradiction(costs: Mapping[StageName, Cost], on_gpu: bool) -> str | None:
    """Returns which stage cost much less than a stage that it contains; None if no stage did.

    CPU times are compared only on a CPU, because stages may wait for a GPU in different ways.
    """
    units = [("s", "seconds")] if on_gpu else [("s", "seconds"), ("CPU s", "cpu_seconds")]
    for unit, cost in units:
        chain = [(stage, getattr(each, cost)) for stage, each in costs.items()]
        for number, (stage, taken) in enumerate(chain[1:], start=1):
            part, most = max(chain[:number], key=lambda each: each[1])
            if taken < (1 - _MUCH_NOISE) * most:
                return (
                    f"`{TITLES[stage]}` took {taken:.3g} {unit} for 1,000 images, but `{TITLES[part]}`, a part of it, "
                    f"took {most:.3g} {unit}"
                )
    return None


def what_limits(costs: Mapping[StageName, Cost], on_gpu: bool) -> str:
    """Returns a sentence: what limits the loader and what to change, or that the measurements contradict each other.

    Args:
        costs: the cost of each stage.
        on_gpu: whether a GPU decodes.
    """
    if found := contradiction(costs, on_gpu):
        return (
            f"The measurements contradict each other, so no bottleneck is named: {found}. Measure longer "
            f"(`--seconds`), while nothing else uses the machine."
        )
    limit, share = limit_of(costs, on_gpu)
    time = "time" if on_gpu or limit in ("read", "gate", "own code") else "CPU time"
    return describe_bottleneck(limit, f"{share:.0%} of the {time}")
