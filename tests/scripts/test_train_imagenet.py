"""`scripts/train_imagenet.py`: real runs of it, in one process here and under torchrun."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from making import write_samples
from oracle import torchvision
from warm import Program

from gpuloader import Compose, GPULoader

ROOT = Path(__file__).resolve().parents[2]
STRUCK = Path(__file__).with_name("struck.py")
CONFIGS = sorted((ROOT / "configs" / "train").glob("*.yaml"))
TRAIN_SAMPLES, VAL_SAMPLES = 46, 25  # neither goes evenly into anything
STEPS = 10
VALUES = {
    "model": "tiny",
    "classes": 10,
    "train_preset": "imagenet_train",
    "train_overrides": {"RandomResizedCrop": {"size": 32}},
    "val_preset": "imagenet_eval",
    "val_overrides": {"Resize": {"size": 36}, "CenterCrop": {"size": 32}},
    "epochs": 2,
    "global_batch": 8,
    "lr": 0.2,
    "warmup_epochs": 0.5,
    "weight_decay": 0.01,
    "norm_weight_decay": 0,
    "label_smoothing": 0.1,
    "ema_decay": 0.5,
    "ema_every": 2,
    "save_every": 3,
    "log_every": 2,
}


def trainer() -> ModuleType:
    """The script as a module, a new one."""
    spec = importlib.util.spec_from_file_location("train_imagenet", ROOT / "scripts" / "train_imagenet.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True, scope="module")
def _as_without_gpu() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration, but for `output`."""
    folder = tmp_path_factory.mktemp("data")
    write_samples(folder / "train", TRAIN_SAMPLES)
    write_samples(folder / "val", VAL_SAMPLES, seed=1)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**VALUES, "train": str(folder / "train"), "val": str(folder / "val")}))
    return path


def arguments(config: Path, output: Path, **values: object) -> list[str]:
    """A command line."""
    values = {"output": str(output), **values}
    return ["--config", str(config), "--set", *(f"{key}={json.dumps(value)}" for key, value in values.items())]


