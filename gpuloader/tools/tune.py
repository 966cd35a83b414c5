"""Finds the loader's fastest settings on your shards and machine.

It tries only settings that change no pixel and no order: threads, prefetch, on a GPU the decoder's, and the batch size
if asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

import yaml

from gpuloader.errors import ConfigError
from gpuloader.helpers.progress import progress_bar
from gpuloader.helpers.text import counted
from gpuloader.loading.loader import GPULoader, run_of
from gpuloader.loading.selection import Sources
from gpuloader.tools.machine import Machine, this_machine
from gpuloader.tools.measuring import as_yaml, count_samples, fitting_batch_size, load_epochs, measure, with_output
from gpuloader.tools.outputs import check_output

__all__ = ["TuneResult", "tune", "verdict"]

REPEATS = 3
LEAST_GAIN = 0.02
_RUNS = 40
_LONGEST_RUN_SECONDS = 5.0
_PREFETCH = (2, 1, 3, 4, 8)
_THRESHOLDS = (10**6, 0, 10**5, 10**9)
"""DALI's defaults first."""

Settings: TypeAlias = dict[str, float]
Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True)
class Run:
    """One measurement: the settings and their speed."""

    settings: Settings
    images_per_second: float


@dataclass(frozen=True)
class Search:
    """The result of a search.

    Attributes:
        best: the settings that won; the first ones if none was better beyond the noise.
        before, after: images per second with the first settings and with the best ones, medians of runs in turn.
        runs: all runs, in order.
        complete: whether everything was tried before the time was up.
    """

    best: Settings
    before: float
    after: float
    runs: tuple[Run, ...]
    complete: bool


@dataclass(frozen=True)
class TuneResult:
    """The best settings, and where they were measured.

    Attributes:
        date: UTC, in ISO 8601.
        machine: where it was measured.
        device: "cpu" or "cuda:N".
        arguments: of GPULoader, including the best settings.
        defaults: the default values of these settings.
        search: the search.
        seconds: how long it took.
    """

    date: str
    machine: Machine
    device: str
    arguments: dict[str, Any]
    defaults: Settings
    search: Search
    seconds: float


def tune(
    tar: Sources,
    batch_size: int | None = None,
    device_id: int | Literal["auto"] | None = "auto",
    *,
    batch_sizes: Sequence[int] = (),
    seconds: float = 120.0,
    output: str | Path | None = None,
    progress: bool = False,
    clock: Clock = time.perf_counter,
    **arguments: Any,  # noqa: ANN401 - those of GPULoader
) -> TuneResult:
    """Searches the number of threads, `prefetch`, the decoder's settings on a GPU and, if asked to, the batch size.

    The setting with the most images per second wins. It replaces the previous best only if it is better beyond the
    noise, and at the end the result is measured against the defaults once more.

    Args:
        tar, device_id: as for `GPULoader`.
        batch_size: as for `GPULoader`; None for 128, or the largest power of two that the samples fill.
        batch_sizes: others to try.
        seconds: how long it may take; the run in progress finishes first.
        output: a YAML file to write, for `GPULoader(**yaml.safe_load(...))`.
        progress: show the progress on stderr.
        clock: tells the time in seconds.
        arguments: further arguments of `GPULoader`, as plain values.

    Raises:
        ConfigError: an argument is invalid, or a batch is larger than the number of samples.
    """
    if not seconds > 0:
        raise ConfigError(f"seconds={seconds!r}: allowed is a number above 0")
    if output is not None:
        check_output(output)
    if "decoder" in arguments:
        raise ConfigError("decoder: tune searches these settings; leave them out")
    try:
        yaml.safe_dump(as_yaml({"tar": tar, **arguments}))
    except yaml.YAMLError as error:
        raise ConfigError(f"an argument that YAML cannot hold ({error}): give a recipe as a name or a file") from None
    arguments = with_output(arguments)
    machine = this_machine()
    samples = count_samples(tar, device_id, arguments)
    batch_size = fitting_batch_size(batch_size, samples)
    sizes = tuple(dict.fromkeys([batch_size, *(fitting_batch_size(each, samples) for each in batch_sizes)]))
    for each in reversed(sizes):  # making a loader checks the arguments
        with GPULoader(tar, each, device_id, **arguments) as loader:
            run = run_of(loader)
            device, threads, decoder = str(loader.device), run.num_threads, run.decoder
            if each == batch_size:
                next(iter(loader), None)  # starts what takes long to start
    started = clock()
    choices: dict[str, Sequence[float]] = {
        "num_threads": thread_choices(threads, machine.cores),
        "prefetch": _PREFETCH,
        **gpu_choices(decoder.hw_load),
        "batch_size": sizes,
    }
    run_seconds = min(seconds / _RUNS, _LONGEST_RUN_SECONDS)

    def images_per_second(settings: Settings) -> float:
        whole_batches = {"last_batch": "pad", **arguments, **_as_arguments(settings)}
        with GPULoader(tar, device_id=device_id, **whole_batches) as loader, closing(load_epochs(loader)) as batches:
            return 1000 / measure(batches, run_seconds).seconds

    with progress_bar(progress) as bar:
        task = bar.add_task(f"tuning, {device}, seconds", total=round(seconds))
        found = search(
            choices,
            images_per_second,
            started + seconds,
            clock,
            lambda: bar.update(task, completed=min(round(clock() - started), round(seconds))),
        )
    result = TuneResult(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine,
        device=device,
        arguments={"tar": as_yaml(tar), "device_id": device_id, **as_yaml(arguments), **_as_arguments(found.best)},
        defaults={name: values[0] for name, values in choices.items()},
        search=found,
        seconds=clock() - started,
    )
    if output is not None:
        Path(output).write_text(tuned_yaml(result), encoding="utf-8")
    return result


