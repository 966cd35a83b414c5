"""Processes that begin where torch, DALI and the loader are imported already: forks of one that has imported them.

A test that runs many programs of the user's would otherwise spend seconds on the imports of each.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

CLI = "from gpuloader.cli import main; main()"
SHIM = """#!{python} -SE
import array, json, os, signal, socket, sys
told = os.environ.pop("TELL_PROCESS_TO", "")
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = json.dumps([{code!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    fds = array.array("i", [0, 1, 2])
    server.sendmsg([b"%d\\n" % len(request)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    server.sendall(request)
    answers = server.makefile()
    process = answers.readline()
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(int(process), number))
    if told:
        os.write(int(told), process.encode())
        os.close(int(told))
    status = int(answers.read())
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if status != -signal.SIGKILL else None
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
PYTHON = """#!{python} -SE
import os, sys
if sys.argv[1:3] != ["-m", "{decoder}"]:
    os.execv("{python}", ["{python}", *sys.argv[1:]])
code = "import runpy, sys; del sys.argv[:2]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
os.execv({run!r}, ["run", code, *sys.argv[1:]])
"""
DECODER = "gpuloader.tools.decoder_process"


class Warm:
    """The process that the others are forked from; warnings are errors in all of them.

    Its `folder` has the programs `gpuloader` and `run CODE ARGUMENT...`; and `python`, which is Python, but that the
    process that decodes for `gpuloader check` begins warm.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, folder / "python"

    @classmethod
    def begin(cls, folder: Path, end_with: int, *prefix: str) -> Warm:
        """Starts it, to end with another process; `prefix` is what it is run with."""
        made = cls(folder)
        folder.mkdir()
        address = str(folder / "socket")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(address)
        listening.listen()
        code = f"import warm; warm.serve({listening.fileno()}, {str(folder)!r}, {end_with})"
        subprocess.run(  # the shell ends, so nobody has to wait for it
            ["sh", "-c", '"$@" &', "sh", *prefix, sys.executable, "-W", "error", "-c", code],
            check=True,
            stdin=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *_python_path()])},
        )
        listening.close()
        for name, its_code in [("gpuloader", CLI), ("run", None)]:
            shim = folder / name
            shim.write_text(SHIM.format(python=sys.executable, address=address, code=its_code))
            shim.chmod(0o755)
        made.python.write_text(PYTHON.format(python=sys.executable, decoder=DECODER, run=str(folder / "run")))
        made.python.chmod(0o755)
        return made

    def run(
        self, code: str, *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`python -c CODE ARGUMENTS`."""
        return subprocess.run(
            [self.folder / "run", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            env=None if env is None else dict(env),
            timeout=600,
        )


class Program(subprocess.Popen[Any]):
    """`python -c CODE ARGUMENTS` as `Popen` has it, but that `process` is its id: `pid` is of one that waits for it."""

    def __init__(
        self,
        code: str,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        reading, writing = os.pipe()
        super().__init__(
            [warm().folder / "run", code, *map(str, arguments)],
            env={**(os.environ if env is None else env), "TELL_PROCESS_TO": str(writing)},
            pass_fds=[writing],
            **options,
        )
        os.close(writing)
        with os.fdopen(reading) as told:
            self.process = int(told.readline())

    def send_signal(self, sig: int) -> None:
        """To the program."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.process, sig)


@cache
def warm(*prefix: str) -> Warm:
    """The one of this run of tests, which the first process that needs it starts; `prefix` is what it is run with."""
    run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir(), f"warm-{run}-{len(prefix)}")
    with (Path(tempfile.gettempdir()) / "warm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Warm(folder) if folder.exists() else Warm.begin(folder, run, *prefix)


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


# --- in that process


def serve(listening_fd: int, folder: str, end_with: int) -> None:
    """Runs what is asked for, each in a child, until it is terminated or that process is gone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell has it ignored in what it does not wait for
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    from gpuloader.base.late_imports import import_late

    for module in (
        "gpuloader.loading.loader",
        "gpuloader.pipelines.kernels.call",
        "torch._dynamo",
    ):  # the last is DDP's
        import_late(module)
    gc.collect()
    gc.freeze()  # else each child's first collection would copy the memory of all these modules
    sys.executable = str(Path(folder, "python"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        with socket.socket(fileno=listening_fd) as listening:
            listening.settimeout(5)
            while Path(f"/proc/{end_with}").exists():
                while _reaped():
                    pass
                try:
                    client, _ = listening.accept()
                except TimeoutError:
                    continue
                if _fork() == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    listening.close()
                    _answer(client)
                client.close()
    finally:
        shutil.rmtree(folder)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of forking where libraries have threads
        return os.fork()


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] > 0
    except ChildProcessError:
        return False


def _answer(client: socket.socket) -> None:
    """Reads the request, has a child do it, and tells how that ended."""
    client.settimeout(None)
    size, fds, _, _ = socket.recv_fds(client, 20, 3)
    size, _, begun = size.partition(b"\n")
    while len(begun) < int(size):
        begun += client.recv(1 << 20)
    code, arguments, folder, environment = json.loads(begun)
    if code is None:
        code, *arguments = arguments
    if (child := _fork()) == 0:
        client.close()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        _run(code, arguments)
    with suppress(BrokenPipeError):  # of one that was killed, as `gpuloader check` ends its process that decodes
        client.sendall(b"%d\n" % child)
        client.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)


def _run(code: str, arguments: Sequence[str]) -> None:
    """As `python -c` does it, to the end of the process."""
    sys.argv = ["-c", *arguments]
    sys.path[0] = ""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), vars(main))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, (int, type(None))):
            print(end.code, file=sys.stderr)  # noqa: T201
    except BaseException:  # noqa: BLE001 - as Python's own end of a program
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
