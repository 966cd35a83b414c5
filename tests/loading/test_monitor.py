"""WaitMonitor: the share of the time that a loop waits, what it says of that, and torch's profiler."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import Clock
from numpy.typing import NDArray

from gpuloader import Compose, Decoder, GPULoader, Stats, WaitMonitor
from gpuloader import transforms as T
from gpuloader.errors import ConfigError, LoaderError
from gpuloader.loading.monitor import likely_cause

OVERRIDES = {"CenterCrop": {"size": 32}, "Resize": {"size": 36}}


def loader(tar: Any, batch_size: int = 4, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    given = {"preset": {"imagenet_eval": OVERRIDES}, **kwargs}
    return GPULoader(tar, batch_size, None, **given)


class MadeUp:
    """A loader whose statistics are made up: each step takes a second, of which some share is waited."""

    def __init__(self, begun_with: Stats | None = None) -> None:
        self.now = begun_with or Stats()

    def stats(self) -> Stats:
        return self.now

    def batch(self, share: float, **seconds: float) -> None:
        spent = {"elapsed_seconds": 1.0, "waiting_seconds": share, "decoding_seconds": share, **seconds}
        self.now = self.now.after(Stats(batches=1, samples=4, **spent))


def shares_of(monitor: WaitMonitor, made_up: MadeUp, waited: list[float]) -> list[float | None]:
    shares = []
    for share in waited:
        made_up.batch(share)
        shares.append(monitor.step())
    return shares


# --- shares


def test_a_share_is_given_when_its_steps_are_full() -> None:
    made_up = MadeUp(Stats(batches=1000, elapsed_seconds=1000.0, waiting_seconds=900.0))  # what was before is left out
    logged: list[float] = []
    monitor = WaitMonitor(made_up, every_steps=2, log=logged.append)  # type: ignore[arg-type]
    assert shares_of(monitor, made_up, [0.5, 0.25, 0.0, 0.5, 1.0]) == [None, 0.375, None, 0.25, None]
    assert logged == [0.375, 0.25]


def test_no_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="every_steps=0: allowed is at least 1"):
        WaitMonitor(MadeUp(), every_steps=0)  # type: ignore[arg-type]


# --- log and warning


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "gpuloader" and record.levelno == level]


def test_the_share_is_logged_where_no_log_is_given(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpuloader")
    made_up = MadeUp()
    shares_of(WaitMonitor(made_up, every_steps=1, warn_above=1), made_up, [0.25, 0.0625])  # type: ignore[arg-type]
    assert messages(caplog, logging.INFO) == [
        "waiting for data: 25.0% of the time",
        "waiting for data: 6.2% of the time",
    ]
    assert messages(caplog, logging.WARNING) == []


@pytest.mark.parametrize(
    ("waited", "warnings"),
    [
        ([0.9, 0.05, 0.05], []),  # the first steps fill caches
        ([0.125, 0.125, 0.125], []),  # above, not at
        ([0.0, 0.5, 0.0, 0.75], ["50%"]),  # once
    ],
)
def test_a_share_above_the_limit_warns_once_and_not_of_the_first_steps(
    caplog: pytest.LogCaptureFixture, waited: list[float], warnings: list[str]
) -> None:
    made_up = MadeUp()
    monitor = WaitMonitor(made_up, every_steps=1, log=lambda share: None, warn_above=0.125)  # type: ignore[arg-type]
    shares_of(monitor, made_up, waited)
    said = messages(caplog, logging.WARNING)
    cause = likely_cause(Stats(), made_up.now)
    assert said == [f"waiting for data: {share} of the time. {cause}" for share in warnings]


# --- the cause

DECODING = "Decoding is the bottleneck: give it more cores"
DELIVERING = "Delivering batches (labels to the device, mixing) is the bottleneck: use larger batches"
OWN_CODE = "Own code is the bottleneck: give it more processes"
READING = "Reading the images is the bottleneck: put the shards on a faster disk, use shuffle="
FIELDS = "The work for each image before decoding (header, random parameters, labels, fields) is the bottleneck"


@pytest.mark.parametrize(
    ("spent", "cause"),
    [
        ({"waiting_seconds": 5.0, "reading_seconds": 4.0, "gating_seconds": 3.0}, DECODING),
        ({"waiting_seconds": 5.0, "reading_seconds": 9.0, "gating_seconds": 1.0}, READING),
        ({"waiting_seconds": 5.0, "reading_seconds": 1.0, "gating_seconds": 9.0}, FIELDS),
        ({"waiting_seconds": 5.0, "delivering_seconds": 3.0, "reading_seconds": 9.0}, DELIVERING),
        ({"waiting_seconds": 5.0, "own_code_seconds": 3.0, "reading_seconds": 9.0}, OWN_CODE),
        ({"waiting_seconds": 5.0, "own_code_seconds": 2.0, "reading_seconds": 4.0}, DECODING),
    ],
)
def test_the_likely_cause_is_where_the_time_went(spent: dict[str, float], cause: str) -> None:
    before = Stats(elapsed_seconds=100.0, waiting_seconds=90.0, reading_seconds=90.0, delivering_seconds=80.0)
    now = replace(before, elapsed_seconds=110.0)
    now = replace(now, **{name: getattr(before, name) + seconds for name, seconds in spent.items()})
    assert likely_cause(before, now).startswith(cause)


# --- real loops


def test_a_loop_that_waits_is_told_from_one_that_works(
    shards: list[Path], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.delivering_seconds = 1
    with loader(shards) as batches:
        monitor = WaitMonitor(batches, every_steps=5)
        waiting = [monitor.step() for _ in range(2) for _ in batches]
        assert waiting == [None, None, None, None, 1.0] * 4
        [warning] = messages(caplog, logging.WARNING)
        assert DELIVERING in warning

        caplog.clear()
        monitor = WaitMonitor(batches, every_steps=5, warn_above=0.5)
        working = []
        for _ in batches:
            clock.spend(4)
            working.append(monitor.step())
    assert [share for share in working if share is not None] == [5 / (5 + 4 * 4), 1 / 5]  # nothing is before the first
    assert messages(caplog, logging.WARNING) == []


def asleep(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    time.sleep(0.2)  # long beside decoding, however slow the machine is
    return image


@pytest.mark.parametrize("processes", [0, 2])
def test_a_loop_that_waits_for_own_code_is_told_so(shards: list[Path], processes: int) -> None:
    recipe = Compose([T.RandomResizedCrop(24), T.Apply(asleep)])
    sampling = {"subset": range(8)}
    with loader(shards, 4, preset=recipe, sampling=sampling, decoder=Decoder(2, processes=processes)) as batches:
        before = batches.stats()
        for _ in batches:
            step = batches.stats()
        assert 0 < step.own_code_seconds <= step.decoding_seconds
        assert likely_cause(before, step).startswith(OWN_CODE)


def test_the_profiler_of_torch_sees_decoding_and_delivering(shards: list[Path]) -> None:
    with loader(shards, 8) as batches:
        next(iter(batches))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            list(batches)
    seen = [event.name for event in profile.events()]
    assert seen.count("gpuloader: decode") == 5
    assert seen.count("gpuloader: deliver") == 5


# --- other loaders


def test_any_loader_is_counted_where_the_loop_goes_over_the_monitor(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def collate(batch: list[int]) -> list[int]:
        clock.spend(1)
        return batch

    monkeypatch.setattr("gpuloader.loading.monitor.time", clock)
    batches = torch.utils.data.DataLoader(range(40), batch_size=4, collate_fn=collate)  # type: ignore[arg-type]
    monitor, shares = WaitMonitor(batches, every_steps=5), []
    for _ in monitor:
        clock.spend(3)
        shares.append(monitor.step())
    assert len(shares) == len(batches) == 10
    assert [share for share in shares if share is not None] == [5 / (5 + 3 * 4), 5 / (5 + 3 * 5)]
    [warning] = messages(caplog, logging.WARNING)
    assert warning.startswith("waiting for data: 25% of the time. Give a DataLoader more workers")


def test_a_loop_that_goes_past_the_monitor_is_told_what_to_loop_over() -> None:
    batches = torch.utils.data.DataLoader(range(8))  # type: ignore[arg-type]
    monitor = WaitMonitor(batches)
    next(iter(batches))
    with pytest.raises(LoaderError, match=r"before any batch of the DataLoader: .* `for batch in monitor`"):
        monitor.step()


def test_what_no_loop_goes_over_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"loader is a builtins.int: allowed is a GPULoader, or any other loader"):
        WaitMonitor(3)  # type: ignore[arg-type]
