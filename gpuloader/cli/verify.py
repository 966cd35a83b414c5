"""`gpuloader verify`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuloader.base.text import counted
from gpuloader.cli.options import AsJson, Cpu, DeviceId, chosen_device
from gpuloader.cli.printing import finish, say, say_rows

if TYPE_CHECKING:
    from gpuloader.tools.verify import Verification

_PICTURES = 256


def verify(
    shards: Annotated[
        list[str] | None,
        typer.Argument(help="Shards, folders, globs or brace patterns; by default pictures that it makes."),
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only recipes, operations, forms, repeats, formats, cuts or bad-images; may be repeated."
        ),
    ] = None,
    device_id: DeviceId = None,
    cpu: Cpu = False,
    as_json: AsJson = False,
) -> None:
    """Compares what the GPU decodes and delivers with the CPU's results; without a GPU, it verifies the CPU.

    A row is `ok` or `OFF`, with what was found and what is allowed. Exits with 3 if a row is OFF.

    Example: gpuloader verify --json > verified.json
    """
    from gpuloader.demo.pictures import write_shards
    from gpuloader.tools.verify import verify as run

    with tempfile.TemporaryDirectory() as folder:
        tar = shards or [str(path) for path in write_shards(Path(folder), "pictures", _PICTURES, seed=0)]
        result = run(tar, chosen_device(cpu, device_id), checks=check or (), progress=True)
    finish(result, as_json, _print, wrong=not result.all_well)


def _print(result: Verification) -> None:
    say(f"machine  {result.machine}")
    say(f"decoder  {', '.join(f'{name} {version}' for name, version in result.versions.items())}")
    without = "" if result.machine.gpus else ", as there is no GPU"
    say(f"device   {result.device}{without if result.device == 'cpu' else ''}")
    say()
    widths = (max(len(getattr(row, column)) for row in result.rows) + 2 for column in ("check", "name"))
    allowed = (f"{row.found}{row.allowed and f'  (allowed: {row.allowed})'}" for row in result.rows)
    table = ((("OFF", "ok")[row.ok], row.check, row.name, text) for row, text in zip(result.rows, allowed))
    say_rows(table, "<5", *(f"<{width}" for width in widths), "")
    off = sum(not row.ok for row in result.rows)
    say()
    say(f"{counted(len(result.rows), 'row')}, {f'{off} off' if off else 'all is well'}; {result.elapsed_seconds:.0f} s")
