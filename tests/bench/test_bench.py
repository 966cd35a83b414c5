import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from making import write_samples

from gpuloader.tools.verify import CHECKS

BENCH = Path(__file__).resolve().parents[2] / "scripts/bench"
IMAGES = 20
BATCH = 8


@pytest.fixture(autouse=True)
def _bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.fixture(scope="module")
def few_shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_samples(tmp_path_factory.mktemp("bench"), IMAGES)


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_the_orchestrator_measures_what_it_can_and_reports_what_it_cannot(
    few_shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orchestrator, peers = module("orchestrator"), module("peers")
    nothing = peers.Environment("nothing", ("nothing @ file:///nowhere/nothing-1-py3-none-any.whl",))
    monkeypatch.setitem(peers.SYSTEMS, "nothing", peers.System("Nothing", "nothing", environment=nothing))
    monkeypatch.setattr(orchestrator, "_plot", lambda *_: None)
    options = f"--systems gpuloader nothing --recipes train --rounds 1 --epochs 2 --repeat 2 --batch {BATCH}"
    folders = ["--work", str(tmp_path / "work"), "--output", str(tmp_path / "out")]
    orchestrator.main([*options.split(), *folders, "--shards", *map(str, few_shards)])
    text = (tmp_path / "out/results.json").read_text()
    result = json.loads(text)

    assert result["data"]["images"] == 2 * IMAGES == sum(result["data"]["pixels_histogram"].values())
    assert result["machine"]["cores"] > 0
    [run] = result["rounds"]
    assert [epoch["images"] for epoch in run["epochs"]] == [2 * IMAGES, 2 * IMAGES]
    assert min(epoch["cpu_seconds"] for epoch in run["epochs"]) > 0
    assert run["peak_rss_bytes"] > 10**7
    assert result["systems"]["gpuloader"]["versions"]["gpuloader"]
    assert result["systems"]["gpuloader"]["settings"]
    own = result["summary"]["train"]["gpuloader"]
    assert own["images_per_second"]["min"] <= own["images_per_second"]["median"] <= own["images_per_second"]["max"]

    assert result["systems"]["nothing"]["status"] == "not installed"
    assert "nothing" in result["systems"]["nothing"]["reason"]
    table = (tmp_path / "out/table.md").read_text()
    assert "Nothing: not installed: " in table
    assert re.search(r"\| gpuloader \| \d+\.\d{3} ", table)
    assert not re.search(r"/nowhere|" + re.escape(str(tmp_path)), text + table)  # no machine's paths in results


def test_the_systems_take_turns_and_one_that_fails_is_left_out(
    few_shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orchestrator = module("orchestrator")
    turns = []

    def run(command: list[str], device: str) -> dict[str, Any]:
        turns.append(command[2].removeprefix("systems."))
        if len(turns) == 6:
            raise orchestrator.RunError("it broke")
        epoch = {"images": 1, "started_at_seconds": 0, "ended_at_seconds": 1, "cpu_seconds": 1}
        loader = {"settings": {}, "versions": {}}
        return {"loader": loader, "peak_rss_bytes": 1, "epochs": [epoch, epoch]}

    monkeypatch.setattr(orchestrator, "_run", run)
    options = ["--systems", "gpuloader", "stock-dali", "floors-read", "--recipes", "train", "--rounds", "2"]
    result = orchestrator.measure(
        orchestrator.parse([*options, "--work", str(tmp_path), "--shards", *map(str, few_shards)])
    )
    assert turns == [*2 * ["gpuloader_", "stock_dali", "floors"], "gpuloader_", "stock_dali"]
    assert result["systems"]["floors-read"]["status"] == "failed"
    assert result["systems"]["floors-read"]["reason"] == "train, round 0: it broke"


@pytest.mark.parametrize("recipe", ["train", "eval"])
@pytest.mark.parametrize(
    ("system", "variant"),
    [
        ("gpuloader_", ""),
        ("stock_dali", ""),
        ("floors", "read"),
        ("floors", "decode"),
        ("floors", "decode-resize"),
        ("floors", "resident"),
    ],
)
def test_every_image_is_in_an_epoch_once(
    system: str, variant: str, recipe: str, few_shards: list[Path], tmp_path: Path
) -> None:
    common = module("systems.common")
    task = common.Task(few_shards, recipe=recipe, batch=BATCH, threads=2, variant=variant, work=tmp_path)
    loader = module(f"systems.{system}").make(task)
    for epoch in range(2):
        batches = [(len(batch), common.consume(batch)) for batch in loader.epoch(epoch)]
        assert [count for count, _ in batches] == [8, 8, 4]


def test_the_batches_of_stock_dali_are_the_recipe(few_shards: list[Path], tmp_path: Path) -> None:
    common = module("systems.common")
    task = common.Task(few_shards, recipe="eval", antialias=True, batch=BATCH, threads=2, work=tmp_path)
    ours, stock = (
        next(iter(module(f"systems.{name}").make(task).epoch(0))).clone() for name in ("gpuloader_", "stock_dali")
    )
    assert ours.shape == stock.shape == (BATCH, 3, 224, 224)
    assert (ours - stock).abs().mean() < 0.1


def test_the_start_is_measured_with_nothing_made_before(
    few_shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, peers = module("starting"), module("peers")
    made: list[list[str]] = []
    run = starting.subprocess.run

    def see(command: list[str], **options: Any) -> Any:  # noqa: ANN401
        if "--start" not in command:
            return run(command, **options)
        shards = [Path(name) for name in command if name.endswith(".tar")]
        made.append([file.name for shard in shards for file in shard.parent.iterdir() if file.is_file()])
        assert list(Path(options["env"]["XDG_CACHE_HOME"]).iterdir()) == []
        return run(command, **options)

    monkeypatch.setattr(starting.subprocess, "run", see)
    monkeypatch.setitem(peers.SYSTEMS, "broken", peers.System("Broken", "nothing_of_that_name"))
    options = ["--systems", "gpuloader", "broken", "--presets", "cifar10_eval", "--rounds", "1"]
    starting.main([*options, "--shards", str(few_shards[0]), "--output", str(tmp_path / "start.json")])

    assert made == 5 * [["000000.tar"]]  # the broken one only once
    rows = json.loads((tmp_path / "start.json").read_text())["rows"]
    assert [row["title"] for row in rows] == ["gpuloader", "Broken", "gpuloader, `cifar10_eval`, behind torch and DALI"]
    assert "nothing_of_that_name" in rows[1]["reason"]
    for row in (rows[0], rows[2]):
        [figures] = row["rounds"]
        assert 0 < figures["imports_seconds"] <= figures["batch_seconds"]
        assert 0 < figures["imports_cpu_seconds"] < figures["batch_cpu_seconds"]
    lines = starting.table(rows).splitlines()
    assert re.fullmatch(r"\| gpuloader( \| \d+\.\d\d s \(\d+\.\d\d s\)){3} \|", lines[2])


@pytest.mark.parametrize("page", ["README.md", "docs/benchmark.md", "docs/guarantees.md"])
def test_the_pages_say_what_the_committed_results_say(page: str) -> None:
    publishing = module("publishing")
    text = (publishing.ROOT / page).read_text()
    assert publishing.replaced(text, publishing.write_parts(publishing.load())[page]) == text
    assert publishing.replaced(text, "") != text


def run_on_gpu(folder: Path, *options: str) -> tuple[int, list[str], list[str]]:
    """What remains of a run, where a Python in name alone says what it was asked for, and crashes in some steps.

    Its status, its lines on what did not end well, and the steps that ran.
    """
    python = folder / "bin/python3"
    python.parent.mkdir()
    crashes = "*formats*) kill -SEGV $$;; *test_bench_gpu*) exit 4"
    python.write_text(f'#!/bin/sh\ncase "$*" in */gpu_steps.py*) exec {sys.executable} "$@";; esac\necho "$@"\n')
    with python.open("a") as file:
        file.write(f'case "$*" in {crashes};; esac\n')
    python.chmod(0o755)
    run = subprocess.run(
        [BENCH / "on_gpu", *options, folder / "results", folder / "a.tar"],
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith(("failed: ", "not run: "))]
    done = json.loads((folder / "results/steps.json").read_text())
    return run.returncode, lines, [each["step"] for each in done if each["status"] is not None]


def test_a_step_that_crashes_on_a_gpu_loses_no_other(tmp_path: Path) -> None:
    status, lines, ran = run_on_gpu(tmp_path)
    results = tmp_path / "results"
    assert status == 1
    assert lines == ["failed: verify-formats.json (status 139)", "failed: test_bench_gpu.txt (status 4)"]
    for check in CHECKS:
        asked = f" verify {tmp_path}/a.tar --check {check} --picture {results}/verify-{check}.png --json\n"
        assert asked in (results / f"verify-{check}.json").read_text()
    for file in (BENCH.parents[1] / "tests/gpu").glob("test_*.py"):
        assert (results / f"{file.stem}.txt").read_text() == f"-m pytest -q tests/gpu/{file.name}\n"
    assert ran[:4] == [f"verify-{check}.json" for check in ("machine", "formats", "repeats", "recipes")]
    assert ran[4:6] == ["test_decoding_gpu.txt", "test_loader_gpu.txt"]
    assert ran[-3:] == ["benchmark.txt", "training.txt", "sweep.txt"]
    assert {*ran} == {path.name for path in results.iterdir() if path.suffix != ".log"} - {"steps.json"}


def test_what_no_time_is_left_for_is_not_run(tmp_path: Path) -> None:
    status, lines, ran = run_on_gpu(tmp_path, "--minutes", "0")
    assert (status, ran) == (1, [])
    assert lines[0] == "not run: verify-machine.json"
    assert len(lines) == len(CHECKS) + len([*(BENCH.parents[1] / "tests/gpu").glob("test_*.py")]) + 3


def test_a_step_has_its_own_limit_and_at_most_half_of_the_time_that_is_left(tmp_path: Path) -> None:
    gpu_steps = module("gpu_steps")
    own_limit = ["sh", "-c", "ps -o args= -p $PPID"]  # timeout --signal=INT --kill-after=10 LIMIT sh ...
    steps = [
        gpu_steps.Step("hangs.txt", 1, ["sleep", "1000"]),
        gpu_steps.Step("short.txt", 100, own_limit),
        gpu_steps.Step("long.txt", 10_000, own_limit),
    ]
    done = gpu_steps.run(steps, tmp_path, seconds=3600)
    assert [each.status for each in done] == [124, 0, 0]
    limits = [float((tmp_path / name).read_text().split()[3]) for name in ("short.txt", "long.txt")]
    assert limits[0] == 100
    assert 1000 < limits[1] < 1800
