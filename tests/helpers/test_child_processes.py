"""Processes that this one starts and talks with: they are ready, or say why not; and they end with what they forked."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from gpuloader.helpers.child_processes import end, start_python

READY = "print('ready', flush=True)\n"


def is_ready(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == b"ready\n"


def start(code: str) -> subprocess.Popen[bytes]:
    process = start_python("-c", READY + code, is_ready=is_ready)
    return process


def test_a_process_that_is_ready_is_talked_with_by_its_pipes() -> None:
    process = start("import sys; print(*reversed(sys.stdin.read().split()))")
    assert process.communicate(b"one two three") == (b"three two one\n", None)
    assert process.returncode == 0


def test_it_imports_from_where_this_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_there.py").write_text("word = 'found'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert start("import only_there; print(only_there.word)").communicate()[0] == b"found\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('no such decoder')", "no such decoder\n"),
        ("print('not that')", ""),
        ("import os; os.write(2, b'\\xff'); os.abort()", "\N{REPLACEMENT CHARACTER}"),
        ("import sys; sys.stderr.write('line\\n' * 300)", "line\n" * 200),  # the end of it
    ],
)
def test_one_that_ends_before_is_what_it_wrote_to_stderr(code: str, said: str) -> None:
    with pytest.raises(ChildProcessError) as caught:
        start_python("-c", code, is_ready=is_ready)
    assert str(caught.value) == said


def test_an_error_while_waiting_for_it_leaves_no_process() -> None:
    started = []

    def interrupted(process: subprocess.Popen[bytes]) -> bool:
        started.append(process)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_python("-c", "import time; time.sleep(600)", is_ready=interrupted)
    assert started[0].returncode == -signal.SIGKILL


def test_what_it_forked_ends_with_it(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    process = start(f"import os, time; os.fork(); time.sleep(5); open({str(lives)!r}, 'w')")
    end(process)  # waits for the end of stdout, which the fork has too
    assert process.returncode == -signal.SIGKILL
    assert not lives.exists()
    end(process)  # again: nothing is left to kill
