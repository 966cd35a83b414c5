"""The search over settings, against speeds that the test makes up, with a clock of its own; and the whole on shards."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest
import yaml

from gpuloader import Compose, ConfigError, GPULoader
from gpuloader.tools.machine import this_machine
from gpuloader.tools.tune import (
    REPEATS,
    Search,
    Settings,
    TuneResult,
    gpu_choices,
    search,
    thread_choices,
    tune,
    tuned_yaml,
    verdict,
)
from gpuloader.transforms import CenterCrop

CHOICES = {"threads": (2, 1, 4), "prefetch": (2, 1, 8)}
DEFAULTS = {"threads": 2, "prefetch": 2}


class Bench:
    """Runs that take a second each, at speeds that a function of the settings gives."""

    def __init__(self, speed: Callable[[Settings], float], run_seconds: float = 1.0) -> None:
        self._speed = speed
        self._run_seconds = run_seconds
        self.now = 0.0
        self.tried: list[Settings] = []

    def __call__(self, settings: Settings) -> float:
        self.now += self._run_seconds
        self.tried.append(settings)
        return self._speed(settings)

    def clock(self) -> float:
        return self.now


def test_the_fastest_values_win() -> None:
    bench = Bench(lambda settings: 100 * settings["threads"] + 10 * settings["prefetch"])
    found = search(CHOICES, bench, 1000, bench.clock)
    assert found.best == {"threads": 4, "prefetch": 8}
    assert (found.before, found.after, found.complete) == (220, 480, True)
    assert [run.settings for run in found.runs] == bench.tried


def test_a_gain_within_the_noise_does_not_win() -> None:
    noise = cycle([1.0, 1.1, 0.9])
    bench = Bench(lambda settings: next(noise) * (103 if settings["threads"] == 4 else 100))
    found = search(CHOICES, bench, 1000, bench.clock)
    assert found.best == DEFAULTS
    assert found.before == found.after


def test_what_won_is_measured_against_the_defaults_again_and_may_lose() -> None:
    lucky = 2 * REPEATS
    bench = Bench(lambda settings: 200 if settings["threads"] == 4 and len(bench.tried) <= lucky else 100)
    assert search({"threads": (2, 4)}, bench, 1000, bench.clock).best == {"threads": 2}
    assert len(bench.tried) == 4 * REPEATS


def test_a_loser_costs_one_pair_of_runs() -> None:
    bench = Bench(lambda settings: 100 / settings["threads"])
    found = search({"threads": (1, 2, 4)}, bench, 1000, bench.clock)
    assert bench.tried == [{"threads": 1}, {"threads": 2}, {"threads": 1}, {"threads": 4}] + REPEATS * [{"threads": 1}]
    assert found.complete


@pytest.mark.parametrize("seconds", [0.5, 1, 3, 7, 12, 20, 40])
@pytest.mark.parametrize("run_seconds", [0.3, 1.0, 5.0])
def test_the_time_is_kept_but_for_one_run(seconds: float, run_seconds: float) -> None:
    bench = Bench(lambda settings: 100 * settings["threads"] + 10 * settings["prefetch"], run_seconds)
    search(CHOICES, bench, seconds, bench.clock)
    assert bench.now < seconds + run_seconds


def test_without_time_nothing_is_claimed() -> None:
    bench = Bench(lambda settings: 100 * settings["threads"])
    found = search(CHOICES, bench, 2, bench.clock)
    assert found.best == DEFAULTS
    assert not found.complete


@pytest.mark.parametrize(
    ("default", "cores", "choices"),
    [
        (2, 2, (2, 1)),
        (8, 64, (8, 2, 4, 7, 16, 64)),
    ],
)
def test_threads_to_try(default: int, cores: int, choices: tuple[int, ...]) -> None:
    assert thread_choices(default, cores) == choices


VERDICTS = [
    (Search(DEFAULTS, 100, 100, (), True), "The defaults were best: 100 images/s."),
    (
        Search(DEFAULTS, 100, 100, (), False),
        "The defaults were best: 100 images/s; the time was up before everything was tried.",
    ),
    (Search(DEFAULTS, 0, 0, (), False), "These are the defaults: the time was up before anything was measured."),
    (
        Search({"threads": 4, "prefetch": 2}, 1000, 1250, (), True),
        "threads=4 (default 2): 1,250 images/s, before 1,000 (+25%).",
    ),
]


@pytest.mark.parametrize(("found", "said"), VERDICTS)
def test_the_verdict(found: Search, said: str) -> None:
    result = TuneResult("", this_machine(), "cpu", {}, DEFAULTS, found, 1)
    assert verdict(result) == said
    assert tuned_yaml(result).splitlines()[1] == f"# {said}"


def test_the_yaml_makes_a_loader(data: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "tuned.yaml"
    overrides = {"Resize": {"size": 40}, "CenterCrop": {"size": 32}}
    result = tune(
        data,
        8,
        None,
        batch_sizes=[4],
        seconds=2,
        output=output,
        preset={"imagenet_eval": overrides},
        label_from="json:label",
    )
    text = output.read_text()
    assert text == tuned_yaml(result)
    assert text.startswith("# Arguments of GPULoader: ")
    for said in (result.date, "on cpu in ", str(result.machine), "images/s"):
        assert said in text
    arguments = yaml.safe_load(text)
    assert arguments == result.arguments
    assert arguments["batch_size"] in (8, 4)
    with GPULoader(**arguments) as loader:
        images, labels = next(iter(loader))
    assert images.shape == (arguments["batch_size"], 3, 32, 32)
    assert labels.tolist() == list(range(arguments["batch_size"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": 0}, "seconds=0: allowed is a number above 0"),
        ({"output": "/no/such/tuned.yaml"}, "/no/such/tuned.yaml: there is no folder /no/such"),
        ({"decoder": {"num_threads": 2}}, "decoder: tune searches these settings; leave them out"),
        ({"preset": Compose([CenterCrop(32)])}, "an argument that YAML cannot hold"),
    ],
)
def test_mistakes(shards: list[Path], arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(shards, 8, None, **{"seconds": 1, **arguments})


@pytest.mark.parametrize(("hw_load", "loads"), [(1.0, (1.0, 0.0)), (0.0, (0.0,)), (None, None)])
def test_no_share_of_the_engines_is_tried_that_pixels_would_depend_on(
    hw_load: float | None, loads: tuple[float, ...] | None
) -> None:
    assert gpu_choices(hw_load).get("hw_load") == loads
