"""What all tests share."""

from __future__ import annotations

import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run beside each other; before torch is imported

import pytest
from making import unpack, write_samples

# A shell's background job ignores Ctrl-C, and so would the processes that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


# --- long sweeps


_LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", metavar="N", help='which rows of long sweeps run: the N-th sample, or "all"')


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_program(*names): skipped where one of these is not installed")
    config.addinivalue_line("markers", "slow(kept, of): a long sweep, of which that many rows run, others each day")
    if config.option.sample is None:
        config.option.sample = str(date.today().toordinal())  # xdist's workers are told


def pytest_report_header(config: pytest.Config) -> str:
    sample = config.option.sample
    if sample == "all":
        return "long sweeps: all rows"
    return f"long sweeps: a sample of their rows, that of --sample {sample}; --sample all runs all"


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401 - xdist's; all workers leave out the same
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(f"{left_out} rows of long sweeps were left out; --sample all runs them too")


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.sample == "all":
        return
    sweeps: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("slow"):  # `of` names a sweep of several tests
            sweeps[marker.kwargs.get("of") or item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for sweep in sweeps.values():
        rows = list(_as_rows(sweep).values())
        kept = min(next(sweep[0].iter_markers("slow")).kwargs["kept"], len(rows))
        first = int(config.option.sample)
        running = [rows[(first + len(rows) * i // kept) % len(rows)] for i in range(kept)]
        left_out |= set(sweep).difference(*running)
    config.stash[_LEFT_OUT] = len(left_out)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _as_rows(items: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """The rows of a sweep; snippets of a page are one, because each needs those before it."""
    rows: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        page, found, _ = item.nodeid.rpartition(".md-")
        rows[page if found else item.nodeid].append(item)
    return rows


@pytest.fixture
def places(request: pytest.FixtureRequest) -> Callable[[int], Iterator[int]]:
    """`places(7)` counts on without end: every seventh number, others each day; all with `--sample all`."""
    sample = request.config.option.sample
    return lambda every: count() if sample == "all" else count(int(sample) % every, every)


# --- programs that a bare machine lacks


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs_program"):
        if missing := [name for name in marker.args if shutil.which(name) is None]:
            pytest.skip(f"not installed: {', '.join(missing)}")


# --- data


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two shards of 20 samples each, see `write_samples`. To be read only."""
    return write_samples(tmp_path_factory.mktemp("shards"), 40)


@pytest.fixture(scope="session")
def folder(shards: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The members of these shards as files in a folder: the same samples in the same order. To be read only."""
    return unpack(shards, tmp_path_factory.mktemp("folder") / "photos")


@pytest.fixture(scope="session", params=["shards", "folder"])
def data(request: pytest.FixtureRequest) -> list[Path]:
    """The shards; and the folder, which must give the same."""
    found = request.getfixturevalue(request.param)
    return found if request.param == "shards" else [found]


@pytest.fixture(scope="module")
def torch_in_one_thread() -> Iterator[None]:
    """For images as small as those of tests its threads cost more than they do."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
