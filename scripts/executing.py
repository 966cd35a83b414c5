"""Executes the notebooks of the documentation, all in one kernel, and writes their outputs into them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "docs" / "notebooks").glob("*.ipynb"))
_SECONDS = 600  # for a cell, on a busy machine


def execute(paths: Iterable[Path]) -> Iterator[NotebookNode]:
    """The notebooks with new outputs. Each begins in an empty folder and without names of another.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raises an error.
    """
    kernel = KernelManager()
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "IPYTHONDIR": folder, "XDG_CACHE_HOME": folder}  # nothing of the user's
        kernel.start_kernel(cwd=folder, env=environment)
        try:
            for path in paths:
                yield _execute(path, kernel, Path(folder, path.stem))
        finally:
            kernel.shutdown_kernel()


def _execute(path: Path, kernel: KernelManager, folder: Path) -> NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    folder.mkdir()
    begin = f"%reset -f\n%cd -q {folder}"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(begin))
    client = NotebookClient(notebook, km=kernel, timeout=_SECONDS, record_timing=False, coalesce_streams=True)
    client.execute()
    client.kc.stop_channels()
    del notebook.cells[0]
    notebook.metadata.language_info = {"name": "python"}  # without the version of this machine's
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, start=1):
        cell.execution_count = number
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
            if {"text/html", "image/jpeg"} & set(output.get("data", {})):
                del output.data["text/plain"]  # which nobody sees
    return notebook


if __name__ == "__main__":
    for path, notebook in zip(NOTEBOOKS, execute(NOTEBOOKS), strict=True):
        nbformat.write(notebook, path)
