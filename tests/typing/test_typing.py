"""Type checkers know what a loader gives and takes, and accept what the pages show."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from snippets import Snippet, snippets_of

from gpuloader import GPULoader
from gpuloader.loading.argument_types import LoaderOptions
from gpuloader.recipe import PresetName, preset_names
from gpuloader.trainers.datamodule import EvaluationOptions

ROOT = Path(__file__).resolve().parents[2]

# A wrong call, and what mypy and pyright say: one error that names the argument.
WRONG = {
    'GPULoader("a.tar", 8, num_workers=4)': ('keyword argument "num_workers"', 'No parameter named "num_workers"'),
    'GPULoader("a.tar", 8, shuffle="fully")': ('Argument "shuffle" to "GPULoader"', 'to parameter "shuffle"'),
    'GPULoader("a.tar", 8, decoder=4)': ('Argument "decoder" to "GPULoader"', 'to parameter "decoder"'),
    'GPULoader("a.tar", 8, output="dct")': ('"Output" of "GPULoader"', 'to parameter "output"'),
    'GPULoader("a.tar", "8")': ('Argument 2 to "GPULoader"', 'to parameter "batch_size"'),
    'GPULoader("a.tar")': ("Missing positional argument", 'missing for parameter "batch_size"'),
}

# Pages do not check for None, and write functions without types.
AS_ON_PAGES = """\
# mypy: no-strict-optional, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs, allow-any-generics
# pyright: basic, reportOptionalMemberAccess=false
"""
UNTYPED = re.compile(r"^(import|from) (augment|lightning|nvidia|torchmetrics|webdataset)\b", re.MULTILINE)
"""Packages whose types are missing or incomplete; and the module that a page writes."""


def name_of(snippet: Snippet) -> str:
    return re.sub(r"\W", "_", f"{snippet.page.relative_to(ROOT)}_{snippet.number}")


SNIPPETS = {
    name_of(snippet): snippet.code
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for snippet in snippets_of(page)
    if snippet.language == "python" and not UNTYPED.search(snippet.code)
}
FILES = {
    "examples": Path(__file__).with_name("examples.py").read_text(),
    **{name: AS_ON_PAGES + code for name, code in SNIPPETS.items()},
    "wrong": "\n".join(["from gpuloader import GPULoader", *WRONG]),
}

Errors = Mapping[str, Mapping[int, list[str]]]
"""By file and line."""


@pytest.fixture(scope="module")
def errors_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Errors]:
    """What each checker says of the files. It reads all at once, because most of its time is for what they import."""
    folder, found = tmp_path_factory.mktemp("types"), {}
    for name, code in FILES.items():
        (folder / f"{name}.py").write_text(code)
    for checker, options in (
        ("mypy", ["--output=json", "--python-executable"]),
        ("pyright", ["--outputjson", "--pythonpath"]),
    ):
        program = shutil.which(checker, path=Path(sys.executable).parent) or shutil.which(checker)
        if program is None:
            continue
        command = [program, *options, sys.executable, *(folder / f"{name}.py" for name in FILES)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        errors: Errors = defaultdict(lambda: defaultdict(list))
        if checker == "mypy":
            assert not result.stderr
            listed = [json.loads(line) for line in result.stdout.splitlines()]
            said = [(each["file"], each["line"], each["message"]) for each in listed if each["severity"] == "error"]
        else:
            listed = json.loads(result.stdout)["generalDiagnostics"]
            said = [(each["file"], each["range"]["start"]["line"] + 1, each["message"]) for each in listed]
        for file, line, message in said:
            errors[Path(file).stem][line].append(message)
        found[checker] = errors
    return found


@pytest.fixture(params=["mypy", "pyright"])
def errors(request: pytest.FixtureRequest, errors_of: dict[str, Errors]) -> Errors:
    if request.param not in errors_of:
        pytest.skip(f"{request.param} is not installed: pip install 'gpuloader[dev]'")
    return errors_of[request.param]


def test_the_checkers_find_what_the_examples_say(errors: Errors) -> None:
    assert errors["examples"] == {}


def test_the_checkers_accept_what_the_pages_show(errors: Errors) -> None:
    assert len(SNIPPETS) > 50
    assert {name: lines for name, lines in errors.items() if name in SNIPPETS} == {}


def test_the_checkers_name_a_wrong_argument_in_one_short_error(errors: Errors, request: pytest.FixtureRequest) -> None:
    for line, expected in enumerate(WRONG.values(), start=2):
        [message] = errors["wrong"][line]
        assert any(text in message for text in expected)
        assert len(message.splitlines()[0]) < 250


def test_the_names_of_presets_are_those_of_the_files() -> None:
    names = [name for line in get_args(PresetName) for name in get_args(line)]
    assert names == preset_names(), "correct them in recipe/preset_files.py"


def test_the_options_are_the_arguments_of_a_loader() -> None:
    arguments = get_type_hints(GPULoader.__init__)
    for name, kind in get_type_hints(EvaluationOptions).items():
        assert arguments[name] == kind, name
    named = {"tar", "batch_size", "device_id", "output", "fields", "world"}
    assert {*named, *LoaderOptions.__annotations__} == set(signature(GPULoader).parameters)
