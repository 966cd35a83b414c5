"""`verify`: its checks pass where all is well, on the CPU and on the graph of a GPU, and each tells what is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_graph import GPU, gpu_graph
from nvidia.dali import fn

from gpuloader.errors import ConfigError, DeviceError
from gpuloader.pipelines import graph, inputs
from gpuloader.pipelines.operators import finish_on_cpu, finish_on_gpu
from gpuloader.recipe import Recipe
from gpuloader.recipe.program import Op
from gpuloader.tools.verify import CHECKS, Row, checks, verification, verify
from gpuloader.tools.verify.checks import OPERATIONS
from gpuloader.tools.verify.comparison import Comparisons, Subject

pytestmark = pytest.mark.slow(kept=9, of="verify")


@pytest.fixture(autouse=True)
def _few_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are compared in tests/loading/test_gpu_forms.py."""
    monkeypatch.setattr(checks, "preset_names", lambda: ["cifar10", "raw_uint8", "resnet50_v1", "ssd"])


@pytest.fixture(autouse=True)
def _as_the_readme_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages of extras that a check might import."""
    for name in ("pycocotools", "pycocotools.mask"):
        monkeypatch.setitem(sys.modules, name, None)


def rows_of(shards: list[Path], check: str, device_id: int | None = None) -> dict[str, Row]:
    result = verify(shards, device_id, checks=[check])
    assert {row.check for row in result.rows} == {check}
    assert result.all_well == all(row.ok for row in result.rows)
    return {row.name: row for row in result.rows}


@pytest.fixture(params=[None, GPU], ids=["cpu", "gpu"])
def device_id(request: pytest.FixtureRequest) -> Iterator[int | None]:
    """The CPU, and what stands for a GPU."""
    if request.param is None:
        yield None
        return
    with gpu_graph():
        yield request.param


@pytest.mark.parametrize(
    ("check", "names"),
    [
        ("recipes", {"cifar10", "raw_uint8", "resnet50_v1", "ssd", "MixUp and CutMix"}),
        ("forms", {"turned upright", "list, bfloat16", "boxes, masks, key points", "Stage", "smaller copies"}),
        ("repeats", {"again", "one by one", "in batches of 5", "in one batch", "resumed after 7 samples"}),
        ("formats", {"JPEG, large", "JPEG, gray", "JPEG, CMYK", "JPEG, progressive", "PNG", "PNG, 16 bits", "WebP"}),
        ("bad-images", {"replaced", "the other images", "raised"}),
    ],
)
def test_all_is_well(shards: list[Path], device_id: int | None, check: str, names: set[str]) -> None:
    rows = rows_of(shards, check, device_id)
    assert [row for row in rows.values() if not row.ok] == []
    assert names <= rows.keys()
    on_streams = {"on a stream of its own", "freed while the stream is busy"}
    assert check != "repeats" or (on_streams | {"in batches of 5, hw_load=0"} <= rows.keys()) == (device_id == GPU)


def test_cuts_have_the_pixels_of_what_is_not_cut(shards: list[Path]) -> None:
    rows = rows_of(shards, "cuts")
    assert list(rows) == ["cut"]
    assert rows["cut"].ok
    assert rows["cut"].found.startswith("mean 0,")


@pytest.mark.slow(kept=0)
def test_each_operation_alone_is_that_of_the_cpu(shards: list[Path]) -> None:
    with gpu_graph():
        rows = rows_of(shards, "operations", GPU)
    assert [row for row in rows.values() if not row.ok] == []
    assert rows.keys() == OPERATIONS.keys()
    assert {row.allowed for row in rows.values()} == {"mean 0.6, an image 4"}
    tried = set().union(*(choices for each in OPERATIONS.values() for choices in Recipe(each).each_view[0].choices))
    assert tried >= set(Op)


# --- what is off


def test_wrong_pixels_are_told(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    upside_down = lambda *given: fn.flip(finish_on_gpu(*given), horizontal=0, vertical=1)  # noqa: E731
    monkeypatch.setattr(graph, "finish_on_gpu", upside_down)
    with gpu_graph():
        for check in ("recipes", "formats"):
            assert not any(row.ok for row in rows_of(shards, check, GPU).values())
        off = [name for name, row in rows_of(shards, "bad-images", GPU).items() if not row.ok]
    assert off == ["the other images"]


def test_windows_of_pictures_on_their_mipmaps_are_told(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    placing = inputs._placing
    on_picture = lambda view, drawn, *rest: placing(view, replace(drawn, mapped=None), *rest)  # noqa: E731
    monkeypatch.setattr(inputs, "_placing", on_picture)
    with gpu_graph():
        rows = rows_of(shards, "forms", GPU)
    assert [name for name, row in rows.items() if not row.ok] == ["smaller copies"]


def test_pixels_that_depend_on_the_batch_are_told(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is the same for the same batches, and only for them."""
    noisy = lambda *given: finish_on_cpu(*given) + fn.random.uniform(range=(0.0, 0.1), seed=1)  # noqa: E731
    monkeypatch.setattr(graph, "finish_on_cpu", noisy)
    rows = rows_of(shards, "repeats")
    assert [name for name, row in rows.items() if row.ok] == ["again"]
    assert rows["in batches of 5"].found.endswith(" of 32 images differ")


def test_an_error_is_a_row_and_the_next_one_is_run(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> Any:  # noqa: ANN401
        raise RuntimeError("CUDA is gone\nand more of that")

    def looks(subject: Subject) -> Comparisons:
        yield "first", lambda: fails(subject)
        yield "second", lambda: ("good", "", True)
        fails(subject)

    monkeypatch.setattr(verification, "CHECKS", {"some": looks, "bad-images": CHECKS["bad-images"]})
    first, second, ended, *rest = verify(shards, None).rows
    assert first == Row("some", "first", "RuntimeError: CUDA is gone", "no error", ok=False)
    assert second == Row("some", "second", "good")
    assert ended == Row("some", "ended early", "RuntimeError: CUDA is gone", "no error", ok=False)
    assert {row.check for row in rest} == {"bad-images"}
    assert all(row.ok for row in rest)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"checks": ["recipes", "colours"]}, ConfigError, "no check is called 'colours': allowed are recipes"),
        ({"device_id": 7}, DeviceError, "device_id=7 but "),
    ],
)
def test_a_mistake_is_told_at_once(shards: list[Path], arguments: dict[str, Any], error: Any, says: str) -> None:  # noqa: ANN401
    with pytest.raises(error, match=says):
        verify(shards, **{"device_id": None, **arguments})
