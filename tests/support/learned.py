"""What a run on a page prints, beside what the page shows."""

from __future__ import annotations

import re

MEASURED = re.compile(r"(?<=accuracy )\d+\.\d|(?<=loss )\d+\.\d+")


def check_that_it_learned(printed: str, shown: str) -> None:
    """It ends as the page shows, but for accuracies and losses; both end with more than 60 % of ten classes."""
    end = "".join(printed.splitlines(keepends=True)[-shown.count("\n") :])
    assert MEASURED.sub("?", end) == MEASURED.sub("?", shown)
    for text in (end, shown):
        assert float(re.findall(r"accuracy (\d+\.\d)%", text)[-1]) > 60, text
