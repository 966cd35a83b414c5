import importlib
import json
import os
import re
import subprocess
import sys
import tarfile
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


@pytest.mark.parametrize("recipe", ["decoded-train", "decoded-serve"])
def test_images_are_decoded_once_for_recipes_that_say_so(few_shards: list[Path], tmp_path: Path, recipe: str) -> None:
    common, gpuloader_ = module("systems.common"), module("systems.gpuloader_")
    task = common.Task(few_shards, recipe=recipe, batch=BATCH, threads=2, work=tmp_path)
    for _ in range(2):  # the second time nothing is made
        batches = list(gpuloader_.make(task).epoch(0))
        assert [tuple(batch.shape) for batch in batches] == [(8, 3, 224, 224), (8, 3, 224, 224), (4, 3, 224, 224)]
    [shard] = tmp_path.glob("images-*/train-000000.tar")
    with tarfile.open(shard) as tar:
        assert {Path(name).suffix for name in tar.getnames()} == {".npy"}


def test_the_batches_of_stock_dali_are_the_recipe(few_shards: list[Path], tmp_path: Path) -> None:
    common = module("systems.common")
    task = common.Task(few_shards, recipe="eval", antialias=True, batch=BATCH, threads=2, work=tmp_path)
    ours, stock = (
        next(iter(module(f"systems.{name}").make(task).epoch(0))).clone() for name in ("gpuloader_", "stock_dali")
    )
    assert ours.shape == stock.shape == (BATCH, 3, 224, 224)
    assert (ours - stock).abs().mean() < 0.1


def test_the_reason_of_a_failure_is_its_last_error_without_paths() -> None:
    reason = module("peers").reason
    assert reason("x\nRuntimeError: no /a/b/c.so here\nnote: pip\nerror: subprocess-exited\n") == (
        "RuntimeError: no c.so here"
    )
    assert reason("ERROR: not in https://host/simple at all\n") == "ERROR: not in  at all"
    assert reason("") == "no reason was given"


def test_large_pictures_are_large(few_shards: list[Path]) -> None:
    import io

    from PIL import Image

    [picture] = [module("systems.tars").Images(few_shards)[0]]
    assert Image.open(io.BytesIO(module("large").enlarged(0, picture))).size == (3000, 2000)


def test_scale_measures_real_and_planned_samples(tmp_path: Path) -> None:
    scaling = module("scaling")
    scaling.write_shards(tmp_path, 300)
    assert scaling._build(str(tmp_path))["index_build_seconds"] > 0
    assert scaling._load(str(tmp_path))["index_file_bytes"] > 0
    assert "1,000,000,000,000" in scaling.table([{"samples": 10**12, **scaling.planning(10**12)}])


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


def test_the_hosts_side_is_measured_without_decoding(
    few_shards: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = f"--batch {BATCH} --batches 3 --rounds 2 --output {tmp_path}/host.json --shards".split()
    module("hosting").main([*options, *map(str, few_shards)])
    result = json.loads((tmp_path / "host.json").read_text())
    printed = capsys.readouterr().out
    for name, values in {**result["cpu_us_per_image"], **result["images_per_second"]}.items():
        assert len(values) == 2
        assert (
            name.startswith("%") or min(values) > 0
        )  # how long another thread held Python's lock is up to the machine
        assert f"| {name} | " in printed


@pytest.mark.parametrize("page", ["README.md", "docs/benchmark.md", "docs/guarantees.md"])
def test_the_pages_say_what_the_committed_results_say(page: str) -> None:
    publishing = module("publishing")
    text = (publishing.ROOT / page).read_text()
    assert publishing.replaced(text, publishing.write_parts(publishing.load())[page]) == text
    assert publishing.replaced(text, "") != text


def test_what_is_proven_on_which_gpu_is_what_verify_found() -> None:
    machine = {"cpu": "a CPU", "gpus": ["NVIDIA H100"]}
    rows = [{"check": "recipes", "name": "dino", "ok": False}, {"check": "memory", "name": "12 loaders", "ok": True}]
    common = {"machine": machine, "versions": {"driver": "580", "DALI": "2.4.0"}, "date": "2026-11-22T12:00:00+00:00"}
    on_cpu = {**common, "device": "cpu", "rows": rows[1:]}
    on_gpu = {**common, "device": "cuda:0", "rows": rows}
    write = module("publishing").proven
    assert write([on_cpu]).splitlines()[0] == "No GPU has been verified yet."
    assert write([on_cpu, on_gpu]).splitlines()[2:] == [
        "| a CPU (CPU) | driver 580, DALI 2.4.0 | 1 rows | nothing | 2026-11-22 |",
        "| NVIDIA H100 | driver 580, DALI 2.4.0 | 2 rows | recipes: dino | 2026-11-22 |",
    ]


def test_a_plot_has_bars_for_systems_and_lines_for_floors() -> None:
    plot, result = module("plot"), module("publishing").load()["photographs"]
    figure = plot.plot(result)
    for axis, systems in zip(figure.axes, result["summary"].values(), strict=True):
        costs = {
            result["systems"][name]["title"]: each["cpu_seconds_per_1000"]["median"] for name, each in systems.items()
        }
        rows = [label.get_text() for label in axis.get_yticklabels()]
        bars = {rows[round(bar.get_y() + bar.get_height() / 2)]: bar.get_width() for bar in axis.patches}
        lines = {line.get_label(): line for line in axis.lines if line.get_linestyle() == ":"}
        assert {**bars, **{title: line.get_xdata()[0] for title, line in lines.items()}} == costs
        assert set(lines) == {title for title in costs if title.startswith("floor: ")}
        assert rows[len(lines) :] == sorted(bars, key=lambda title: -bars[title])  # from the bottom up
        for title, line in lines.items():
            assert line.get_ydata()[0] == rows.index(title)
            assert line.get_ydata()[1] > len(rows) - 1  # through every bar
    plot.pyplot.close(figure)


def test_the_sweep_ends_with_the_fastest_value_of_each_setting() -> None:
    choices = {"threads": [1, 2, 4], "whole": [False, True], "load": [0.5, 0.0, 1.0]}
    best = {"threads": 4, "whole": False, "load": 1.0}
    assert module("sweeping").fastest(choices, lambda it: sum(it[name] == best[name] for name in best)) == best


def test_the_sweep_measures_with_every_setting(few_shards: list[Path]) -> None:
    sweeping = module("sweeping")
    for name, values in sweeping.CHOICES.items():
        settings = {**{name: values[0] for name, values in sweeping.CHOICES.items()}, "batch": BATCH, "threads": 1}
        value = BATCH if name == "batch" else values[-1]
        assert sweeping.images_per_second(few_shards, {**settings, name: value}, seconds=0.05) > 0


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
