"""`verify`: compares what a GPU decodes and delivers with the CPU's results; without a GPU, it verifies the CPU."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

from gpuloader.base.progress import progress_bar
from gpuloader.base.versions import decoder_versions
from gpuloader.errors import ConfigError
from gpuloader.loading.arguments import resolve_device
from gpuloader.loading.selection import Sources, resolve_sources
from gpuloader.shards import ShardSet
from gpuloader.tools.machine import Machine, this_machine
from gpuloader.tools.verify.checks import CHECKS
from gpuloader.tools.verify.comparison import ALONE, IMAGES, Subject


@dataclass(frozen=True)
class Row:
    """The result of one comparison.

    Attributes:
        check: the name of its check.
        name: what was compared.
        found: what was found.
        allowed: the allowed values; empty if there is no limit.
        ok: whether `found` is allowed.
    """

    check: str
    name: str
    found: str
    allowed: str = ""
    ok: bool = True


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Attributes:
        date: the start, in UTC.
        device: what was verified, "cuda:N" or "cpu".
        machine: the machine on which it ran.
        versions: of the driver, DALI, nvImageCodec, nvJPEG and nvTIFF.
        elapsed_seconds: the time of all checks.
        rows: all comparisons, in order.
    """

    date: str
    device: str
    machine: Machine
    versions: dict[str, str]
    elapsed_seconds: float
    rows: tuple[Row, ...]

    @property
    def all_well(self) -> bool:
        """Whether every row is ok."""
        return all(row.ok for row in self.rows)


def verify(
    tar: Sources,
    device_id: int | Literal["auto"] | None = "auto",
    *,
    checks: Sequence[str] = (),
    progress: bool = False,
) -> Verification:
    """Runs the checks, one after the other. An error becomes a row, and the remaining checks still run.

    Args:
        tar: shards, as `GPULoader` takes them; 32 of their samples are compared.
        device_id: what to verify, as `GPULoader` takes it: "auto" is the GPU, or the CPU where there is none.
        checks: some of `CHECKS`; all unless given.
        progress: show a bar on stderr.

    Raises:
        ConfigError: there is no such check.
        DeviceError: there is no such GPU.
        DataError: there are no such shards, or they have no samples.
    """
    if unknown := [name for name in checks if name not in CHECKS]:
        raise ConfigError(f"no check is called {unknown[0]!r}: allowed are {', '.join(CHECKS)}")
    date, started = datetime.now(timezone.utc).isoformat(timespec="seconds"), time.monotonic()
    device = resolve_device(device_id, ALONE)
    subject = Subject(tar, min(IMAGES, len(ShardSet.open(resolve_sources(tar)[0]))), device)
    rows, logger = list[Row](), logging.getLogger("gpuloader")
    with progress_bar(progress) as bar, ExitStack() as afterwards:
        afterwards.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)  # some checks make bad images on purpose, which a loader warns of
        task = bar.add_task("verifying", total=len(checks or CHECKS))
        for name in checks or CHECKS:
            bar.update(task, description=f"verifying {name}")
            rows += _run(name, subject)
            bar.advance(task)
    return Verification(
        date=date,
        device="cpu" if device is None else f"cuda:{device}",
        machine=this_machine(),
        versions=decoder_versions(),
        elapsed_seconds=time.monotonic() - started,
        rows=tuple(rows),
    )


def _run(check: str, subject: Subject) -> Iterator[Row]:
    looks = CHECKS[check](subject)
    while True:
        name = "ended early"
        try:
            name, look = next(looks)
            yield Row(check, name, *look())
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what was found
            message = (str(error).strip() or "no message").splitlines()[0]
            yield Row(check, name, f"{type(error).__name__}: {message}", "no error", False)
