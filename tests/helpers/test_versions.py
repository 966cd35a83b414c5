"""The versions that errors of decoders name, and that what is kept for them depends on."""

import ctypes
from pathlib import Path

import nvidia.dali
import nvidia.nvimgcodec
import pytest

from gpuloader.helpers import versions


@pytest.mark.parametrize(("file", "driver"), [("550.127.05\n", "550.127.05"), (None, "none")])
def test_versions_are_those_that_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None, driver: str
) -> None:
    path = tmp_path / "version"
    if file is not None:
        path.write_text(file)
    monkeypatch.setattr(versions, "DRIVER_FILE", path)
    found = versions.decoder_versions()
    assert found["driver"] == driver
    assert found["DALI"] == nvidia.dali.__version__
    assert found["nvImageCodec"].startswith(nvidia.nvimgcodec.__version__)  # the distribution's has the build, too


@pytest.mark.parametrize("name", ["nvJPEG", "nvTIFF"])
def test_the_gpus_decoders_have_the_versions_that_their_libraries_say(name: str) -> None:
    [file] = Path(nvidia.dali.__file__).parents[1].glob(f"*/lib/lib{name.lower()}.so.*")
    library, parts = ctypes.CDLL(str(file)), []
    for part in range(3):  # major, minor, patch
        value = ctypes.c_int()
        assert getattr(library, f"{name.lower()}GetProperty")(part, ctypes.byref(value)) == 0
        parts.append(str(value.value))
    assert versions.decoder_versions()[name].split(".")[:3] == parts


def test_a_package_that_is_not_there_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(versions.DECODERS, "DALI", ("nvidia-dali-cuda999",))
    assert versions.decoder_versions()["DALI"] == "none"
