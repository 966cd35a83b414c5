"""What fails the build of the documentation's site; scripts/docs builds it as it is."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="scripts/docs has not installed mkdocs")

ROOT = Path(__file__).resolve().parents[2]


def build(site: Path, root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow(kept=1, of="whole programs")
def test_dead_links_broken_tables_and_what_comes_from_elsewhere_fail_the_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for name in ("scripts", "gpuloader"):
        (tmp_path / name).symlink_to(ROOT / name)
    broken = {
        "[x](nothing.md)": "contains a link 'nothing.md'",
        "[x](samples.md#nothing)": "does not contain an anchor '#nothing'",
        "[x](/samples.md)": "contains an absolute link '/samples.md'",
        "![x](https://example.com/x.png)": "index.html loads from elsewhere: <img",
        '<script src="//example.com/x.js"></script>': "index.html loads from elsewhere: <script",
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n| 3 | `4` |": "has a table's row as text (an empty line above it?): | 3 |",
        "```\n| what code prints |\n```\n\n| x |\n|---|\n| a | b": "",  # neither of these
    }
    (tmp_path / "docs/index.md").write_text("\n\n".join(["# Start", *broken]))
    (tmp_path / "docs/forgotten.md").write_text("# Forgotten")
    result = build(tmp_path / "site", tmp_path)
    assert result.returncode == 1
    for said in (*broken.values(), "forgotten.md"):
        assert said in result.stderr
    assert result.stderr.count("a table's row as text") == 1
