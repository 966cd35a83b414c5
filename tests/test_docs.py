"""Every snippet of docs/ runs, in the order of its page, and prints what the page says of the demo's pictures. Those of
README.md run in scripts/wheels.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
from demo_shards import write_demo_photos, write_demo_shards
from snippets import Snippet, snippets_of
from warm import warm

ROOT = Path(__file__).resolve().parent.parent
README, *DOCS = PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def name_of_snippet(snippet: Snippet) -> str:
    return f"{name_of(snippet.page)}-{snippet.number}"


SNIPPETS = [snippet for page in PAGES for snippet in snippets_of(page)]
# What runs elsewhere, for it needs several GPUs, a package that the other tests do without, or takes minutes.
ELSEWHERE = {
    "README.md-3": ".ci/run",
    "docs/gpus-and-nodes.md-3": "tests/scripts/test_train_imagenet.py",
    "docs/gpus-and-nodes.md-4": "tests/scripts/test_train_imagenet.py",
    "docs/gpus-and-nodes.md-6": "tests/scripts/test_elastic_train.py",
    "docs/lightning.md-1": "tests/integrations/test_lightning.py",
    "docs/speed.md-5": "tests/bench/test_bench.py",
    "docs/trainers.md-2": "tests/integrations/test_trainers.py",
    "docs/trainers.md-3": "tests/integrations/test_trainers.py",
}


PACKING = {snippet.page for snippet in SNIPPETS if "--seekable" in snippet.code}
"""Pages whose snippets need jpegtran: each runs those before it."""


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    return [pytest.mark.needs_program("jpegtran")] if page in PACKING else []


def path_of_commands() -> str:
    return f"{warm().folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"  # whose `gpuloader` starts soon


def run_snippet(snippet: Snippet, folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    """What became of it; `path` is that of commands."""
    command = [warm().folder / "run", snippet.code] if snippet.language == "python" else ["bash", "-euc", snippet.code]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )


def check(snippet: Snippet, result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stderr
    assert result.stdout == (snippet.printed or result.stdout)


@pytest.fixture(scope="module")
def kept_by_the_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_demo_photos(folder / "photos")
    write_demo_shards(folder / "shards")
    return folder


@pytest.fixture(scope="module")
def result_of(
    kept_by_the_demo: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Snippet], subprocess.CompletedProcess[str]]:
    """Runs a snippet, where those before it on its page have run, each once."""
    folders: dict[Path, Path] = {}
    results: dict[Snippet, subprocess.CompletedProcess[str]] = {}

    def run_up_to(snippet: Snippet) -> subprocess.CompletedProcess[str]:
        if snippet.page not in folders:
            folders[snippet.page] = tmp_path_factory.mktemp(snippet.page.stem)
            (folders[snippet.page] / "photos").symlink_to(kept_by_the_demo / "photos")  # no page changes them
            copytree(kept_by_the_demo / "shards", folders[snippet.page] / "shards", copy_function=os.link)
        for each in snippets_of(snippet.page)[: snippet.number]:
            if name_of_snippet(each) not in ELSEWHERE and each not in results:
                results[each] = run_snippet(each, folders[each.page], path_of_commands())
        return results[snippet]

    return run_up_to


@pytest.mark.slow(kept=4)
@pytest.mark.parametrize(
    "snippet",
    [
        pytest.param(each, marks=marks_of(each.page))
        for each in SNIPPETS
        if each.page != README and name_of_snippet(each) not in ELSEWHERE
    ],
    ids=name_of_snippet,
)
def test_a_snippet_runs_and_prints_what_its_page_says(
    snippet: Snippet, result_of: Callable[[Snippet], subprocess.CompletedProcess[str]]
) -> None:
    check(snippet, result_of(snippet))


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_snippet_that_runs_elsewhere_names_what_is_there(name: str) -> None:
    [snippet] = [each for each in SNIPPETS if name_of_snippet(each) == name]
    files = re.findall(r"\b(?:scripts|configs)/[\w/.]*\w", snippet.code)
    assert files
    assert all((ROOT / file).is_file() for file in files)
    commands = re.findall(r"^scripts/\S+", snippet.code, re.MULTILINE)
    assert all((ROOT / command).stat().st_mode & 0o111 for command in commands)
    assert (ROOT / ELSEWHERE[name]).is_file()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_blocks_of_a_page_are_of_kinds_that_are_looked_at(page: Path) -> None:
    blocks = re.findall(r"^```(\w*)\n(?:.*\n)*?```$", page.read_text(), re.MULTILINE)
    assert set(blocks) <= {"python", "bash", "py", "sh", "text", "yaml"}
    assert sum(block in {"python", "bash"} for block in blocks) == len(snippets_of(page))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_tests_that_a_page_names_are_there(page: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", page.read_text()):
        assert (ROOT / file).exists(), file
        assert not name or f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
