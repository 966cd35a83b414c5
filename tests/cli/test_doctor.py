"""`gpuloader doctor`, as a user runs it; on machines that are made to look ill."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import run
from making import write_samples

BROKEN = 'raise OSError("libcudart.so.12: cannot open shared object file")\n'


def findings(*arguments: object, status: int, **environment: str) -> dict[str, dict[str, Any]]:
    result = run("doctor", "--json", *arguments, **environment)
    assert result.returncode == status, result.stderr
    return {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}


def import_path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def nvidia_smi(folder: Path, script: str) -> str:
    """A PATH on which a command of that name is found first."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_each_finding_is_a_line(tmp_path: Path) -> None:
    write_samples(tmp_path, 10)
    result = run("doctor", tmp_path)
    assert result.returncode == 0, result.stdout
    lines = result.stdout.splitlines()
    assert all(line.split()[0] in {"ok", "warning"} for line in lines if not line.startswith(" "))
    assert any(line.startswith("ok       torch ") for line in lines)
    assert any(line.split()[1] == "disk" for line in lines if not line.startswith(" "))


@pytest.mark.slow(kept=2)
@pytest.mark.parametrize(("module", "name"), [("torch", "torch"), ("nvidia/dali", "DALI"), ("nvidia", "DALI")])
def test_a_package_that_cannot_be_imported_is_a_failure(tmp_path: Path, module: str, name: str) -> None:
    (tmp_path / module).mkdir(parents=True)
    (tmp_path / module / "__init__.py").write_text(BROKEN)
    if module == "nvidia/dali":
        (tmp_path / "nvidia" / "__init__.py").touch()
    found = findings(status=3, PYTHONPATH=import_path(tmp_path))
    assert found[name]["status"] == "failure"
    assert found[name]["found"].startswith("cannot be imported: OSError: libcudart.so.12: cannot open")
    assert "pip install" in found[name]["advice"]
    assert {each["status"] for other, each in found.items() if other != name} <= {"ok", "warning"}


def test_a_rank_without_a_world_size_is_a_failure() -> None:
    assert findings(status=3, RANK="1")["processes"]["status"] == "failure"


def test_folders_that_cannot_be_written_to_are_warnings(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = findings(status=0, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert found["cache folder"]["status"] == "warning"
    assert "XDG_CACHE_HOME" in found["cache folder"]["advice"]


def test_a_gpu_that_torch_is_not_made_for_is_a_warning(tmp_path: Path) -> None:
    if torch.version.cuda:
        pytest.skip("torch is made for a GPU here")
    xml = (
        "<nvidia_smi_log><driver_version>550.54</driver_version><cuda_version>12.4</cuda_version>"
        "<gpu><product_name>NVIDIA H200</product_name></gpu></nvidia_smi_log>"
    )
    found = findings(status=0, PATH=nvidia_smi(tmp_path, f"echo '{xml}'"))
    assert found["driver"]["found"] == "550.54, for CUDA up to 12.4"
    assert found["GPU 0"]["found"] == "NVIDIA H200, unknown memory"
    assert found["torch"]["status"] == "warning"
    assert "install torch for CUDA" in found["torch"]["advice"]
    assert found["JPEG engines"]["found"].startswith("unknown: ")
    assert found["CUDA versions"]["status"] == "ok"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "nvidia-smi fails: Failed to"),
        ("echo 'no XML'", "nvidia-smi gives no answer: syntax error"),
    ],
)
def test_a_driver_that_does_not_answer_is_a_failure(tmp_path: Path, script: str, says: str) -> None:
    found = findings(status=3, PATH=nvidia_smi(tmp_path, script))
    assert found["GPU"]["found"].startswith(says)
    assert "restart" in found["GPU"]["advice"]
