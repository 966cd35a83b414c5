import sys

import pytest

from gpuloader.base import progress
from gpuloader.base.progress import count_long


@pytest.mark.parametrize(
    "case",  # seconds, shown, terminal, bar, logged
    [
        (0, True, True, False, False),
        (0, False, False, False, False),
        (3, True, True, True, False),
        (3, True, False, False, True),  # a bar in a log file would be one line at the end
        (3, False, True, False, True),
    ],
)
def test_items_that_take_long_are_counted_by_a_bar_or_by_lines_of_the_log(
    case: tuple[float, bool, bool, bool, bool],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds, shown, terminal, bar, logged = case
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    for item in count_long("abc", 3, "counting 100%s", shown):
        now[0] += seconds
        assert item in "abc"
    assert ("counting" in capfd.readouterr().err) == bar
    assert [record.getMessage() for record in caplog.records] == (["counting 100%s: 1 of 3"] if logged else [])
