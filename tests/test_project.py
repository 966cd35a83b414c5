"""What hosts, registries and readers see of the project: its metadata, the citation, forms, hooks and words."""

import ast
import json
import re
import subprocess
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
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, BUILD_SYSTEM = PYPROJECT["project"], PYPROJECT["build-system"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OF_CONDA = {"torch": "pytorch"}
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


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    recipe = read(ROOT / "conda/recipe.yaml")
    [dali] = PROJECT["optional-dependencies"]["cuda13"]
    needed = [*PROJECT["dependencies"], re.sub(r"^[\w-]+", "nvidia-dali-python", dali)]
    names_and_versions = [re.fullmatch(r"([\w-]+)(\W.*)", each).groups() for each in needed]  # type: ignore[union-attr]
    expected = [f"{OF_CONDA.get(name, name.lower())} {versions}" for name, versions in names_and_versions]
    assert recipe["requirements"]["run"] == [f"python {PROJECT['requires-python']}", *expected]
    assert [each.replace(" ", "") for each in recipe["requirements"]["host"][2:]] == BUILD_SYSTEM["requires"]
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert recipe["about"]["license"] == PROJECT["license"]


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


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_image_installs_the_wheel_of_its_machine(machine: str, tmp_path: Path) -> None:
    wheels = [tmp_path / f"gpuloader-0.1.0-py3-none-manylinux_2_28_{each}.whl" for each in ("x86_64", "aarch64")]
    for wheel in wheels:
        wheel.touch()
    [install] = [line for line in shell_of_the_image() if "pip install" in line]
    code = install.replace("/dist", str(tmp_path)).replace("python3 -m venv /opt/gpuloader &&", "")
    functions = f"pip() {{ echo $3; }}; uname() {{ echo {machine}; }};"
    printed = subprocess.run(["sh", "-euc", functions + code], capture_output=True, text=True, check=True).stdout
    wheel, extra = re.fullmatch(r"(.*)\[(\w+)\]\n", printed).groups()  # type: ignore[union-attr]
    assert [wheel] == [str(each) for each in wheels if machine in each.name]
    [dali] = PROJECT["optional-dependencies"][extra]
    [cuda] = re.findall(r"^FROM nvidia/cuda:(\d+)\.", DOCKERFILE, re.MULTILINE)
    assert dali.startswith(f"nvidia-dali-cuda{cuda}0>")


def shell_of_the_image() -> list[str]:
    joined = re.sub(r"\s*\\\n\s*", " ", DOCKERFILE)
    return re.findall(r"^RUN (?:--\S+ )*(.*)$", joined, re.MULTILINE)


def test_the_image_runs_a_command_and_not_as_root() -> None:
    *_, user, _, command = DOCKERFILE.strip().splitlines()
    assert re.fullmatch(r"USER [1-9]\d*:[1-9]\d*", user)
    program, name = json.loads(command.removeprefix("CMD "))
    assert program in PROJECT["scripts"]
    assert (ROOT / f"gpuloader/cli/{name}.py").is_file()


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