def run(
    config: Path,
    output: Path,
    ranks: int = 1,
    strike: tuple[object, ...] = (0, 0, "nothing"),
    torchrun: bool = False,
    **values: object,
) -> subprocess.CompletedProcess[str]:
    """A run in processes of its own; `strike` is what happens to it, see struck.py.

    Without `torchrun`, warm processes get the environment that it would give them.
    """
    script = [str(STRUCK), *map(str, strike), *arguments(config, output, **values)]
    if torchrun and ranks > 1:
        command = [sys.executable, *f"-m torch.distributed.run --standalone --nproc-per-node {ranks}".split(), *script]
        return subprocess.run(command, capture_output=True, text=True, check=False)
    processes = [
        Program(
            "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')",
            *script,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in ([{}] if ranks == 1 else as_by_torchrun(ranks))
    ]
    told = [process.communicate(timeout=600) for process in processes]
    return subprocess.CompletedProcess(
        script,
        max(abs(process.returncode) for process in processes),
        *("".join(pipe) for pipe in zip(*told, strict=True)),
    )


def free_port() -> int:
    """One that nothing else on this machine uses at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def as_by_torchrun(ranks: int) -> list[dict[str, str]]:
    """What torchrun tells each rank."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    every = [{**meeting, "RANK": rank, "LOCAL_RANK": rank} for rank in range(ranks)]
    return [{name: str(value) for name, value in each.items()} for each in every]


def run_through(config: Path, output: Path, ranks: int = 1, torchrun: bool = False, **values: object) -> dict[str, Any]:
    """A run to its end; its checkpoint."""
    if ranks == 1:
        trainer().main(arguments(config, output, **values))
    else:
        result = run(config, output, ranks, torchrun=torchrun, **values)
        assert result.returncode == 0, result.stderr
    return torch.load(output / "last.pt", weights_only=True)


def assert_same_training(checkpoint: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """All but the configuration: the net, its average, the momentum, and where the loader is."""
    parts = ("net", "ema", "optimizer")
    torch.testing.assert_close(
        *({part: each[part] for part in parts} for each in (checkpoint, expected)), rtol=0, atol=1e-5
    )
    assert checkpoint["loader"] == expected["loader"]
    assert (checkpoint["epoch"], checkpoint["step"]) == (expected["epoch"], expected["step"])


@pytest.fixture(scope="module")
def undisturbed(config: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The checkpoint of a run in one process, from its beginning to its end."""
    return run_through(config, tmp_path_factory.mktemp("undisturbed"))


def test_the_undisturbed_run_trains(undisturbed: dict[str, Any]) -> None:
    torch.manual_seed(0)
    before = trainer().tiny_net(10).state_dict()
    assert (undisturbed["epoch"], undisturbed["step"]) == (2, STEPS)
    for name, weights in undisturbed["net"].items():
        assert (weights - before[name]).abs().max() > 1e-3, name


@pytest.mark.slow(kept=1)
@pytest.mark.parametrize(("ranks", "accumulation"), [(2, 1), (4, 1), (2, 2), (1, 4)])
def test_the_weights_depend_on_neither_ranks_nor_accumulation(
    config: Path, undisturbed: dict[str, Any], tmp_path: Path, ranks: int, accumulation: int
) -> None:
    assert_same_training(run_through(config, tmp_path, ranks, accumulation=accumulation), undisturbed)


@pytest.mark.slow(kept=1, of="whole programs")
@pytest.mark.parametrize(
    ("ranks", "strike", "saved", "ranks_then"),
    [
        (2, (1, 8, "SIGKILL"), 6, 1),  # one rank dies in step 8, the last save was in mid-epoch after step 6
        (1, (0, 6, "half"), 5, 2),  # dies while it writes after step 6; before that the epoch's end was saved
    ],
)
def test_a_killed_run_goes_on_with_other_ranks_from_its_last_whole_checkpoint(
    config: Path,
    undisturbed: dict[str, Any],
    tmp_path: Path,
    ranks: int,
    strike: tuple[int, int, str],
    saved: int,
    ranks_then: int,
) -> None:
    assert run(config, tmp_path, ranks, strike).returncode != 0
    assert torch.load(tmp_path / "last.pt", weights_only=True)["step"] == saved
    assert_same_training(run_through(config, tmp_path, ranks_then), undisturbed)


@pytest.mark.slow(kept=0)
@pytest.mark.parametrize(
    ("ranks", "strike", "ranks_then"),
    [
        (2, (1, 7, "SIGTERM"), 4),
        (1, (0, STEPS // 2, "SIGUSR1"), 1),  # in the last step of an epoch, whose evaluation is then still to do
        (1, (0, STEPS, "SIGTERM"), 1),
    ],
)
def test_a_signal_to_any_rank_saves_after_its_step_and_ends_all_well(
    config: Path, undisturbed: dict[str, Any], tmp_path: Path, ranks: int, strike: tuple[int, int, str], ranks_then: int
) -> None:
    result = run(config, tmp_path, ranks, strike)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(f"stopped by a signal after step {strike[1]}\n")
    assert torch.load(tmp_path / "last.pt", weights_only=True)["step"] == strike[1]
    assert not (tmp_path / "result.json").exists()
    assert_same_training(run_through(config, tmp_path, ranks_then), undisturbed)
    assert (tmp_path / "result.json").exists()


@pytest.mark.slow(kept=1, of="whole programs")
def test_the_evaluation_counts_every_sample_once_with_the_net_of_the_checkpoint(config: Path, tmp_path: Path) -> None:
    """Here with batch normalisation, whose statistics differ between ranks, MixUp, and much else at once."""
    mixing = {"RandomResizedCrop": {"size": 32}, "TrivialAugmentWide": None}
    options = {"train_preset": "resnet50_v2", "train_overrides": mixing, "channels_last": True, "accumulation": 2}
    checkpoint = run_through(config, tmp_path, 2, True, model="resnet18", epochs=1, lr=0.01, **options)
    compose = Compose.load("imagenet_eval", **VALUES["val_overrides"])
    tars = sorted((config.parent / "val").glob("*.tar"))
    result = json.loads((tmp_path / "result.json").read_text())
    with GPULoader(tars, VAL_SAMPLES, None, preset=compose) as loader:
        [(images, labels)] = loader
    averaged = {
        name.removeprefix("module."): value for name, value in checkpoint["ema"].items() if name != "n_averaged"
    }
    for name, weights in (("net", checkpoint["net"]), ("ema", averaged)):
        net = torchvision.models.resnet18(num_classes=10).eval()
        net.load_state_dict(weights)
        with torch.no_grad():
            scores = net(images)
        right = scores.argsort(1, descending=True) == labels[:, None]
        assert result[name] == {
            "top1": pytest.approx(right[:, 0].float().mean().item()),
            "top5": pytest.approx(right[:, :5].float().sum(1).mean().item()),
            "loss": pytest.approx(torch.nn.functional.cross_entropy(scores, labels).item(), rel=1e-3),
            "images": VAL_SAMPLES,
        }


def test_a_checkpoint_of_another_batch_is_refused(config: Path, tmp_path: Path) -> None:
    run_through(config, tmp_path, epochs=1)
    with pytest.raises(SystemExit, match="has global_batch=8, but this run has 4"):
        trainer().main(arguments(config, tmp_path, global_batch=4))


def test_the_rate_of_torchvisions_recipe() -> None:
    module = trainer()
    config = module.read_config(["--config", str(ROOT / "configs/train/resnet50.yaml")])
    rates = [module.learning_rate(config, epochs) for epochs in (0, 2.5, 5, 302.5, 600)]
    assert rates == pytest.approx([0.005, 0.2525, 0.5, 0.25, 0])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_configurations_are_valid(path: Path) -> None:
    config = trainer().read_config(["--config", str(path)])
    assert Compose.load(config.train_preset, **config.train_overrides).default_last_batch == "drop"
    assert Compose.load(config.val_preset, **config.val_overrides).mix is None


SRUN = """#!{python}
import os, pathlib, signal, subprocess, sys, time

def parent(process):
    try:
        return int(pathlib.Path(f"/proc/{{process}}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # others of the machine end at any time
        return 0

def tree(process):
    children = [int(each) for each in os.listdir("/proc") if each.isdigit() and parent(each) == process]
    return [process, *(each for child in children for each in tree(child))]

step = subprocess.Popen(sys.argv[1:])
try:
    while step.poll() is None and not pathlib.Path("run/last.pt").exists():
        time.sleep(0.05)
    if not pathlib.Path("queued").exists():
        for process in tree(step.pid):
            os.kill(process, signal.SIGUSR1)
    sys.exit(step.wait())
finally:
    if step.poll() is None:
        step.terminate()  # it ends its ranks
"""
SCONTROL = '#!/bin/bash\nif [[ $1 == show ]]; then echo localhost; else echo "$2" >> queued; fi\n'


@pytest.mark.slow(kept=1, of="whole programs")
def test_the_slurm_job_of_the_docs_queues_itself_again_until_it_is_done(config: Path, tmp_path: Path) -> None:
    """With imitations of Slurm's commands: `srun` sends SIGUSR1 to all processes of the step, as Slurm does."""
    page = (ROOT / "docs/gpus-and-nodes.md").read_text()
    [job] = re.findall(r"^```bash\n(#!/bin/bash\n.*?)^```$", page, re.DOTALL | re.M)
    for mine, theirs in (
        ("runs/resnet50", "run"),
        ("configs/train/resnet50.yaml", str(config)),
        ("output=$OUTPUT", "output=$OUTPUT epochs=$EPOCHS save_every=1"),
        ("--nproc-per-node 8", "--nproc-per-node 1"),
        ("srun --cpus-per-task=64", "srun"),
        ("$HOST:29500", f"$HOST:{free_port()}"),
        ("scripts/", f"{ROOT}/scripts/"),
    ):
        assert mine in job
        job = job.replace(mine, theirs)
    for name, text in (("srun", SRUN.format(python=sys.executable)), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    slurm = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "localhost", "PATH": path}

    def queued_after(epochs: int) -> str:
        environment = {**os.environ, **slurm, "EPOCHS": str(epochs)}
        result = subprocess.run(["bash", "-c", job], cwd=tmp_path, env=environment, capture_output=True, check=False)
        assert result.returncode == 0, result.stderr.decode()
        return (tmp_path / "queued").read_text()

    assert queued_after(epochs=100_000) == "17\n"
    done = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["epoch"]
    assert queued_after(epochs=done + 1) == "17\n"
    assert (tmp_path / "run" / "result.json").exists()
