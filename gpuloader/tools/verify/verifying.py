"""`verify`: whether a GPU decodes and delivers what it should, in one table; without a GPU, whether the CPU does."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from gpuloader.errors import ConfigError
from gpuloader.helpers.progress import progress_bar
from gpuloader.helpers.versions import decoder_versions, describe_decoder_versions
from gpuloader.loading.arguments import resolve_device
from gpuloader.loading.selection import Sources
from gpuloader.tools.machine import this_machine
from gpuloader.tools.measuring import count_samples
from gpuloader.tools.outputs import check_output
from gpuloader.tools.verify.checks import CHECKS
from gpuloader.tools.verify.comparing import ALONE
from gpuloader.tools.verify.pictures import draw
from gpuloader.tools.verify.result import Difference, Row, Subject, Verification


def verify(
    tar: Sources,
    device_id: int | Literal["auto"] | None = "auto",
    *,
    checks: Sequence[str] = (),
    seconds: float = 20.0,
    picture: str | Path | None = None,
    progress: bool = False,
) -> Verification:
    """Runs the checks, one after the other. An error becomes a row, and the next one is looked at.

    Args:
        tar: shards, as `GPULoader` takes them; 32 of their samples are compared.
        device_id: what to verify, as `GPULoader` takes it: "auto" is the GPU, or the CPU where there is none.
        checks: some of `CHECKS`; all unless given.
        seconds: how long to measure the speed, without starting and warming up.
        picture: a .png file to write if pixels differ too much: for each such row, the image that differs most.
        progress: show a bar on stderr.

    Raises:
        ConfigError: there is no such check, or the picture cannot be written.
        DeviceError: there is no such GPU.
        DataError: there are no such shards, or they have no samples.
    """
    if unknown := [name for name in checks if name not in CHECKS]:
        raise ConfigError(f"no check is called {unknown[0]!r}: allowed are {', '.join(CHECKS)}")
    if picture is not None:
        check_output(picture)
    date, started = datetime.now(timezone.utc).isoformat(timespec="seconds"), time.monotonic()
    device = resolve_device(device_id, ALONE)
    samples = count_samples(tar, None, {"preset": "raw_uint8", "label_from": None, "world": ALONE})
    subject = Subject(tar, samples, device, seconds)
    rows: list[Row] = []
    differences: dict[str, Difference] = {}
    with progress_bar(progress) as bar, _without_warnings():
        task = bar.add_task("verifying", total=len(checks or CHECKS))
        for name in checks or CHECKS:
            bar.update(task, description=f"verifying {name}")
            for row, difference in _run(name, subject):
                rows.append(row)
                if difference is not None:
                    differences[f"{row.check}: {row.name}"] = difference
            bar.advance(task)
    drawn = Path(picture) if picture is not None and differences else None
    if drawn is not None:
        draw(differences, [f"{subject.device} and the CPU", describe_decoder_versions()]).save(drawn, "PNG")
    return Verification(
        date=date,
        device=str(subject.device),
        machine=this_machine(),
        versions=decoder_versions(),
        elapsed_seconds=time.monotonic() - started,
        rows=tuple(rows),
        picture=None if drawn is None else drawn.name,
    )


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silences warnings of bad images, which are there on purpose."""
    logger = logging.getLogger("gpuloader")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _run(check: str, subject: Subject) -> Iterator[tuple[Row, Difference | None]]:
    looks = CHECKS[check](subject)
    while True:
        name, difference = "ended early", None
        try:
            name, look = next(looks)
            found, allowed, ok, difference = look()
            row = Row(check, name, found, allowed, ok)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what was found
            message = (str(error).strip() or "no message").splitlines()[0]
            row = Row(check, name, f"{type(error).__name__}: {message}", "no error", False)
        yield row, difference
