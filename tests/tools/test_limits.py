"""What limits, by what the stages cost: rows of seconds and core-seconds for 1,000 images."""

from __future__ import annotations

import pytest

from gpuloader.tools.limits import Cost, StageName, cpu_shares, limit_of, what_limits

CPU, GPU = False, True
STAGES: tuple[StageName, ...] = ("read", "gate", "decode", "resize", "pixels", "own code", "loader")


def costs(*seconds: float, cpu: tuple[float, ...] = ()) -> dict[StageName, Cost]:
    """Of all stages, on the clock and in CPU time; of six numbers, there is no own code."""
    stages = [stage for stage in STAGES if len(seconds) == len(STAGES) or stage != "own code"]
    return {stage: Cost(*each) for stage, *each in zip(stages, seconds, cpu or seconds, strict=True)}


ROWS = [
    # read, gate, decode, resize, pixels, loader
    (costs(0.02, 0.03, 0.6, 0.7, 0.8, 0.82), CPU, "decode"),
    (costs(0.02, 0.03, 0.3, 0.8, 0.9, 0.92), CPU, "resize"),
    (costs(0.02, 0.03, 0.3, 0.4, 1.4, 1.42), CPU, "pixels"),
    # the reading thread is busy, with copying or with what it does for each image
    (costs(0.50, 0.60, 0.6, 0.6, 0.6, 0.6), CPU, "read"),
    (costs(0.10, 0.60, 0.6, 0.6, 0.6, 0.6), CPU, "gate"),
    # own code takes most of the time, whether it takes CPU time or sleeps; or most of the CPU time
    (costs(0.02, 0.03, 0.6, 0.7, 0.8, 8.8, 9.0), CPU, "own code"),
    (costs(0.02, 0.03, 0.6, 0.7, 0.8, 8.8, 9.0, cpu=(0.02, 0.03, 0.6, 0.7, 0.8, 0.8, 0.9)), CPU, "own code"),
    (costs(0.02, 0.03, 0.6, 0.7, 0.8, 8.8, 9.0, cpu=(0.02, 0.03, 0.6, 0.7, 0.8, 0.8, 0.9)), GPU, "own code"),
    (costs(0.02, 0.03, 0.6, 0.7, 0.8, 0.9, 0.9, cpu=(0.02, 0.03, 0.6, 0.7, 0.8, 3.0, 3.1)), CPU, "own code"),
    (costs(0.02, 0.03, 0.6, 0.7, 0.8, 0.8, 0.9), CPU, "decode"),
    # on a GPU the clock counts, not the CPU time
    (costs(0.01, 0.02, 0.3, 0.9, 1.0, 1.0, cpu=(0, 0.02, 0.3, 0.31, 0.32, 0.33)), GPU, "resize"),
    (costs(0.01, 0.02, 0.3, 0.9, 1.0, 1.0, cpu=(0, 0.02, 0.3, 0.31, 0.32, 0.33)), CPU, "decode"),
]


@pytest.mark.parametrize(("measured", "on_gpu", "expected"), ROWS)
def test_the_stage_that_adds_most_limits_unless_the_reading_thread_is_busy(
    measured: dict[StageName, Cost], on_gpu: bool, expected: str
) -> None:
    limit, share, _ = limit_of(measured, on_gpu)
    assert limit == expected
    assert 0 < share <= 1


def test_shares_are_of_cpu_time_and_add_up_to_one_though_figures_are_noisy() -> None:
    shares = cpu_shares(costs(0.1, 0.2, 0.7, 1.0, 0.9, 1.0))
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["pixels"] == 0
    assert shares["decode"] == pytest.approx(0.5 / 1.1)


@pytest.mark.parametrize(
    ("measured", "on_gpu", "says"),
    [
        # read, gate, decode, resize, pixels, loader
        (costs(0.02, 0.03, 1.0, 1.1, 1.2, 0.5), CPU, "took 0.5 s for 1,000 images, but `+ change pixels, normalise`"),
        (costs(0.02, 0.03, 1.0, 0.7, 1.2, 1.3), GPU, "crop, flip` took 0.7 s for 1,000 images, but `+ dec"),
        (costs(0.02, 0.03, 1.0, 1.1, 1.2, 1.3, cpu=(0.02, 0.03, 1.0, 0.7, 1.2, 1.3)), CPU, "part of it, took 1 CPU s"),
        # what noise explains, or changes little
        (costs(0.02, 0.03, 1.0, 0.9, 0.85, 0.81), CPU, None),
        (costs(0.03, 0.02, 0.9, 0.4, 0.5, 8.8, 9.0), CPU, None),
        (costs(0.01, 0.02, 0.3, 0.9, 1.0, 1.0, cpu=(0, 0.02, 0.9, 0.31, 0.32, 0.33)), GPU, None),
    ],
)
def test_no_stage_is_named_where_the_parts_contradict_the_whole(
    measured: dict[StageName, Cost], on_gpu: bool, says: str | None
) -> None:
    sentence = what_limits(measured, on_gpu)
    assert sentence.startswith("The measurements contradict each other, so no bottleneck is named: ") == (
        says is not None
    )
    assert says is None or says in sentence
    assert ("bottleneck (" in sentence) == (says is None)


@pytest.mark.parametrize(("on_gpu", "share"), [(False, "58% of the CPU time"), (True, "61% of the time")])
def test_the_sentence_names_the_limit_and_what_to_change(on_gpu: bool, share: str) -> None:
    said = what_limits(costs(0.02, 0.03, 0.6, 0.7, 0.8, 0.98), on_gpu)
    assert said.startswith(f"Decoding is the bottleneck ({share}): give it more cores")
    assert said.endswith("(`gpuloader pack --seekable`).")
