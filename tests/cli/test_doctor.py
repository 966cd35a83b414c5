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


def findings(status: int, **environment: str) -> dict[str, dict[str, Any]]:
    result = run("doctor", "--json", **environment)
    assert result.returncode == status, result.stderr
    return {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_each_finding_is_a_line(tmp_path: Path) -> None:
    write_samples(tmp_path, 10)
    result = run("doctor", tmp_path)
    assert result.returncode == 0, result.stdout
    lines = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert {line.split()[0] for line in lines} <= {"ok", "warning"}
    assert {"torch", "DALI", "disk"} <= {line.split()[1] for line in lines}
    assert "torch.utils.collect_env" in run("doctor", "--help").stdout


@pytest.mark.parametrize(("module", "name"), [("torch", "torch"), ("nvidia", "DALI")])
@pytest.mark.slow(kept=1)
def test_a_package_that_cannot_be_imported_is_a_failure(tmp_path: Path, module: str, name: str) -> None:
    (tmp_path / module).mkdir(parents=True)
    (tmp_path / module / "__init__.py").write_text(BROKEN)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = findings(3, PYTHONPATH=path)
    assert found[name]["status"] == "failure"
    assert found[name]["found"].startswith("cannot be imported: OSError: libcudart.so.12: cannot open")
    assert "pip install" in found[name]["advice"]
    assert {each["status"] for other, each in found.items() if other != name} <= {"ok", "warning"}


def test_a_gpu_that_torch_cannot_use_is_a_warning(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("torch can use the GPU here")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    found = findings(0, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")["torch"]
    assert found["status"] == "warning"
    assert "cannot use the NVIDIA GPU: " in found["found"]
    assert "install torch for CUDA" in found["advice"]


def test_python_without_docstrings_is_a_failure() -> None:
    found = findings(3, PYTHONOPTIMIZE="2")["DALI"]
    assert found["status"] == "failure"
    assert "docstrings" in found["advice"]
    assert "pip install" not in found["advice"]
