"""What registries and readers see of the project: the versions that it allows and is tested with."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def test_each_python_has_a_classifier() -> None:
    said = [re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", each) for each in PROJECT["classifiers"]]
    minors = [int(match[1]) for match in said if match]
    assert minors == list(range(10, 15))
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert sys.version_info[1] in minors


def test_each_python_is_tested() -> None:
    [job] = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"].values()
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
        "DALI": "nvidia-dali-cuda130",
        "NumPy": "numpy",
        "Lightning": "lightning",
    }.items():
        assert re.search(rf"^{package}=={re.escape(tested[name])}\.", pins, re.MULTILINE), name


def test_type_checkers_follow_an_editable_install(tmp_path: Path) -> None:
    """It is a path: they run no code, and so see nothing of what a finder would find."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, checkout)
    for name in ("gpuloader", "pipelines", "configs"):
        shutil.copytree(ROOT / name, checkout / name, symlinks=True)
    build = f"from setuptools import build_meta; print(build_meta.build_editable({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=checkout, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        [path] = [files.read(name).decode().strip() for name in files.namelist() if name.endswith(".pth")]
    assert path == str(checkout)
    assert (Path(path) / "gpuloader/pipelines/__init__.py").is_file()


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(names, marks=[pytest.mark.needs_program(*names)] if names else [], id=" ".join(names))
        for names in ([], ["jpegtran"], ["chromium", "chromedriver"])
    ],
)
def test_a_test_and_its_children_find_the_programs_that_it_names_and_no_others(found: list[str]) -> None:
    programs = ["jpegtran", "chromium", "chromedriver"]
    assert [name for name in programs if shutil.which(name)] == found
    command = f"for name in {' '.join(programs)}; do command -v $name; done"
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert [Path(line).name for line in said.stdout.splitlines()] == found
    assert shutil.which("ls")
