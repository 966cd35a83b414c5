"""Building, finding and loading the kernels' shared library."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuloader.errors import InstallationError
from gpuloader.pipelines.kernels import build, library
from gpuloader.pipelines.kernels.library import list_variants, runnable_variants
from gpuloader.recipe.program import PARAMETERS, Op

V3 = "avx avx2 bmi1 bmi2 f16c fma abm movbe"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "machine", "expected"),
    [
        ("fpu sse sse2", "x86_64", "baseline"),
        (f"fpu {V3}", "x86_64", "v3 baseline"),
        (V3.replace(" fma", ""), "x86_64", "baseline"),
        (V4, "x86_64", "v4 v3 baseline"),
        (V4.replace(" avx512vl", ""), "x86_64", "v3 baseline"),
        (V4.replace("avx2", "avx"), "x86_64", "baseline"),
        ("", "x86_64", "baseline"),  # no line of flags
        ("asimd", "aarch64", "baseline"),
        (V4, "aarch64", "baseline"),
    ],
)
def test_the_variants_by_the_processors_flags(flags: str, machine: str, expected: str) -> None:
    cpuinfo = f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: avx512f\n" if flags else "processor\t: 0\n"
    assert list(list_variants(cpuinfo, machine)) == expected.split()


def test_this_processors_variants_are_in_the_library() -> None:
    assert all(hasattr(library.load(), f"resample_{variant}") for variant in runnable_variants())


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the library and its sources, which `load` takes in their place."""
    for path in [build.LIBRARY, *build.FOLDER.glob("*.[ch]")]:
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "kernels.so")
    library.load.cache_clear()
    yield tmp_path
    library.load.cache_clear()


def test_a_library_without_its_sources_is_loaded(elsewhere: Path) -> None:
    for path in elsewhere.glob("*.[ch]"):  # as in a wheel
        path.unlink()
    library.load()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: (folder / "kernels.so").unlink(), "cannot be loaded: .*cannot open shared object file"),
        (lambda folder: (folder / "kernels.so").write_bytes(b"\x7fELF"), "cannot be loaded: .*file too short"),
        (lambda folder: (folder / "warps.h").write_text("// another"), "have changed since kernels.so was built"),
        (lambda folder: (folder / "erasing.h").write_text("// new"), "have changed since kernels.so was built"),
    ],
    ids=["missing", "cut off", "changed", "one more"],
)
def test_a_library_that_is_of_no_use_is_an_error(elsewhere: Path, harm: Callable[[Path], object], message: str) -> None:
    harm(elsewhere)
    with pytest.raises(InstallationError, match=rf"{message}(.|\n)*pip install -e \."):
        library.load()


def test_the_numbers_in_c_are_those_of_the_program() -> None:
    source = (build.FOLDER / "colours.h").read_text()
    operations = source.partition("enum op {")[2].partition("}")[0]
    assert [name.strip() for name in operations.split(",")] == [op.name for op in Op]
    assert f"PARAMETERS = {PARAMETERS} }}" in (build.FOLDER / "augment.h").read_text()


@pytest.mark.parametrize(
    ("compiler", "message"),
    [("false", "the kernels cannot be compiled"), ("no-such-cc", "No such file .*'no-such-cc': CC names the compiler")],
)
def test_a_compiler_that_fails_is_said(
    compiler: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(SystemExit, match=message):
        build.build(tmp_path / "kernels.so")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_keeps_nothing_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho "$ZIG_GLOBAL_CACHE_DIR" >>{tmp_path}/kept\nexit 1')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    with pytest.raises(SystemExit):
        build.build(tmp_path / "kernels.so")
    [kept] = set((tmp_path / "kept").read_text().splitlines())
    assert Path(kept).is_relative_to(tempfile.gettempdir())  # Zig waits forever for a home that is not writable
    assert not Path(kept).parent.exists()


def test_other_machines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="support x86_64 and aarch64, not riscv64"):
        build.build(tmp_path / "kernels.so", "riscv64")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_cc_builds_the_library_with_cflags(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setenv("CFLAGS", "-Wl,--build-id=0x1234abcd")
    monkeypatch.setattr(build, "_FLAGS", [flag for flag in build._FLAGS if flag != "-O3"])  # which takes seconds
    (elsewhere / "kernels.so").unlink()
    build.build(elsewhere / "kernels.so")
    assert b"\x12\x34\xab\xcd" in (elsewhere / "kernels.so").read_bytes()
    library.load()
