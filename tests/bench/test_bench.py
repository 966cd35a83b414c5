import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from making import SIZES, encoded, picture, write_samples, write_shard
from PIL import Image

from gpuloader.pack.seekable import find_version
from gpuloader.tools.verify import CHECKS

BENCH = Path(__file__).resolve().parents[2] / "scripts/bench"
IMAGES = 20
BATCH = 8

RESIZED = ("decode-resize", "resident")

needs_jpegtran = pytest.mark.needs_program("jpegtran")


@pytest.fixture(autouse=True)
def _bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.fixture(scope="module")
def few_shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_samples(tmp_path_factory.mktemp("bench"), IMAGES)


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("OSError: libc10_cuda.so: cannot open shared object file", "its wheel needs CUDA's libraries, which this"),
        ("RuntimeError: Could not find required package: opencv.", "its build needs Debian's libopencv-dev, which"),
        ("ERROR: No matching distribution found", "ERROR: No matching distribution found"),  # as pip says it
    ],
)
def test_why_a_system_was_not_measured_is_said_in_words(said: str, words: str) -> None:
    assert module("peers").in_words(said).startswith(words)


@pytest.mark.slow(kept=1, of="whole programs")
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

    assert result["data"]["pixels"] == 2 * 4 * sum(height * width for height, width in SIZES)
    assert result["data"]["images"] == 2 * IMAGES
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
    assert re.match(r"Images: 40 of \d+ kB and 0.0 megapixels on the average", table)
    assert re.search(r"\| gpuloader \| \d+\.\d{3} ", table)
    assert not re.search(r"/nowhere|" + re.escape(str(tmp_path)), text + table)  # no machine's paths in results


def measure_without_running(
    monkeypatch: pytest.MonkeyPatch, folder: Path, shards: Sequence[Path], systems: Sequence[str]
) -> tuple[dict[str, Any], dict[str, list[Path]]]:
    """The result of a run where a system costs as many CPU seconds as its name has letters; and the shards of each."""
    orchestrator, read = module("orchestrator"), {}

    def run(command: list[str]) -> dict[str, Any]:
        folder = Path(command[command.index("--work") + 1])
        read[folder.name] = [Path(name) for name in command if name.endswith((".tar", ".folder"))]
        epoch = {"images": 1, "started_at_seconds": 0, "ended_at_seconds": 1, "cpu_seconds": len(folder.name)}
        return {"loader": {"settings": {}, "versions": {}}, "peak_rss_bytes": 1, "epochs": [epoch, epoch]}

    monkeypatch.setattr(orchestrator, "_run", run)
    options = ["--systems", *systems, "--recipes", "eval", "--rounds", "1", "--repeat", "2", "--work", str(folder)]
    return orchestrator.measure(orchestrator.parse([*options, "--shards", *map(str, shards)])), read


def images(shards: Sequence[Path]) -> dict[str, bytes]:
    found = {}
    for shard in shards:
        with tarfile.open(shard) as tar:
            members = ((entry.name, tar.extractfile(entry)) for entry in tar)
            found |= {name: file.read() for name, file in members if file and name.endswith(".jpg")}
    return found


def test_a_folder_has_the_images_of_the_shards_by_class(
    few_shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, read = measure_without_running(monkeypatch, tmp_path, few_shards, ["gpuloader", "gpuloader-folder"])
    [folder] = read["gpuloader-folder"]
    expected = [
        (f"{int(name[:6]) % 10}/{number:09d}.jpg", jpeg)  # `write_samples` gives sample i the label i % 10
        for number, (name, jpeg) in enumerate([*images(few_shards).items(), *images(few_shards).items()])
    ]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}
    assert found == dict(expected)
    task = module("systems.common").Task([folder], "eval", antialias=True, batch=BATCH, threads=1, variant="pil")
    batches = module("systems.gpuloader_").make(task).epoch(0)
    assert [tuple(batch.shape) for batch in batches] == 5 * [(BATCH, 3, 224, 224)]
    beside = module("systems.torchvision_").FolderPictures(task)
    assert [path for path, _ in beside.samples] == sorted(f"{folder}/{name}" for name in found)
    transform = module("systems.torchvision_").Pictures(replace(task, shards=few_shards)).transform
    assert torch.equal(beside[0], transform(Path(beside.samples[0][0]).read_bytes()))


