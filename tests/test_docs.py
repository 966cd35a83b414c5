"""Every snippet of the README and of docs/ runs, in the order of its page, and prints what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from making import write_samples
from warm import warm

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPET = re.compile(r"^```(python|bash)\n(.*?)^```$(?:\n\nprints\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page: Path, tmp_path: Path) -> None:
    if page.name != "README.md":  # which makes its own
        write_samples(tmp_path / "shards", 40, sizes=[(60, 80)])
    for language, code, printed in SNIPPET.findall(page.read_text()):
        if "scripts/" in code:
            for command in re.findall(r"^(scripts/\w+)", code, re.MULTILINE):
                assert (ROOT / command).stat().st_mode & 0o111, f"{command} cannot be run"
            continue  # these two are run by a clean checkout's CI, and by test_run of the demonstration
        path = f"{warm().folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"  # whose `gpuloader` starts soon
        command = [warm().folder / "run", code] if language == "python" else ["bash", "-euc", code]
        result = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
        )
        assert result.returncode == 0, result.stderr
        if printed:
            assert result.stdout == printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_that_a_page_names_are_there(page: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", page.read_text()):
        assert (ROOT / file).exists(), file
        assert not name or f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
