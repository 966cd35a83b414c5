"""The loader in trainers that others wrote: each example of scripts/examples runs, and sees each sample once.

The packages come with scripts/test_integrations; elsewhere these tests skip.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import indent

import pytest
import torch
import watched
from learned import check_that_it_learned
from making import write_samples
from torch.nn import functional
from watched import ARGUMENTS, SAMPLES, check_that_each_sample_counts_once, wait_for

from gpuloader import GPULoader

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "scripts" / "examples"
PAGE = ROOT / "docs" / "trainers.md"
SMALL = {"RandomResizedCrop": {"size": 32}}


def needs(package: str) -> pytest.MarkDecorator:
    """Leaves a test out where a package is not installed."""
    reason = f"{package} is not installed; scripts/test_integrations installs it"
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)


Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def run(shards: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs an example on the 40 samples, in `processes` processes of torchrun's or as a plain script."""
    home = tmp_path_factory.mktemp("home")

    def run_example(name: str, *options: object, processes: int | None = None) -> list[str]:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        command = [
            *(sys.executable, *(torchrun if processes else [])),
            *(EXAMPLES / name, "--shards", shards[0].parent, *options),
        ]
        settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        result = subprocess.run(
            list(map(str, command)),
            cwd=home,
            env={**os.environ, **settings, "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    return run_example


@pytest.fixture(scope="module")
def losses(shards: list[Path]) -> list[list[float]]:
    """Of the steps of two epochs of a plain loop that trains what several examples do, with a global batch of 8."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[list[float]] = [[], []]
    with GPULoader(shards, 8, None, preset={"imagenet_train": SMALL}) as loader:
        for of_epoch in losses:
            for images, labels in loader:
                loss = functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                of_epoch.append(loss.item())
    return losses


def check_epochs(lines: list[str], *expected: tuple[str, list[float]]) -> None:
    """Each epoch's line begins as expected, and its loss is the mean of those."""
    epochs = [line for line in lines if line.startswith("epoch ")]
    for line, (begin, losses) in zip(epochs, expected, strict=True):
        told, _, loss = line.rpartition(", loss ")
        assert told == begin
        assert float(loss) == pytest.approx(torch.tensor(losses).mean().item(), abs=2e-4, nan_ok=True)


# --- Accelerate


@needs("accelerate")
@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate_sees_each_sample_once_over_all_processes(
    run: Run, tmp_path: Path, processes: int, losses: list[list[float]]
) -> None:
    options = ("--folder", tmp_path / "saved", "--size", 32, "--epochs", 2, "--batch-size", 8 // processes)
    lines = run("accelerate_train.py", *options, processes=processes)
    check_epochs(lines, *((f"epoch {epoch}: 40 samples, 40 different", losses[epoch]) for epoch in range(2)))


@needs("accelerate")
@pytest.mark.parametrize(
    ("before", "after", "saved"), [(1, 2, 2), (2, 1, 5)], ids=["by two", "by one, between two epochs"]
)
def test_accelerate_is_gone_on_with_from_any_step(
    run: Run, tmp_path: Path, before: int, after: int, saved: int, losses: list[list[float]]
) -> None:
    options = ("--folder", tmp_path / "saved", "--size", 32, "--epochs", 2, "--save-every", saved)
    run("accelerate_train.py", *options, "--batch-size", 8 // before, "--stop-after", saved + 1, processes=before)
    lines = run("accelerate_train.py", *options, "--batch-size", 8 // after, processes=after)
    left = 40 - 8 * saved
    check_epochs(
        lines,
        (f"epoch 0: {left} samples, {left} different", losses[0][saved:]),
        ("epoch 1: 40 samples, 40 different", losses[1]),
    )


# --- transformers


HF = ("--size", 32, "--num_train_epochs", 2, "--use_cpu", "--disable_tqdm", "true", "--report_to", "none")


# GPULoaderTrainer itself: tests/integrations/test_hugging_face_trainer.py


@pytest.fixture(scope="module")
def trained(run: Run, shards: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """What Trainer wrote in two epochs of five steps, with a checkpoint of each step, and the last line it printed."""
    folder = tmp_path_factory.mktemp("trained")
    options = ("--output_dir", folder, "--val", shards[0].parent, "--per_device_train_batch_size", 8, "--save_steps", 1)
    options += ("--logging_steps", 1)
    return folder, run("hf_trainer.py", *HF, *options)[-1]


@needs("transformers")
def test_trainer_goes_on_as_if_nothing_had_been(
    run: Run, shards: list[Path], tmp_path: Path, trained: tuple[Path, str]
) -> None:
    folder, line = trained
    options = ("--output_dir", tmp_path, "--val", shards[0].parent, "--per_device_train_batch_size", 8)
    resumed = run("hf_trainer.py", *HF, *options, "--resume_from_checkpoint", folder / "checkpoint-3")
    assert line.startswith("10 steps; 40 samples, accuracy ")
    assert resumed[-1] == line
    assert (tmp_path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@needs("transformers")
def test_trainer_goes_on_with_two_processes_and_evaluates_each_sample_once_over_both(
    run: Run, shards: list[Path], tmp_path: Path, trained: tuple[Path, str]
) -> None:
    folder, line = trained
    options = ("--output_dir", tmp_path, "--val", shards[0].parent, "--per_device_train_batch_size", 4)
    options += ("--per_device_eval_batch_size", 7, "--resume_from_checkpoint", folder / "checkpoint-3")
    lines = run("hf_trainer.py", *HF, *options, processes=2)  # 42 places for 40
    assert lines[-1].startswith("10 steps; 40 samples, accuracy ")
    losses = [float(each.rpartition(" ")[2]) for each in (line, lines[-1])]
    assert losses[0] == pytest.approx(losses[1], abs=0.01)  # normalisation of batches of 4 is not that of 8


# --- timm


@needs("timm")
def test_timm_trains_on_soft_labels(run: Run, shards: list[Path]) -> None:
    options = ("--model", "test_vit", "--classes", 10, "--size", 64, "--batch-size", 8, "--epochs", 2)
    lines = run("timm_train.py", "--val", shards[0].parent, *options)
    assert len(lines) == 2
    for epoch, line in enumerate(lines):
        assert re.fullmatch(rf"epoch {epoch}: loss 2\.\d+, accuracy \d+\.\d% of 40 samples", line)


# --- torchdata and torch.distributed.checkpoint


@needs("torchdata")
def test_torchdata_takes_the_state_from_behind_a_prefetcher(shards: list[Path]) -> None:
    from torchdata.nodes import IterableWrapper, Loader, Prefetcher
    from torchdata.stateful_dataloader.stateful import Stateful

    def nodes(loader: GPULoader) -> Loader[dict[str, torch.Tensor]]:
        assert isinstance(loader, Stateful)
        return Loader(Prefetcher(IterableWrapper(loader), prefetch_factor=2))

    def made() -> GPULoader:
        return GPULoader(shards, 8, None, preset={"imagenet_train": SMALL}, output="dict")

    with made() as loader, made() as resumed_loader:
        before, resumed = nodes(loader), nodes(resumed_loader)
        first = [batch["index"] for _, batch in zip(range(2), before)]
        resumed.load_state_dict(before.state_dict())
        rest = [batch["index"] for batch in resumed]
    assert (len(first), len(rest)) == (2, 3)
    assert sorted(torch.cat(first + rest).tolist()) == list(range(40))


@pytest.mark.slow(kept=1, of="whole programs")
def test_a_distributed_checkpoint_of_two_ranks_is_gone_on_with_by_one(
    run: Run, tmp_path: Path, losses: list[list[float]]
) -> None:
    options = ("--folder", tmp_path / "saved", "--size", 32, "--epochs", 2, "--save-every", 2)
    run("distributed_checkpoint.py", *options, "--batch-size", 4, "--stop-after", 3, processes=2)
    lines = run("distributed_checkpoint.py", *options, "--batch-size", 8, processes=1)
    check_epochs(lines, ("epoch 0: 3 steps", losses[0][2:]), ("epoch 1: 5 steps", losses[1]))


# --- Ray


@needs("ray")
def test_ray_sees_each_sample_once_over_both_workers_and_goes_on_after_a_failure(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: list[list[float]]
) -> None:
    options = ("--folder", tmp_path / "runs", "--size", 32, "--epochs", 2, "--global-batch", 8, "--save-every", 2)
    with TemporaryDirectory(prefix="ray") as short:  # a socket's path has room for about 100 characters
        monkeypatch.setenv("RAY_TMPDIR", short)
        lines = run("ray_train.py", *options, "--fail-after", 3)
    check_epochs(lines, ("epoch 1: 40 samples, 40 different", losses[1]))


@needs("ray")
def test_ray_goes_on_with_the_workers_that_are_left_and_with_all_when_the_node_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.cluster_utils import Cluster

    write_samples(tmp_path / "shards", SAMPLES, sizes=[(33, 51)])
    watching = (sys.executable, watched.__file__, tmp_path, "ray", EXAMPLES / "ray_train.py")
    options = ("--shards", tmp_path / "shards", "--folder", tmp_path / "runs", "--workers", 2, 4, *ARGUMENTS)
    here = {"node_ip_address": "127.0.0.1"}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with TemporaryDirectory(prefix="ray") as short, (tmp_path / "log.txt").open("w") as log:
        monkeypatch.setenv("RAY_TMPDIR", short)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **here})
        _, second = cluster.add_node(num_cpus=2, **here), cluster.add_node(num_cpus=2, **here)
        # Else Ray would not look for it at 127.0.0.1, but at the address of the network.
        settings = {"RAY_ADDRESS": cluster.address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        command = list(map(str, (*watching, *options)))
        run = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
        try:
            wait_for(4, 5, tmp_path, run)
            while not list(tmp_path.glob("runs/*/checkpoint_manager_snapshot.json")):  # Ray's note of a checkpoint
                time.sleep(0.1)
            cluster.remove_node(second, allow_graceful=False)  # ends its workers, too
            (tmp_path / "killed").touch()
            wait_for(2, 3, tmp_path, run)
            cluster.add_node(num_cpus=2, **here)
            assert run.wait(600) == 0, (tmp_path / "log.txt").read_text()
        finally:
            run.kill()
            run.wait()
            cluster.shutdown()
    check_that_each_sample_counts_once(tmp_path, tmp_path / "shards")


# --- the page


@pytest.mark.parametrize(
    "example",
    [pytest.param("hf_trainer.py", marks=needs("transformers")), pytest.param("timm_train.py", marks=needs("timm"))],
)
def test_a_run_on_the_page_learns(demo: Path, tmp_path: Path, example: str) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```$.*?^```text\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    [(command, shown)] = [block for block in blocks if example in block[0]]
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    (tmp_path / "shards").symlink_to(demo / "shards")
    settings = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check_that_it_learned(done.stdout, shown)


@needs("timm")
def test_what_the_page_calls_timms_is_in_timms_package() -> None:
    parts = [import_module(f"timm{part}") for part in ("", ".data", ".loss", ".optim", ".scheduler", ".utils")]
    names = re.findall(r"timm's\s`(\w+)(?:`| and `(\w+)`)", PAGE.read_text())
    assert names
    for name in filter(None, chain(*names)):
        assert any(hasattr(part, name) for part in parts), name


def test_what_the_page_shows_is_in_the_examples() -> None:
    sections = PAGE.read_text().split("\n## ")[1:]
    shown = set()
    for section in sections:
        examples = re.findall(r"\(\.\./scripts/examples/(\w+\.py)\)", section)
        code = "\n".join((EXAMPLES / name).read_text() for name in examples)
        for block in re.findall(r"^```py\n(.*?)^```$", section, re.DOTALL | re.MULTILINE) if examples else ():
            assert any(indent(block, " " * depth) in code for depth in (0, 4, 8, 12)), block
            shown.update(examples)
    on_other_pages = {"albumentations_train.py", "lightning_module.py", "elastic_train.py", "shared_views.py"}
    assert shown == {path.name for path in EXAMPLES.glob("*.py")} - on_other_pages
