"""The notebooks of the documentation run from top to bottom, and give what is written in them."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from executing import NOTEBOOKS, execute
from nbformat import NotebookNode

CONTENT = re.compile(r"(?<=;base64,)[\w+/=]+|(?<='image/jpeg': ')[^']+")  # of a picture: encoders differ


def outputs(notebook: NotebookNode) -> list[list[str]]:
    """What each cell of code gave, as text."""
    return [
        [CONTENT.sub("", str(output.get("data", output.get("text")))) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.slow(kept=0)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_is_written_in_it(path: Path) -> None:
    written = nbformat.read(path, as_version=4)
    [executed] = execute([path])
    assert outputs(executed) == outputs(written), "run scripts/notebooks, and look at what changed"
    assert executed.metadata == written.metadata


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_names_no_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert len(notebook.cells) < 10
    assert notebook.cells[0].source.startswith("# ")
    assert not re.search(r"/(home|root|tmp|usr|Users)/", str(outputs(notebook)))


def test_the_notebooks_are_small() -> None:
    assert len(NOTEBOOKS) == 3
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 400_000
