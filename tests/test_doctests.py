"""Every public name has an example in its docstring, and the examples give what they say.

They run in a folder that has `shards/` with 40 samples, as the snippets of the documentation do.
"""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import gpuloader
from gpuloader import collators, errors, transforms
from gpuloader.loading.run import Run

MODULES = gpuloader, collators, errors, transforms
PUBLIC = {name: getattr(module, name) for module in MODULES for name in module.__all__}
EXAMPLES = {
    test.name: test
    for name, thing in {**PUBLIC, "Run": Run}.items()
    for test in doctest.DocTestFinder().find(thing, name)
    if test.examples
}
WITHOUT = {
    *("__version__", "Collator", "REFUSALS"),  # values
    *(set(errors.__all__) - {"GPULoaderError"}),  # their messages say what to do
}


@pytest.fixture
def here(shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shards").symlink_to(shards[0].parent)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_says(name: str) -> None:
    problems: list[str] = []
    doctest.DocTestRunner(verbose=False).run(EXAMPLES[name], out=problems.append)
    assert not problems, "".join(problems)


def test_each_public_name_has_an_example() -> None:
    assert PUBLIC.keys() - EXAMPLES.keys() == WITHOUT
