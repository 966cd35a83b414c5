"""What an editor and Python's own completion offer: all public names, none of the others, each with its text."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cached_property
from inspect import getdoc, isclass, signature

import pytest

import gpuloader
import gpuloader.compat
import gpuloader.compat.turboloader
from gpuloader import GPULoader, collators, errors, transforms

MODULES = (*(gpuloader, collators, errors, transforms), *(gpuloader.compat.turboloader, gpuloader.compat))
CLASSES = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in MODULES
    for name in module.__all__
    if isclass(getattr(module, name))
}


def test_listing_the_names_imports_neither_torch_nor_dali() -> None:
    code = (
        "import sys, gpuloader; assert set(gpuloader.__all__) <= set(dir(gpuloader)); "
        "assert not {'torch', 'nvidia.dali'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_names_of_a_module_are_those_it_lists(module: object) -> None:
    assert set(module.__all__) <= set(dir(module))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CLASSES)
def test_each_public_property_has_a_docstring(name: str) -> None:
    kind = CLASSES[name]
    ours = {
        each: value for base in kind.__mro__ if "gpuloader" in base.__module__ for each, value in vars(base).items()
    }
    properties = [each for each, value in ours.items() if isinstance(value, (property, cached_property))]
    assert [each for each in properties if each[0] != "_" and not getdoc(getattr(kind, each))] == []


def test_each_argument_of_a_loader_has_a_text() -> None:
    [arguments] = re.findall(r"\nArgs:\n((?:    .*\n)*)", getdoc(GPULoader) or "")
    assert re.findall(r"^    (\w+): \S", arguments, re.MULTILINE) == list(signature(GPULoader).parameters)
    assert len(signature(GPULoader).parameters) == 15
