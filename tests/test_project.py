"""What hosts, registries and readers see of the project: its metadata, the citation, forms, hooks and words."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
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
FORMS = [path for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]


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
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # those that its schema requires
    assert citation["title"].startswith(PROJECT["name"])
    assert citation["license"] == PROJECT["license"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_what_its_fields_say(path: Path) -> None:
    form = read(path)
    assert form.keys() == {"name", "description", "labels", "body"}
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert all(field["type"] == "textarea" and field["attributes"]["label"] for field in asked)
    assert len({field["id"] for field in asked}) == len(asked) > 0


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


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_the_repository_has(path: Path) -> None:
    jobs = read(path)["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        assert (ROOT / command.split()[0]).stat().st_mode & 0o111, command
    assert all(job["timeout-minutes"] <= 60 for job in jobs)


def test_each_python_is_tested() -> None:
    [job] = read(ROOT / ".github/workflows/tests.yml")["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in range(10, 15)]


def test_the_tests_of_a_gpu_fail_without_one() -> None:
    [job] = read(ROOT / ".github/workflows/gpu.yml")["jobs"].values()
    assert job["env"] == {"GPULOADER_REQUIRE_GPU": "1"}


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
