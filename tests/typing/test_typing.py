"""Type checkers and editors know what a loader gives, and what it takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from inspect import Parameter, signature
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from gpuloader import GPULoader
from gpuloader.loading.argument_types import LoaderOptions
from gpuloader.recipe import PresetName, preset_names
from gpuloader.trainers.datamodule import EvaluationOptions

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_checkers_find_what_the_examples_say(checker: str) -> None:
    program = shutil.which(checker, path=Path(sys.executable).parent) or shutil.which(checker)
    if program is None:
        pytest.skip(f"{checker} is not installed: pip install 'gpuloader[dev]'")
    python = ["--python-executable", sys.executable] if checker == "mypy" else ["--pythonpath", sys.executable]
    command = [program, *python, "tests/typing/examples.py"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_names_of_presets_are_those_of_the_files() -> None:
    names = "".join(f'    "{name}",\n' for name in preset_names())
    assert list(get_args(PresetName)) == preset_names(), f"write into recipe/names.py:\n{names}"


def test_the_options_are_the_arguments_that_no_overload_names() -> None:
    arguments = get_type_hints(GPULoader.__init__)
    for name, kind in get_type_hints(EvaluationOptions).items():
        assert arguments[name] == kind, name
    named = {"tar", "batch_size", "device_id", "output", "fields", "world"}
    assert {*named, *LoaderOptions.__annotations__} == {
        name for name, each in signature(GPULoader).parameters.items() if each.kind is not Parameter.VAR_KEYWORD
    }
