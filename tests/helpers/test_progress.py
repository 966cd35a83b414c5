import sys
from concurrent.futures import Future

import pytest

from gpuloader.helpers import progress
from gpuloader.helpers.progress import count_long, follow


def test_work_that_is_quick_shows_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    futures: list[Future[int]] = [Future(), Future()]
    for number, future in enumerate(futures):
        future.set_result(number)
    assert sorted(future.result() for future in follow(futures, "working", shown=True)) == [0, 1]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shown", [True, False])
def test_work_that_is_not_done_after_a_while_shows_a_bar_on_stderr(
    shown: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.01)
    quick: Future[int] = Future()
    slow: Future[int] = Future()
    quick.set_result(1)
    following = follow([quick, slow], "working", shown)
    assert next(following) is quick
    slow.set_result(2)
    assert list(following) == [slow]
    printed = capfd.readouterr()
    assert printed.out == ""
    assert ("working" in printed.err and "2/2" in printed.err) == shown


@pytest.mark.parametrize(
    ("seconds", "shown", "terminal", "bar", "logged"),
    [
        (0, True, True, False, False),
        (0, False, False, False, False),
        (3, True, True, True, False),
        (3, True, False, False, True),  # a bar in a log file would be one line at the end
        (3, False, True, False, True),
    ],
)
def test_items_that_take_long_are_counted_by_a_bar_or_by_lines_of_the_log(
    seconds: float,
    shown: bool,
    terminal: bool,
    bar: bool,
    logged: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    for item in count_long("abc", 3, "counting 100%s", shown):
        now[0] += seconds
        assert item in "abc"
    assert ("counting" in capfd.readouterr().err) == bar
    assert [record.getMessage() for record in caplog.records] == (["counting 100%s: 1 of 3"] if logged else [])


def test_work_that_fails_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 3600)
    failed: Future[int] = Future()
    failed.set_exception(OSError("no"))
    assert next(follow([Future(), failed], "working", shown=True)) is failed
