"""The snippets of a Markdown page. As a program: runs those of a page in this folder, and checks what they print.

usage: python scripts/snippets.py PAGE        (Python's with this interpreter, bash's with the PATH; not the checkout's
scripts, which have other tests)
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SNIPPET = re.compile(r"^```(python|bash)\n(.*?)^```$(?:\n\nprints\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


class Snippet(NamedTuple):
    """A block of code, numbered from 1 within its page, and what the page says that it prints; "" for nothing."""

    page: Path
    number: int
    language: str
    code: str
    printed: str


def snippets_of(page: Path) -> list[Snippet]:
    """The snippets in their order."""
    return [Snippet(page, number, *parts) for number, parts in enumerate(SNIPPET.findall(page.read_text()), start=1)]


def main(page: Path) -> None:
    """Runs the snippets of a page, each after those before it; one that fails or prints anything else ends it."""
    for snippet in snippets_of(page):
        if snippet.code.startswith("scripts/"):
            continue
        print(snippet.code, flush=True)
        command = [sys.executable, "-I", "-c"] if snippet.language == "python" else ["bash", "-euc"]
        result = subprocess.run([*command, snippet.code], stdout=subprocess.PIPE, text=True, check=False)
        print(result.stdout, flush=True)
        if result.returncode or result.stdout != (snippet.printed or result.stdout):
            sys.exit(f"{page}, snippet {snippet.number}: exit status {result.returncode}; expected {snippet.printed!r}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
