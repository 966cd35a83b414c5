"""Processes that this one starts and talks with: they answer, or say why not; and they end with what they forked."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from gpuloader.base.child_processes import ChildProcess

READY = "import json, os, sys, time; say = lambda value: print(json.dumps(value), flush=True); say('ready')\n"


Make: TypeAlias = Callable[..., ChildProcess]


class FailureError(Exception):
    """Of the process."""


@pytest.fixture
def child() -> Iterator[Make]:
    with ExitStack() as stack:

        def make(code: str, ready: str = READY) -> ChildProcess:
            made = ChildProcess("counts", FailureError, "-c", ready + code)
            stack.callback(made.close)
            return made

        yield make


def test_it_answers_lines_with_lines(child: Make) -> None:
    counting = child("for line in sys.stdin: say(sum(json.loads(line)))")
    assert [counting.ask([1, 2]), counting.ask([])] == [3, 0]
    first = counting.process
    counting.close()
    assert (counting.process, counting.end) == (None, "SIGKILL")
    counting.close()  # again: nothing is left to kill
    assert counting.ask([4]) == 4  # by another process
    assert counting.process is not first


def test_bytes_may_follow_a_line_both_ways(child: Make) -> None:
    read = "sys.stdin.buffer.readline(); data = sys.stdin.buffer.read(3_000_000)"
    echo = child(f"{read}; say(len(data)); os.write(1, data[:9])")
    assert echo.ask(None, b"abc", bytes(2_999_997)) == 3_000_000
    found = bytearray(9)
    assert echo.fill(memoryview(found))
    assert found == b"abc" + bytes(6)
    assert not echo.fill(memoryview(found))  # it ended
    assert echo.end == "exit status 0"


def test_it_imports_from_where_this_one_does(child: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_there.py").write_text("word = 'found'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert child("sys.stdin.readline(); import only_there; say(only_there.word)").ask(None) == "found"


@pytest.mark.parametrize(
    ("code", "end", "errors"),
    [
        ("sys.exit('no such decoder')", "exit status 1", "no such decoder\n"),
        ("os.write(1, b'[1')", "exit status 0", ""),  # it ends while it writes
        ("os.write(2, b'\\xff'); os.abort()", "SIGABRT", "\N{REPLACEMENT CHARACTER}"),
        ("sys.stderr.write('line\\n' * 300)", "exit status 0", "line\n" * 200),  # the end of it
    ],
)
def test_one_that_ends_leaves_how_and_what_it_wrote_to_stderr(child: Make, code: str, end: str, errors: str) -> None:
    ending = child(f"sys.stdin.readline()\n{code}")
    assert ending.ask(None) is None
    assert (ending.end, ending.errors, ending.process) == (end, errors, None)
    with pytest.raises(FailureError) as caught:
        child(code, ready="import os, sys\n").ask(None)
    assert caught.value.args == ("the process that counts did not start:", *errors.splitlines())


def test_one_that_does_not_answer_in_time_is_an_error(child: Make) -> None:
    silent = child("time.sleep(600)")
    silent.start()
    assert silent.answer() == "ready"
    with pytest.raises(FailureError, match=r"the process that counts did not answer for 0\.1 seconds"):
        silent.answer(0.1)


def test_what_it_forked_ends_with_it(child: Make, tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    forking = child(f"os.fork(); time.sleep(5); open({str(lives)!r}, 'w')")
    forking.start()
    assert forking.answer() == "ready"
    process = forking.process
    forking.close()  # waits for the end of stdout, which the fork has too
    assert process is not None
    assert process.returncode == -signal.SIGKILL
    assert not lives.exists()
