"""Which blocks of a page are run, and what ends that: `scripts/snippets.py`."""

import subprocess
import sys
from pathlib import Path

import pytest
import snippets

PAGE = """
```python
from pathlib import Path
Path("made").write_text("by the first\\n")
```

```bash
cat made
```

prints

```text
by the first
```

```sh
exit 1  # only shown
```

```bash
scripts/test  # the checkout's
```
"""


def run(page: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, snippets.__file__, page]
    return subprocess.run(command, cwd=page.parent, capture_output=True, text=True, check=False)


def test_the_blocks_of_a_page_run_in_their_order(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    result = run(page)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("cat made\n\nby the first\n\n")


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("```python\nraise SystemExit(3)\n```\n", "snippet 1: exit status 3"),
        ("```bash\nfalse\ntrue\n```\n", "snippet 1: exit status 1"),
        ("```bash\necho 1\n```\n\nprints\n\n```text\n2\n```\n", "snippet 1: exit status 0; expected '2\\n'"),
        ("```bash\necho 1\n```\n\n```bash\n$unknown\n```\n", "snippet 2: exit status"),
    ],
)
def test_a_block_that_fails_or_prints_anything_else_ends_it(tmp_path: Path, block: str, says: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(block)
    result = run(page)
    assert result.returncode == 1
    assert says in result.stderr
