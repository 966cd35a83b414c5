"""What is imported and read up to the first batch, and what is said if DALI is not there, or twice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuloader.errors import InstallationError
from gpuloader.loading.installation import check_dali

EITHER = "pip install 'gpuloader[cuda12]', or 'gpuloader[cuda13]' if torch is for CUDA 13"

START = """
import json, sys
opened, said = [], {}
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)

import gpuloader
said["gpuloader"] = sorted(sys.modules)
import torch
said["torch"] = sorted(sys.modules)
loader = gpuloader.GPULoader(sys.argv[1], 8, "cpu")
said["GPULoader"] = sorted(sys.modules)
next(iter(loader))
said["a batch"] = sorted(sys.modules)
said["opened"] = opened
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def start(shards: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The modules that are there after each step, and the files opened, where there is no index and no cache yet."""
    folder = tmp_path_factory.mktemp("start")
    for shard in shards:
        shutil.copy(shard, folder)
    done = subprocess.run([sys.executable, "-c", START, str(folder)], capture_output=True, text=True, check=True)
    assert done.stderr == ""  # no progress bar for work that takes no time
    said: dict[str, list[str]] = json.loads(done.stdout)
    said["opened"] = [path for path in said["opened"] if path.endswith((".yaml", ".tar"))]
    return said


def imported(start: dict[str, list[str]], step: str, before: str = "") -> set[str]:
    names = set(start[step]) - set(start.get(before, []))
    return {name.partition(".")[0] for name in names} | names


def test_the_package_alone_imports_nothing_large(start: dict[str, list[str]]) -> None:
    large = {"torch", "nvidia", "numpy", "rich", "typer", "fsspec", "pydantic", "yaml", "lightning"}
    assert imported(start, "gpuloader") & large == set()


def test_a_first_batch_of_local_tars_imports_only_what_it_needs(start: dict[str, list[str]]) -> None:
    unneeded = {
        *("rich", "typer", "click"),  # the command line, and work that takes long
        *("fsspec", "aiohttp", "s3fs"),  # shards on stores
        *("PIL", "webdataset", "pandas", "scipy", "numba", "matplotlib"),
        *("torch._dynamo", "torch._inductor", "torch.distributed.checkpoint", "sympy"),  # what torch itself leaves out
    }
    assert imported(start, "a batch", before="torch") & unneeded == set()


def test_making_the_loader_imports_all_of_the_library_that_a_batch_needs(start: dict[str, list[str]]) -> None:
    own = {name for name in imported(start, "a batch", before="GPULoader") if name.startswith("gpuloader")}
    assert own == set()


def test_a_start_reads_its_own_preset_and_each_shard_twice(start: dict[str, list[str]], shards: list[Path]) -> None:
    """Once for the index, once for the images."""
    names = [Path(path).name for path in start["opened"]]
    assert [name for name in names if name.endswith(".yaml")] == ["imagenet_train.yaml"]
    assert sorted(name for name in names if name.endswith(".tar")) == sorted(2 * [shard.name for shard in shards])


# --- the end

END = """
import ctypes, sys
import numpy as np
from gpuloader import Compose, Decoder, GPULoader, Stage
from gpuloader.transforms import Apply, RandomResizedCrop

own, crop, images = Apply(lambda image: image, "own"), RandomResizedCrop(24), [np.zeros((40, 40, 3), np.uint8)]
loaders = [
    GPULoader(sys.argv[1], 8, "cpu", preset=Compose(transforms), decoder=Decoder(2, processes=processes))
    for transforms, processes in (([crop], None), ([crop, own], 0), ([crop, own], 2))
]
begun = [iter(loader) for loader in loaders]
begun += [Stage(Compose(transforms), None)([(images, [0])] * 9) for transforms in ([crop], [crop, own])]
first = [next(each) for each in begun]
compose = Compose([crop, own])
compose(images)
for name in ("__main__", "nvidia.dali.pipeline"):  # they stay until Python empties all modules, as dill keeps __main__
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules[name]))
print(len(first))
"""


def test_a_program_that_ends_within_an_epoch_prints_nothing(shards: list[Path]) -> None:
    command = [sys.executable, "-c", END, str(shards[0].parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert (done.stdout, done.stderr) == ("5\n", "")


# --- installation


def test_dali_is_there_once() -> None:
    check_dali(lambda _: ["nvidia-dali-cuda130"])
    check_dali(lambda _: [])  # it can be imported, whatever its name
    with pytest.raises(
        InstallationError, match="overwrite each other's files\npip uninstall nvidia-dali-cuda120"
    ) as caught:
        check_dali(lambda _: ["nvidia-dali-cuda120", "nvidia-dali-cuda130"])
    assert str(caught.value).endswith(EITHER)


def test_without_dali_the_first_use_says_what_to_type() -> None:
    """In a process whose imports find no `nvidia`; the package itself can be imported, for `gpuloader doctor`."""
    script = (
        "import importlib.metadata, sys\n"
        "sys.modules['nvidia'] = None\n"
        "def version(name): raise importlib.metadata.PackageNotFoundError(name)\n"
        "importlib.metadata.version = version\n"
        "import gpuloader\n"
        "try: gpuloader.GPULoader\n"
        "except gpuloader.errors.InstallationError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == f"DALI is not installed\n{EITHER}\n"


@pytest.mark.parametrize("level", [1, 2])
def test_python_without_docstrings_is_told_to_keep_them(level: int) -> None:
    """With one -O, asserts are left out, and docstrings stay."""
    script = (
        "import gpuloader\n"
        "from gpuloader.loading.installation import check_dali\n"
        "try: check_dali()\n"
        "except gpuloader.errors.InstallationError as error: print(error)\n"
    )
    command = [sys.executable, f"-{'O' * level}", "-c", script]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ("-OO" in said and "docstrings" in said) == (level == 2)
    assert bool(said) == (level == 2)
