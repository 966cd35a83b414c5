"""The versions that errors of decoders name, and that what is kept for them depends on."""

import ctypes
from pathlib import Path

import nvidia.dali
import nvidia.nvimgcodec
import pytest

from gpuloader.base import versions


@pytest.mark.parametrize("name", ["nvJPEG", "nvTIFF"])
def test_the_gpus_decoders_have_the_versions_that_their_libraries_say(name: str) -> None:
    [file] = Path(nvidia.dali.__file__).parents[1].glob(f"*/lib/lib{name.lower()}.so.*")
    library, parts = ctypes.CDLL(str(file)), []
    for part in range(3):  # major, minor, patch
        value = ctypes.c_int()
        assert getattr(library, f"{name.lower()}GetProperty")(part, ctypes.byref(value)) == 0
        parts.append(str(value.value))
    assert versions.decoder_versions()[name].split(".")[:3] == parts
