"""What registries and readers see of the project: its metadata, the citation, hooks, links and words."""

import ast
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
SAYS_INSTEAD = {
    r"\banew\b": "again",
    r"\bmend(s|ed|ing)?\b": "repair",
    r"\bstand-ins?\b": "replacement",
    r"\bhand(s|ed|ing)? (\w+ )?out\b": "deliver",
    r"\bcannot be meant\b": "invalid",
    r"\bmeanwhile\b": "at the same time",
    r"\bpassed over\b": "skipped",
    r"\b(can|cannot) be had\b": "supported, available",
    r"\b(is|are) there (already|twice)\b": "exists already, occurs twice",
    r"(^|[.;:,] )[Ee]lse\b": "otherwise",
    r"\b[Uu]nless told otherwise\b": "by default",
}
"""Words that readers must not meet, and what to write."""


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def test_each_python_has_a_classifier() -> None:
    said = [re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", each) for each in PROJECT["classifiers"]]
    minors = [int(match[1]) for match in said if match]
    assert minors == list(range(10, 15))
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert sys.version_info[1] in minors


def test_the_citation_is_of_this_project() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["title"].startswith(PROJECT["name"])
    assert citation["license"] == PROJECT["license"]


def test_the_hooks_before_a_commit_do_what_the_check_does() -> None:
    [repository] = read(ROOT / ".pre-commit-config.yaml")["repos"]
    check = (ROOT / "scripts/check").read_text()
    for hook in repository["hooks"]:
        command = hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude")
        assert re.search(rf"^ *{command}\b", check, re.MULTILINE), command


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_the_links_of_a_policy_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", (ROOT / name).read_text())
    assert targets
    assert all((ROOT / target).is_file() for target in targets)


def test_each_python_is_tested() -> None:
    [job] = read(ROOT / ".github/workflows/tests.yml")["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in range(10, 15)]


def test_the_page_of_versions_says_what_the_package_allows_and_is_tested_with() -> None:
    page = (ROOT / "docs/versions.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \| (\d.*) \| .* \|$", page, re.MULTILINE))
    tested = dict(re.findall(r"^\| (\w+) \| \d.* \| (.*) \|$", page, re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    [dali], [lightning] = extras["cuda13"], extras["lightning"]
    allowed = {re.split(r"\W", each)[0]: each for each in [*PROJECT["dependencies"], lightning]}
    for name in ("torch", "NumPy", "Lightning"):
        least, below = re.fullmatch(r"(\S+) or newer, below (\d+)", rows[name]).groups()  # type: ignore[union-attr]
        assert allowed[name.lower()] == f"{name.lower()}>={least},<{below}"
    assert dali == f"nvidia-dali-cuda130>={rows['DALI']},<2.5"
    assert f">={rows['Python'].removesuffix(' or newer')}" == PROJECT["requires-python"]
    assert tested["Python"] == "3.10 to 3.14"
    pins = "".join((ROOT / name).read_text() for name in ("constraints.txt", "constraints-integrations.txt"))
    for name, package in {
        "torch": "torch",
        "DALI": "nvidia-dali-cuda120",
        "NumPy": "numpy",
        "Lightning": "lightning",
    }.items():
        assert re.search(rf"^{package}=={re.escape(tested[name])}\.", pins, re.MULTILINE), name


@cache
def texts(path: Path) -> list[str]:
    """What people read: a page without the table of bad examples; a module's docstrings and messages."""
    if path.suffix == ".md":
        return [line for line in path.read_text().splitlines() if path.name != "CONTRIBUTING.md" or line[:1] != "|"]
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [path for room in ("gpuloader", "pipelines") for path in sorted((ROOT / room).rglob("*.py"))]


@pytest.mark.parametrize("avoided", SAYS_INSTEAD)
def test_pages_messages_and_docstrings_avoid_words_that_are_hard_to_read(avoided: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {' '.join(text[max(0, match.start() - 40) : match.end() + 20].split())}"
        for path in [*PAGES, *MODULES]
        for text in texts(path)
        for match in re.finditer(avoided, text)
    ]
    assert not found, f"write {SAYS_INSTEAD[avoided]!r} instead"
