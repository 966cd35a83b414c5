"""Every snippet of the README and of docs/ runs, in the order of its page, and prints what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from making import write_samples
from PIL import Image
from warm import CLI, warm

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPET = re.compile(r"^```(python|bash)\n(.*?)^```$(?:\n\nprints\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def run_snippets(page: Path, folder: Path, path: str) -> list[subprocess.CompletedProcess[str]]:
    """What became of each; `path` is that of commands."""
    results = []
    for language, code, printed in SNIPPET.findall(page.read_text()):
        if "scripts/" in code:
            for command in re.findall(r"^(scripts/\w+)", code, re.MULTILINE):
                assert (ROOT / command).stat().st_mode & 0o111, f"{command} cannot be run"
            continue  # these two are run by a clean checkout's CI
        command = [warm().folder / "run", code] if language == "python" else ["bash", "-euc", code]
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
        )
        assert result.returncode == 0, result.stderr
        if printed:
            assert result.stdout == printed
        results.append(result)
    return results


def path_of_commands() -> str:
    return f"{warm().folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"  # whose `gpuloader` starts soon


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page: Path, tmp_path: Path) -> None:
    write_samples(tmp_path / "shards", 40, sizes=[(60, 80)])
    run_snippets(page, tmp_path, path_of_commands())


def test_the_snippets_of_the_readme_run_and_its_demonstration_learns(tmp_path: Path) -> None:
    """The only run of the whole demonstration: it ends above 90 percent and draws predictions."""
    command = tmp_path / "bin" / "gpuloader"
    command.parent.mkdir()
    longer = "from gpuloader.demo import run; run.TRAIN_SECONDS = 600.0"  # as on a machine that does nothing else
    command.write_text(f"#!/bin/sh\nexec {warm().folder}/run '{longer}; {CLI}' \"$@\"\n")
    command.chmod(0o755)
    demonstration, *_ = run_snippets(PAGES[0], tmp_path, f"{command.parent}:{path_of_commands()}")
    assert "epoch 5/5" in demonstration.stderr
    [accuracy] = re.findall(r"^accuracy +([\d.]+)% of 300 pictures", demonstration.stdout, re.MULTILINE)
    assert float(accuracy) > 90
    with Image.open(tmp_path / "demo.png") as grid:
        assert grid.size[0] > 1000
        assert len(grid.getcolors(1 << 24)) > 10_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_that_a_page_names_are_there(page: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", page.read_text()):
        assert (ROOT / file).exists(), file
        assert not name or f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