def _as_arguments(settings: Settings) -> dict[str, Any]:
    """Returns the settings as arguments of GPULoader: all but the batch size belong to the decoder."""
    decoder = {name: value for name, value in settings.items() if name != "batch_size"}
    return {"batch_size": settings["batch_size"], "decoder": decoder}


def thread_choices(default: int, cores: int) -> tuple[int, ...]:
    """Returns numbers of threads to try, the default first: some around it, and all cores."""
    around = (default, default // 4, default // 2, default - 1, 2 * default, cores)
    return tuple(dict.fromkeys(threads for threads in around if 1 <= threads <= cores))


def gpu_choices(hw_load: float | None) -> dict[str, Sequence[float]]:
    """Returns settings of a GPU's decoder to try, the default first: `hw_load` as a loader found it, None on the CPU.

    It tries no share between all and none, as pixels would depend on the batch, and no engines that decode wrongly.
    """
    if hw_load is None:
        return {}
    return {"hw_load": (1.0, 0.0) if hw_load else (0.0,), "hybrid_huffman_threshold": _THRESHOLDS}


class _TimeIsUpError(Exception):
    """There is no time left for another run."""


def search(
    choices: Mapping[str, Sequence[float]],
    run: Callable[[Settings], float],
    ends_at: float,
    clock: Clock = time.perf_counter,
    tell: Callable[[], object] = lambda: None,
) -> Search:
    """Tries the values of one setting after another, each in turn with the best settings so far.

    Args:
        choices: the values of each setting, the default first.
        run: measures settings: images per second.
        ends_at: the clock's time after which no run begins; the last runs compare the best with the defaults.
        tell: called after each run.
    """
    runs: list[Run] = []
    longest_seconds = 0.0

    def timed(settings: Settings, reserve: int = 0) -> float:
        """Runs settings if there is time left for this and `reserve` more runs."""
        nonlocal longest_seconds
        began = clock()
        if began + reserve * longest_seconds >= ends_at:
            raise _TimeIsUpError
        rate = run(settings)
        longest_seconds = max(longest_seconds, clock() - began)
        runs.append(Run(settings, rate))
        tell()
        return rate

    defaults = best = {name: values[0] for name, values in choices.items()}
    complete = True
    try:
        for name, values in choices.items():
            for value in values[1:]:
                if beats(timed, best, {**best, name: value}, reserve=2 * REPEATS):
                    best = {**best, name: value}
    except _TimeIsUpError:
        complete = False
    before: list[float] = []
    after: list[float] = []
    try:
        while len(after) < REPEATS:
            before.append(timed(defaults))
            if best == defaults:
                after = before
            else:
                after.append(timed(best))
    except _TimeIsUpError:
        complete = False
    if not after or median(after) < (1 + LEAST_GAIN) * median(before):
        best, after = defaults, before
    return Search(best, median(before or [0.0]), median(after or [0.0]), tuple(runs), complete)


def beats(run: Callable[..., float], best: Settings, candidate: Settings, reserve: int = 0) -> bool:
    """Returns whether a candidate is better beyond the noise.

    Both are run in turn. Every run of the candidate must be faster than every run of the best, and together they must
    be 2 % faster. As soon as one is not, no further run is made.
    """
    of_best: list[float] = []
    of_candidate: list[float] = []
    for _ in range(REPEATS):
        of_best.append(run(best, reserve))
        of_candidate.append(run(candidate, reserve))
        if min(of_candidate) <= max(of_best):
            return False
    return median(of_candidate) >= (1 + LEAST_GAIN) * median(of_best)


def tuned_yaml(result: TuneResult) -> str:
    """Returns the loader's arguments as YAML, with a comment that says what was measured."""
    searched = result.search
    versions = ", ".join(f"{name} {version}" for name, version in result.machine.versions.items())
    comment = [
        "Arguments of GPULoader: GPULoader(**yaml.safe_load(open(...))). Written by `gpuloader tune`.",
        verdict(result),
        f"Measured {result.date} on {result.device} in {counted(len(searched.runs), 'run')}: {result.machine}.",
        f"{versions}.",
    ]
    return "".join(f"# {line}\n" for line in comment) + yaml.safe_dump(result.arguments, sort_keys=False)


def verdict(result: TuneResult) -> str:
    """Says the result in one sentence."""
    searched = result.search
    if not searched.before:
        return "These are the defaults: the time was up before anything was measured."
    stopped = "" if searched.complete else "; the time was up before everything was tried"
    if searched.best == result.defaults:
        return f"The defaults were best: {searched.before:,.0f} images/s{stopped}."
    changed = ", ".join(
        f"{name}={value} (default {result.defaults[name]})"
        for name, value in searched.best.items()
        if value != result.defaults[name]
    )
    gain = searched.after / searched.before - 1
    return f"{changed}: {searched.after:,.0f} images/s, before {searched.before:,.0f} ({gain:+.0%}){stopped}."
