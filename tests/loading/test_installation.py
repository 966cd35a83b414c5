"""What is said where DALI is not there, or there twice."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuloader.errors import InstallationError
from gpuloader.loading.installation import check_dali

EITHER = "pip install 'gpuloader[cuda12]', or 'gpuloader[cuda13]' if torch is for CUDA 13"


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
        "import importlib.machinery, importlib.metadata, sys\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'nvidia': raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "def version(name): raise importlib.metadata.PackageNotFoundError(name)\n"
        "importlib.metadata.version = version\n"
        "import gpuloader\n"
        "try: gpuloader.GPULoader\n"
        "except gpuloader.errors.InstallationError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == f"DALI is not installed\n{EITHER}\n"
