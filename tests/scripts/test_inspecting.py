"""What `scripts/wheels` refuses in the wheels and the sdist that it built."""

from __future__ import annotations

import io
import runpy
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
inspecting = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "inspecting.py")))

NAME = "gpuloader-1.0-py3-none-manylinux_2_28_aarch64.whl"
PRESET, SOURCE = "gpuloader/configs/presets/train.yaml", "gpuloader/pipelines/kernels/kernels.c"
LIBRARY, INFORMATION = "gpuloader/pipelines/kernels/kernels.so", "gpuloader-1.0.dist-info"
Files = dict[str, bytes]


def library(*strings: str, machine: int = 183) -> bytes:
    header = b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little")
    return b"\0".join([header, *(each.encode() for each in strings), b""])


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    not_installed = [SOURCE, "gpuloader/configs/train/tiny.yaml", "gpuloader/__pycache__/plan.pyc"]
    for name in ["LICENSE", "gpuloader/plan.py", "gpuloader/py.typed", *not_installed]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "configs").mkdir()
    (root / "gpuloader/configs/presets").symlink_to(root / "configs")  # as those that stand beside it
    (root / "configs/train.yaml").write_text(PRESET)
    return root


@pytest.fixture
def files(checkout: Path) -> Files:
    """Of a wheel without faults."""
    packaged = {name: (checkout / name).read_bytes() for name in ["gpuloader/plan.py", "gpuloader/py.typed", PRESET]}
    information = {"WHEEL": b"Tag: py3-none-manylinux_2_28_aarch64\n", "licenses/LICENSE": b"LICENSE"}
    found = {f"{INFORMATION}/{name}": content for name, content in information.items()}
    return {**packaged, **found, LIBRARY: library("GLIBC_2.17", "GLIBC_2.2.5", "libc.so.6", "libm.so.6")}


def test_a_whole_wheel_has_no_faults(checkout: Path, files: Files) -> None:
    assert list(inspecting.find_wheel_faults(NAME, files, checkout)) == []


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda files: files.pop(PRESET), f"lacks {PRESET}"),
        (lambda files: files.update({SOURCE: b""}), f"has {SOURCE}, which does not belong there"),
        (lambda files: files.update({"gpuloader/old.py": b""}), "has gpuloader/old.py, which does not belong there"),
        (lambda files: files.pop(f"{INFORMATION}/licenses/LICENSE"), "does not have the checkout's LICENSE"),
        (
            lambda files: files.update({f"{INFORMATION}/WHEEL": b"Tag: py3-none-any\n"}),
            "has other tags inside than py3-none-manylinux_2_28_aarch64",
        ),
        (lambda files: files.update({LIBRARY: library(machine=62)}), "kernels.so is not for aarch64"),
        (
            lambda files: files.update({LIBRARY: library("GLIBC_2.28", "GLIBC_2.29")}),
            "kernels.so needs GLIBC_2.29, which is newer than 2.28",
        ),
        (lambda files: files.update({LIBRARY: library("libgomp.so.1")}), "kernels.so needs libgomp.so.1"),
    ],
)
def test_a_faulty_wheel_is_refused(checkout: Path, files: Files, harm: Callable[[Files], object], fault: str) -> None:
    harm(files)
    assert list(inspecting.find_wheel_faults(NAME, files, checkout)) == [fault]


def test_a_file_that_was_left_out_of_the_package_is_missed(checkout: Path, files: Files) -> None:
    (checkout / "gpuloader/page.css").write_text("")
    assert list(inspecting.find_wheel_faults(NAME, files, checkout)) == ["lacks gpuloader/page.css"]


def test_the_building_machines_paths_are_found(checkout: Path, files: Files, tmp_path: Path) -> None:
    files[LIBRARY] += b"\0/build/copy/kernels.c\0"
    with zipfile.ZipFile(tmp_path / NAME, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    faults = inspecting.find_faults(tmp_path / NAME, checkout, ["/build/copy", "/home"])
    assert faults == [f"{LIBRARY} says /build/copy"]


def test_what_was_built_does_not_go_into_the_sdist(checkout: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "gpuloader-1.0.tar.gz", "w:gz") as sdist:
        for name in ["setup.py", "kernels.so"]:
            member = tarfile.TarInfo(f"gpuloader-1.0/{name}")
            sdist.addfile(member, io.BytesIO())
    assert inspecting.find_faults(tmp_path / "gpuloader-1.0.tar.gz", checkout, []) == [
        "has kernels.so, which was built"
    ]
