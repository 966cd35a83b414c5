"""The program `gpuloader`: its commands, one in each module, and its exit statuses.

Exit status, for scripts:

    0    all is well
    1    an invalid argument or a failure: one message on stderr, never a traceback
    2    an unknown option, or a value that cannot be parsed
    3    the command did its work and found something wrong, such as bad images
    130  Ctrl-C
"""

from __future__ import annotations

import io
import sys
from typing import Annotated, NoReturn

import typer

from gpuloader import __version__
from gpuloader.base.text import printable
from gpuloader.cli.bench import bench
from gpuloader.cli.check import check
from gpuloader.cli.demo import demo
from gpuloader.cli.doctor import doctor
from gpuloader.cli.index import index
from gpuloader.cli.info import info
from gpuloader.cli.pack import pack
from gpuloader.cli.presets import presets
from gpuloader.cli.replay import replay
from gpuloader.cli.show import show
from gpuloader.cli.verify import verify
from gpuloader.errors import GPULoaderError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
COMMANDS = (pack, index, info, check, show, replay, presets, bench, doctor, verify, demo)
for command in COMMANDS:
    app.command()(command)


def _print_version(value: bool) -> None:
    if value:
        print(f"gpuloader {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Folders or TAR shards of images in, training batches out."""


def main() -> None:
    """Runs a command. An error of the library prints one message and exits with status 1, without a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for file names and bars that the terminal's encoding lacks
    try:
        app()
    except GPULoaderError as error:
        _fail(str(error))
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror or str(error)
        _fail(printable(named))


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)
