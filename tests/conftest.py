"""What all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count
from pathlib import Path
from zlib import crc32

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run beside each other; before torch is imported

import pytest
from making import unpack, write_samples

# A shell's background job ignores Ctrl-C, and so would the processes that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


# --- long sweeps


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", choices=("fixed", "all"), default="fixed", help="which rows of long sweeps run")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_program(*names): skipped without these; no other test finds them")
    config.addinivalue_line(
        "markers", "slow(kept, of): a long sweep, of which that many rows run; --sample all runs all"
    )
    gc.disable()  # until the tests are collected: what they and torch begin with is no garbage
    config.stash[LINKS] = Path(tempfile.mkdtemp(prefix="programs-"))
    config.add_cleanup(partial(shutil.rmtree, config.stash[LINKS]))


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.sample == "all":
        return
    sweeps: defaultdict[str, defaultdict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if marker := item.get_closest_marker("slow"):  # `of` names a sweep of several tests
            sweep = marker.kwargs.get("of") or item.nodeid.partition("[")[0]
            page, found, _ = item.nodeid.rpartition(".md-")  # snippets of a page are a row: each needs those before it
            sweeps[sweep][page if found else item.nodeid].append(item)
    left_out: set[pytest.Item] = set()
    for rows in sweeps.values():
        by_hash = sorted(rows, key=lambda name: crc32(name.encode()))
        kept = next(rows[by_hash[0]][0].iter_markers("slow")).kwargs["kept"]
        left_out |= {item for name in by_hash[kept:] for item in rows[name]}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    gc.freeze()  # else each collection of garbage would go over torch and thousands of tests
    gc.enable()


@pytest.fixture
def places(request: pytest.FixtureRequest) -> Callable[[int], Iterator[int]]:
    """`places(7)` counts on without end: every seventh number; all with `--sample all`."""
    name = request.node.nodeid.encode()
    return lambda every: count() if request.config.option.sample == "all" else count(crc32(name) % every, every)


# --- programs that a bare machine lacks

PROGRAMS = {"jpegtran", "chromium", "chromedriver"}
PATH = os.environ.get("PATH", os.defpath)
LINKS = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)  # before fixtures, which may run programs
def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = {name for marker in item.iter_markers("needs_program") for name in marker.args}
    assert needed <= PROGRAMS
    os.environ["PATH"] = _path_without(frozenset(PROGRAMS - needed), item.config.stash[LINKS])
    if missing := sorted(name for name in needed if shutil.which(name) is None):
        pytest.skip(f"not installed: {', '.join(missing)}")


@cache
def _path_without(hidden: frozenset[str], links: Path) -> str:
    """Makes a PATH to all programs but these: a folder that has one of them becomes a folder of links to its others."""
    found = []
    for folder in map(Path, PATH.split(os.pathsep)):
        if any((folder / name).exists() for name in hidden):
            made = Path(tempfile.mkdtemp(dir=links))
            for program in folder.iterdir():
                if program.name not in hidden:
                    (made / program.name).symlink_to(program)
            found.append(made)
        else:
            found.append(folder)
    return os.pathsep.join(map(str, found))


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
