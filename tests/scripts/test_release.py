"""What `scripts/release` changes in a repository, and what it refuses."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = "# Changelog\n\n## Unreleased\n\n### Added\n\n- More.\n\n## 1.0.0 - 2026-01-01\n\n### Added\n\n- All.\n"


def run(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


def git(checkout: Path, *arguments: str) -> str:
    result = run(checkout, "git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "a")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@example.org")
    for folder in ("scripts", "gpuloader"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "scripts/release", tmp_path / "scripts")
    for name in ("wheels", "test"):
        (tmp_path / "scripts" / name).write_text(f"#!/bin/sh\necho {name} $*\n[ ! -e fails ]\n")
        (tmp_path / "scripts" / name).chmod(0o755)
    (tmp_path / "gpuloader/__init__.py").write_text('"""It."""\n\n__version__ = "1.0.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "All")
    return tmp_path


def release(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(checkout, "scripts/release", *arguments)


def test_a_version_is_named_committed_and_tagged(checkout: Path) -> None:
    result = release(checkout, "1.1.0")
    assert result.returncode == 0, result.stderr
    assert git(checkout, "describe", "--exact-match", "--tags") == "v1.1.0\n"
    assert git(checkout, "status", "--porcelain") == ""
    assert '__version__ = "1.1.0"' in (checkout / "gpuloader/__init__.py").read_text()
    headings = re.findall(r"^## .*", (checkout / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "## Unreleased"
    assert re.fullmatch(r"## 1\.1\.0 - \d{4}-\d\d-\d\d", headings[1])
    assert result.stdout.splitlines()[0] == "test --sample all"
    assert release(checkout, "--check").stdout == "wheels\n"
    # Nothing came since.
    assert "nothing under Unreleased" in release(checkout, "1.2.0").stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["1.0.0"], "CHANGELOG.md has version 1.0.0 already"),
        (["next"], "say --check or a version such as 1.2.3, not 'next'"),
        ([], "say --check or a version"),
    ],
)
def test_what_is_no_new_version_is_refused(checkout: Path, arguments: list[str], says: str) -> None:
    result = release(checkout, *arguments)
    assert result.returncode == 1
    assert says in result.stderr
    assert git(checkout, "tag") == ""


def test_a_version_whose_tests_fail_is_not_tagged(checkout: Path) -> None:
    (checkout / "fails").touch()
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "A bug")
    assert release(checkout, "1.1.0").returncode == 1
    assert git(checkout, "tag") == ""


def test_uncommitted_changes_are_refused(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text(CHANGELOG + "\n")
    assert "commit your changes first" in release(checkout, "1.1.0").stderr


@pytest.mark.parametrize(("tag", "says"), [("v2.0.0", "the tag is v2.0.0, but"), ("v1.0.0", "")])
def test_a_tag_must_fit_the_version(checkout: Path, tag: str, says: str) -> None:
    git(checkout, "tag", tag)
    result = release(checkout, "--check")
    assert result.returncode == bool(says)
    assert says in result.stderr


def test_a_tag_must_have_its_section_in_the_changelog(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text(CHANGELOG.replace("## 1.0.0 - 2026-01-01", "## Before"))
    git(checkout, "commit", "--quiet", "--all", "--message", "It goes")
    git(checkout, "tag", "v1.0.0")
    assert "no section for version 1.0.0" in release(checkout, "--check").stderr
