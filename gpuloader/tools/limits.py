"""Finds what limits a loader, and what to change, from the costs of its stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from gpuloader.loading.monitor import MOST_OF_THE_TIME, Bottleneck, describe_bottleneck

StageName: TypeAlias = Literal["read", "gate", "decode", "resize", "pixels", "own code", "loader"]
"""The stages, each with all stages before it."""

_READER_IS_BUSY = 0.8
_MUCH_NOISE = 0.2
TITLES: Mapping[StageName, str] = {
    "read": "read, from the page cache",
    "gate": "+ headers, random numbers, labels",
    "decode": "+ decode the regions",
    "resize": "+ resize, crop, flip",
    "pixels": "+ change pixels, normalise",
    "own code": "+ own code",
    "loader": "the loader: + deliver batches",
}


class Cost(NamedTuple):
    """The elapsed seconds of a stage for 1,000 images, and its core-seconds of CPU time, with child processes."""

    seconds: float
    cpu_seconds: float


def cpu_shares(costs: Mapping[StageName, Cost]) -> dict[StageName, float]:
    """Returns the share of the CPU time that each stage adds to those before it; together 1."""
    added = _added({stage: cost.cpu_seconds for stage, cost in costs.items()})
    return {stage: share / (sum(added.values()) or 1.0) for stage, share in added.items()}


def limit_of(costs: Mapping[StageName, Cost], on_gpu: bool) -> tuple[Bottleneck, float, str]:
    """Returns what limits the loader, and its share of the loader's time or CPU time.

    A separate thread reads and validates images while others decode. It limits the loader if it is busy nearly all of
    the time. Own code limits the loader if it adds most of the time. Otherwise the limit is the stage that adds most
    CPU time, or on a GPU most elapsed time.
    """
    reading, gated, total = (costs[stage].seconds for stage in ("read", "gate", "loader"))
    busy = max(reading, gated) / total
    if busy > _READER_IS_BUSY:
        return "gate" if gated > 2 * reading else "read", min(1.0, busy), "time"
    behind = {stage: cost.seconds / total for stage, cost in costs.items() if stage not in ("read", "gate")}
    shares, unit = _added(behind), "time"
    if not on_gpu and shares.get("own code", 0.0) <= MOST_OF_THE_TIME:
        in_cpu, unit = cpu_shares(costs), "CPU time"
        shares = {stage: in_cpu[stage] for stage in behind}
    most = max(shares, key=lambda stage: shares[stage])
    return ("delivery" if most == "loader" else most), min(1.0, shares[most]), unit


def contradiction(costs: Mapping[StageName, Cost], on_gpu: bool) -> str | None:
    """Returns which stage cost much less than a stage that it contains; None if no stage did.

    Much is a share of the largest cost. CPU times are compared only on a CPU, because stages may wait for a GPU in
    different ways.
    """
    units = [("s", "seconds")] if on_gpu else [("s", "seconds"), ("CPU s", "cpu_seconds")]
    for unit, cost in units:
        each = {TITLES[stage]: getattr(both, cost) for stage, both in costs.items()}
        noise, most, part = _MUCH_NOISE * max(each.values()), 0.0, ""
        for title, taken in each.items():
            if taken < most - noise:
                took = f"took {taken:.3g} {unit} for 1,000 images"
                return f"`{title}` {took}, but `{part}`, a part of it, took {most:.3g} {unit}"
            most, part = max((most, part), (taken, title))
    return None


def what_limits(costs: Mapping[StageName, Cost], on_gpu: bool) -> str:
    """Returns a sentence: what limits the loader and what to change, or that the measurements contradict each other."""
    if found := contradiction(costs, on_gpu):
        return (
            f"The measurements contradict each other, so no bottleneck is named: {found}. Measure longer "
            f"(`--seconds`), while nothing else uses the machine."
        )
    limit, share, unit = limit_of(costs, on_gpu)
    return describe_bottleneck(limit, f"{share:.0%} of the {unit}")


def _added(costs: Mapping[StageName, float]) -> dict[StageName, float]:
    """Returns what each stage adds to the one before it, at least 0."""
    return {stage: max(0.0, cost - less) for (stage, cost), less in zip(costs.items(), [0.0, *costs.values()])}