@needs_jpegtran
def test_seekable_shards_are_read_beside_plain_ones(
    few_shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systems = ["gpuloader", "gpuloader-seekable", "stock-dali-seekable", "floors-decode", "floors-decode-seekable"]
    result, read = measure_without_running(monkeypatch, tmp_path, few_shards, systems)
    plain, repacked = images(read["gpuloader"]), images(read["gpuloader-seekable"])
    assert [shard.resolve() for shard in read["gpuloader"]] == 2 * few_shards
    assert len(set(read["gpuloader-seekable"])) == 4
    assert images(read["floors-decode"]) == plain == images(few_shards)
    assert images(read["stock-dali-seekable"]) == images(read["floors-decode-seekable"]) == repacked
    assert list(repacked) == list(plain)  # the same keys in the same order
    for key, jpeg in repacked.items():
        assert jpeg != plain[key]
        assert Image.open(io.BytesIO(jpeg)).tobytes() == Image.open(io.BytesIO(plain[key])).tobytes()

    facts = result["seekable"]
    assert (facts["images"], facts["rewritten"], facts["jpegtran"]) == (IMAGES, IMAGES, find_version())
    assert facts["bytes"] == {"plain": sum(map(len, plain.values())), "seekable": sum(map(len, repacked.values()))}
    assert min(facts["packing_cpu_seconds_per_1000"].values()) > 0
    text = module("report").table(result)
    assert f"rewrote {IMAGES} of {IMAGES} JPEGs" in text
    cost = "{0}.000 ({0}.000-{0}.000)".format
    assert f"| gpuloader | {cost(9000)} | 1 (1-1) | 0 MB |  |" in text
    assert f"| gpuloader | {cost(9000)} | {cost(18000)} | 2.00 |  |" in text
    assert f"| stock DALI, seekable shards |  | {cost(19000)} |  | 0.95 |" in text  # nobody measured it on plain ones
    assert f"| floor: decode the region only | {cost(13000)} | {cost(22000)} | 1.69 | 0.82 |" in text

    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.seekable/**/*")}
    again, _ = measure_without_running(monkeypatch, tmp_path, few_shards, systems)
    assert again["seekable"] == facts
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.seekable/**/*")} == made != {}


@pytest.mark.parametrize("recipe", ["train", "eval"])
def test_the_floors_decode_the_same_regions_of_seekable_shards(recipe: str, tmp_path: Path) -> None:
    def decoded(name: str, variant: str, **options: int) -> list[float]:
        pictures = [encoded(picture(200, 500, seed), "JPEG", **options) for seed in range(BATCH)]
        samples = [{"__key__": str(number), "jpg": jpeg, "cls": b"0"} for number, jpeg in enumerate(pictures)]
        shard = write_shard(tmp_path / f"{name}.tar", samples)
        task = common.Task([shard], recipe=recipe, batch=1, threads=1, variant=variant, work=tmp_path)
        return list(map(common.consume, module("systems.floors").make(task).epoch(0)))

    common = module("systems.common")
    plain = decoded("plain", "decode-resize")
    assert len(set(plain)) == BATCH
    assert decoded("seekable", "decode-resize", restart_marker_blocks=4) == plain
    # Without resizing, what the reader leaves is decoded, which is a little more.
    assert len(decoded("seekable", "decode", restart_marker_blocks=4)) == BATCH


def test_photographs_with_boxes_and_masks_are_measured_with_and_without_this_library(
    few_shards: list[Path], tmp_path: Path
) -> None:
    module("target_shards").main([str(tmp_path), "--per-shard", "12", "--from", *map(str, few_shards)])
    shards = sorted(tmp_path.glob("targets-*.tar"))
    assert list(images(shards).values()) == list(images(few_shards).values())
    counts = []
    for key, jpeg in images(shards).items():
        targets = module("target_shards").targets(jpeg, int(key.removesuffix(".jpg")))
        mask, image = (Image.open(io.BytesIO(data)) for data in (targets["mask.png"], jpeg))
        assert mask.size == image.size
        boxes = np.array([each["bbox"] for each in json.loads(targets["json"])["annotations"]])
        counts.append(len(boxes))
        assert boxes.min() >= 0
        assert (boxes[:, :2] + boxes[:, 2:] <= np.array(image.size) + 0.02).all()  # they have two digits
    assert 1 <= min(counts) < max(counts)
    common = module("systems.common")
    for recipe, side in (("detect", 300), ("segment", 480)):
        task = common.Task(shards, recipe=recipe, batch=BATCH, threads=1, variant="pil", work=tmp_path)
        shapes = [tuple(batch.shape) for batch in module("systems.gpuloader_").make(task).epoch(0)]
        assert shapes == [(count, 3, side, side) for count in (8, 8, 4)]
        beside = module("systems.torchvision_")
        pictures = beside.WITH_TARGETS[recipe](task)
        assert len(pictures) == IMAGES
        image, *targets = pictures[0]
        assert tuple(image.shape) == (3, side, side)
        if recipe == "segment":
            assert tuple(targets[0].shape) == (side, side)
        else:
            assert targets[0].shape == (len(targets[1]), 4)


@pytest.mark.parametrize("recipe", ["train", "eval"])
@pytest.mark.parametrize(
    ("system", "variant"),
    [("gpuloader_", ""), ("stock_dali", ""), *(("floors", name) for name in ("read", "decode", *RESIZED))],
)
def test_each_image_comes_once(system: str, variant: str, recipe: str, few_shards: list[Path], tmp_path: Path) -> None:
    common = module("systems.common")
    task = common.Task(few_shards, recipe=recipe, batch=BATCH, threads=2, variant=variant, work=tmp_path)
    loader = module(f"systems.{system}").make(task)
    for epoch in range(2):
        batches = [(len(batch), common.consume(batch)) for batch in loader.epoch(epoch)]
        assert [count for count, _ in batches] == [8, 8, 4]


@pytest.mark.parametrize(("system", "variant"), [("stock_dali", ""), ("floors", "decode"), ("floors", "decode-resize")])
def test_whole_pictures_are_decoded_where_regions_are_not(
    system: str, variant: str, few_shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU."""
    common = module("systems.common")
    monkeypatch.setattr(common.Task, "decodes_regions", False)
    task = common.Task(few_shards, batch=BATCH, threads=2, variant=variant, work=tmp_path)
    batches = list(module(f"systems.{system}").make(task).epoch(0))
    assert [len(batch) for batch in batches] == [8, 8, 4]
    assert all(np.isfinite(common.consume(batch)) for batch in batches)


def test_an_image_of_several_views_counts_once(few_shards: list[Path], tmp_path: Path) -> None:
    common = module("systems.common")
    task = common.Task(few_shards, batch=BATCH, threads=2, variant="simclr", work=tmp_path)
    assert common._measure(module("systems.presets").make(task), 0)["images"] == IMAGES // BATCH * BATCH


def test_the_batches_of_stock_dali_are_the_recipe(few_shards: list[Path], tmp_path: Path) -> None:
    common = module("systems.common")
    task = common.Task(few_shards, recipe="eval", antialias=True, batch=BATCH, threads=2, work=tmp_path)
    ours, stock = (
        next(iter(module(f"systems.{name}").make(task).epoch(0))).clone() for name in ("gpuloader_", "stock_dali")
    )
    assert ours.shape == stock.shape == (BATCH, 3, 224, 224)
    assert (ours - stock).abs().mean() < 0.1


@pytest.mark.slow(kept=1, of="whole programs")
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


@pytest.mark.parametrize("page", ["README.md", "docs/benchmark.md", "docs/guarantees.md", "docs/large-photographs.md"])
def test_the_pages_say_what_the_committed_results_say(page: str) -> None:
    publishing = module("publishing")
    text = (publishing.ROOT / page).read_text()
    assert publishing.replaced(text, publishing.write_parts(publishing.load())[page]) == text
    assert publishing.replaced(text, "") != text


def test_each_system_has_a_runner_and_pinned_versions() -> None:
    for system in module("peers").SYSTEMS.values():
        assert (BENCH / f"systems/{system.module}.py").exists()
        pinned = (*system.environment.requirements, *system.environment.alone) if system.environment else ()
        assert all("==" in requirement for requirement in pinned)


@pytest.mark.parametrize(
    ("name", "status", "explained"),
    [("energon", "not installed", True), ("energon", "measured", False), ("ffcv", "not installed", False)],
)
def test_the_page_explains_which_system_is_missing(name: str, status: str, explained: bool) -> None:
    publishing = module("publishing")
    result = publishing.load()["photographs"]
    result["systems"][name] = {"title": "Absent", "note": "", "status": status, "reason": "no wheel"}
    assert ("- Absent: not installed: no wheel" in publishing.table("photographs", result)) == explained


def test_the_pages_name_the_versions_that_this_library_ran_with() -> None:
    systems = {"gpuloader": {"versions": {"torch": "2.1"}}, "other": {"versions": {"torch": "2.2", "turboloader": "1"}}}
    assert module("publishing").versions({"photographs": {"systems": systems}}) == "torch 2.1, turboloader 1"


def test_a_step_that_crashes_on_a_gpu_loses_no_other(tmp_path: Path) -> None:
    """The script in a folder where its programs only say what they were asked for, crash, or fail."""
    scripts, programs, tests = (tmp_path / name for name in ("scripts", "programs", "tests/gpu"))
    for folder in (scripts / "bench", programs, tests):
        folder.mkdir(parents=True)
    shutil.copy(BENCH.parent / "test_gpu", scripts)
    (scripts / "environment").write_text(f"set -euo pipefail; cd {tmp_path}; PATH={programs}:$PATH")
    for name in ("test_bench_gpu.py", "test_loader_gpu.py"):
        (tests / name).touch()
    crashes = "*formats*) kill -SEGV $$;; *test_bench_gpu*) exit 4"
    for program in (programs / "python", programs / "gpuloader", scripts / "bench/run"):
        program.write_text(f"""#!/bin/sh
            case "$*" in *CHECKS*) exec {sys.executable} "$@";; {crashes};; esac
            echo "$@"
        """)
        program.chmod(0o755)
    command = [scripts / "test_gpu", tmp_path / "results", tmp_path / "a.tar"]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(BENCH.parents[1])}
    )
    assert run.returncode == 1
    results = tmp_path / "results"
    steps = json.loads((results / "steps.json").read_text())
    tests = ["test_bench_gpu", "test_loader_gpu", "benchmark", "training"]
    assert list(steps) == [*(f"verify-{check}" for check in CHECKS), *tests]
    assert {name: status for name, status in steps.items() if status} == {"verify-formats": 139, "test_bench_gpu": 4}
    for check in set(CHECKS) - {"formats"}:
        asked = f"verify {tmp_path}/a.tar --check {check} --json\n"
        assert (results / f"verify-{check}.json").read_text() == asked
    assert (results / "test_loader_gpu.txt").read_text() == "-m pytest -q tests/gpu/test_loader_gpu.py\n"
