"""The check of the machine."""

from __future__ import annotations

from functools import partial

from gpuloader.tools.doctor import examine
from gpuloader.tools.verify.result import Looks, Outcome, Subject


def machine(subject: Subject) -> Looks:
    """What `gpuloader doctor` finds: versions, JPEG engines, and how a GPU decodes regions."""
    for finding in examine():
        if finding.name.endswith(" folder"):  # a path, which does not belong in a report
            continue
        yield finding.name, partial(Outcome, finding.found, "", finding.status != "failure")
