"""What limits, by what the stages cost: rows of seconds and core-seconds for 1,000 images."""

from __future__ import annotations

import pytest

from gpuloader.tools.limits import Cost, Stage, cpu_shares, limit_of, what_limits

CPU, GPU = False, True
STAGES: tuple[Stage, ...] = ("read", "gate", "decode", "resize", "pixels", "loader")


def costs(*seconds: float, cpu: tuple[float, ...] = ()) -> dict[Stage, Cost]:
    """Of all stages, on the clock and in CPU time; a stage of None is not there."""
    cpu = cpu or seconds
    return {
        stage: Cost(each, each_cpu)
        for stage, each, each_cpu in zip(STAGES, seconds, cpu, strict=True)
        if each is not None
    }


ROWS = [
    # read, gate, decode, resize, pixels, loader
    (costs(0.02, 0.03, 0.6, 0.7, 0.8, 0.82), CPU, "decode"),
    (costs(0.02, 0.03, 0.3, 0.8, 0.9, 0.92), CPU, "resize"),
    (costs(0.02, 0.03, 0.3, 0.4, 1.4, 1.42), CPU, "pixels"),
    # the reading thread is busy, with copying or with what it does for each image
    (costs(0.50, 0.60, 0.6, 0.6, 0.6, 0.6), CPU, "read"),
    (costs(0.10, 0.60, 0.6, 0.6, 0.6, 0.6), CPU, "gate"),
    # on a GPU the clock counts, not the CPU time
    (costs(0.01, 0.02, 0.3, 0.9, 1.0, 1.0, cpu=(0, 0.02, 0.3, 0.31, 0.32, 0.33)), GPU, "resize"),
    (costs(0.01, 0.02, 0.3, 0.9, 1.0, 1.0, cpu=(0, 0.02, 0.3, 0.31, 0.32, 0.33)), CPU, "decode"),
]


@pytest.mark.parametrize(("measured", "on_gpu", "expected"), ROWS)
def test_the_stage_that_adds_most_limits_unless_the_reading_thread_is_busy(
    measured: dict[Stage, Cost], on_gpu: bool, expected: str
) -> None:
    limit, share = limit_of(measured, on_gpu)
    assert limit == expected
    assert 0 < share <= 1


def test_the_share_is_what_the_stage_adds_to_the_whole() -> None:
    assert limit_of(costs(0.02, 0.04, 0.64, 0.8, 0.9, 1.0), CPU) == ("decode", pytest.approx(0.6))
    assert limit_of(costs(0.02, 0.04, 0.64, 0.8, 0.9, 1.0), GPU) == ("decode", pytest.approx(0.64))


def test_shares_are_of_cpu_time_and_add_up_to_one_though_figures_are_noisy() -> None:
    shares = cpu_shares(costs(0.1, 0.2, 0.7, 1.0, 0.9, 1.0))
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["pixels"] == 0
    assert shares["decode"] == pytest.approx(0.5 / 1.1)


@pytest.mark.parametrize(
    ("measured", "on_gpu", "says"),
    [
        # read, gate, decode, resize, pixels, loader
        (
            costs(0.02, 0.03, 1.0, 1.1, 1.2, 0.5),  # the loader is faster than its parts
            CPU,
            "the loader took 0.5 s for 1,000 images, but changing pixels, a part of it, took 1.2 s. Measure longer",
        ),
        (costs(0.02, 0.03, 1.0, 0.7, 1.2, 1.3), GPU, "resizing took 0.7 s for 1,000 images, but decoding, a"),
        (
            costs(0.02, 0.03, 1.0, 1.1, 1.2, 1.3, cpu=(0.02, 0.03, 1.0, 0.7, 1.2, 1.3)),
            CPU,
            "resizing took 0.7 CPU s for 1,000 images, but decoding, a part of it, took 1 CPU s",
        ),
        # what noise explains
        (costs(0.02, 0.03, 1.0, 0.9, 0.85, 0.81), CPU, None),
        (costs(0.01, 0.02, 0.3, 0.9, 1.0, 1.0, cpu=(0, 0.02, 0.9, 0.31, 0.32, 0.33)), GPU, None),
    ],
)
def test_no_stage_is_named_where_the_parts_contradict_the_whole(
    measured: dict[Stage, Cost], on_gpu: bool, says: str | None
) -> None:
    sentence = what_limits(measured, on_gpu)
    assert sentence.startswith("The measurements contradict each other, so no bottleneck is named: ") == (
        says is not None
    )
    assert says is None or says in sentence
    assert ("bottleneck (" in sentence) == (says is None)


@pytest.mark.parametrize(
    ("on_gpu", "sentence"),
    [
        (False, "Decoding is the bottleneck (58% of the CPU time): give it more cores"),
        (True, "Decoding is the bottleneck (61% of the time): give it more cores"),
    ],
)
def test_the_sentence_names_the_limit_and_what_to_change(on_gpu: bool, sentence: str) -> None:
    said = what_limits(costs(0.02, 0.03, 0.6, 0.7, 0.8, 0.98), on_gpu)
    assert said.startswith(sentence)
    assert said.endswith("(`gpuloader pack --seekable`).")
