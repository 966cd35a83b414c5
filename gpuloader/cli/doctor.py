"""`gpuloader doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from gpuloader.cli.options import AsJson
from gpuloader.cli.printing import finish, say_rows


def doctor(
    shards: Annotated[
        list[str] | None, typer.Argument(help="Shards, to measure the disk or the store that they are on.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Checks torch, DALI, the machine's limits and the environment, and says what to do about problems.

    `python -m torch.utils.collect_env` prints the driver, the GPUs and all packages.

    Each line is ok, a warning (training works, but slowly or not as meant) or a failure, with advice below it.

    Exits with 3 if there is a failure.

    Example: gpuloader doctor shards/train/
    """
    from gpuloader.tools.doctor import examine

    findings = examine(shards)
    failed = any(finding.status == "failure" for finding in findings)
    finish({"findings": [asdict(finding) for finding in findings]}, as_json, _print, wrong=failed)


def _print(result: dict[str, list[dict[str, str]]]) -> None:
    for finding in result["findings"]:
        advice = [("", "", finding["advice"])] if finding["advice"] else []
        say_rows([(finding["status"], finding["name"], finding["found"]), *advice], "<9", "<18", "")
