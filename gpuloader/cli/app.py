"""`gpuloader`: the commands, each in a module of its own beside this one.

Exit status, for scripts:

    0    all is well
    1    a mistake of the user's or a failure: one message on stderr, never a traceback
    2    an option or argument that does not exist, or has no such value
    3    the command did its work and found something wrong, such as bad images
    130  Ctrl-C
"""

from __future__ import annotations

import sys

import typer

from gpuloader.cli.bench import bench
from gpuloader.cli.check import check
from gpuloader.cli.demo import demo
from gpuloader.cli.doctor import doctor
from gpuloader.cli.index import index
from gpuloader.cli.info import info
from gpuloader.cli.pack import pack
from gpuloader.cli.presets import presets
from gpuloader.cli.show import show
from gpuloader.cli.tune import tune
from gpuloader.errors import GPULoaderError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="TAR shards in, training batches out.")
COMMANDS = (pack, index, info, check, show, presets, bench, tune, doctor, demo)
for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Runs a command. A mistake of the user's is one message and exit status 1, never a traceback."""
    try:
        app()
    except (GPULoaderError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
