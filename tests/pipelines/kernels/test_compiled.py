"""What is said while kernels are compiled. The kernels here do nothing: the real ones take long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numba
import pytest

from gpuloader.pipelines import augment, resample
from gpuloader.pipelines.kernels import compiled

SAID = "compiling the CPU kernels for this recipe takes 10 to 40 s, once on this machine"
KERNELS = {resample: "resample_image", augment: "augment_image"}

Compile = Callable[..., None]


@pytest.fixture
def compile_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """As a process does that has compiled nothing yet, and keeps kernels in a folder that was empty."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def compile_kernels(*modules: ModuleType) -> None:
        compiled._say_that_it_takes_long.cache_clear()
        for module in modules:
            monkeypatch.setattr(module, KERNELS[module], numba.njit(lambda *_: None))
            module._compile.__wrapped__("float32", "")

    return compile_kernels


@pytest.mark.parametrize("modules", [(resample,), (augment,), (resample, augment)])
def test_compiling_is_said_once_and_not_where_the_kernels_were_kept(
    modules: tuple[ModuleType, ...],
    compile_in_a_new_process: Compile,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    compile_in_a_new_process(*modules)
    assert caplog.messages == [SAID]
    assert len(list(tmp_path.rglob("*.nbc"))) == len(modules)

    caplog.clear()
    compile_in_a_new_process(*modules)
    assert caplog.messages == []


def test_it_is_said_before_the_wait(compile_in_a_new_process: Compile, tmp_path: Path) -> None:
    kept = []
    handler = logging.Handler()
    handler.emit = lambda record: kept.append(list(tmp_path.rglob("*.nbc")))
    logging.getLogger("gpuloader").addHandler(handler)
    compile_in_a_new_process(resample)
    logging.getLogger("gpuloader").removeHandler(handler)
    assert kept == [[]]


def test_kernels_that_cannot_be_kept_are_not_promised_to_be(
    compile_in_a_new_process: Compile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(compiled.OPTIONS, "cache", False)
    for _ in range(2):
        compile_in_a_new_process(resample)
    assert caplog.messages == 2 * [SAID.removesuffix(", once on this machine")]
