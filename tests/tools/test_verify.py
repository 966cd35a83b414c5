"""`verify`: its checks pass where all is well, on the CPU and on the graph of a GPU, and each tells what is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_graph import GPU, gpu_graph
from nvidia.dali import fn

from gpuloader.errors import ConfigError, DeviceError
from gpuloader.pipelines import graph
from gpuloader.pipelines.operators import view_on_cpu, view_on_gpu
from gpuloader.tools.verify import CHECKS, Looks, Outcome, Row, Subject, bad_images, checks, memory, recipes, verify


@pytest.fixture(autouse=True)
def _few_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are compared in tests/loading/test_gpu_graph.py."""
    monkeypatch.setattr(recipes, "preset_names", lambda: ["cifar10", "raw_uint8", "resnet50_v1"])


def rows_of(shards: list[Path], check: str, device_id: int | None = None) -> dict[str, Row]:
    result = verify(shards, device_id, checks=[check], seconds=0.1)
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
        ("recipes", {"cifar10", "raw_uint8", "resnet50_v1", "MixUp and CutMix"}),
        ("repeats", {"again", "in batches of 5", "in one batch", "resumed after 7 samples"}),
        ("formats", {"JPEG, gray", "JPEG, CMYK", "JPEG, progressive", "PNG", "PNG, 16 bits", "TIFF", "WebP"}),
        ("bad-images", {"replaced", "the other images", "raised"}),
    ],
)
def test_all_is_well(shards: list[Path], device_id: int | None, check: str, names: set[str]) -> None:
    rows = rows_of(shards, check, device_id)
    assert [row for row in rows.values() if not row.ok] == []
    assert names <= rows.keys()
    on_streams = {"on a stream of its own", "let go under a busy stream"}
    assert check != "repeats" or (on_streams <= rows.keys()) == (device_id == GPU)


def test_on_the_cpu_pixels_must_be_equal_and_on_a_gpu_within_bounds(shards: list[Path]) -> None:
    allowed = rows_of(shards, "recipes")["cifar10"].allowed
    with gpu_graph():
        on_gpu = rows_of(shards, "recipes", GPU)["cifar10"]
    assert (allowed, on_gpu.allowed) == ("0", "mean 1.5, an image 10")
    assert not on_gpu.found.startswith("mean 0,")


def test_versions_are_the_doctors_findings(shards: list[Path]) -> None:
    rows = rows_of(shards, "machine")
    assert {"torch", "DALI", "kernels"} <= rows.keys()
    assert rows["DALI"].found.startswith("2.4.")
    assert not any("/" in row.found for row in rows.values())  # no paths: the result is for others to read


def test_the_loader_is_measured_beside_the_decoder(shards: list[Path]) -> None:
    rows = rows_of(shards, "speed")
    assert list(rows) == [
        "cpu, + headers, draws, labels",
        "cpu, + decode the regions",
        "cpu, the loader: + deliver batches",
        "cpu, limit",
    ]
    assert " images/s, " in rows["cpu, + decode the regions"].found


# --- what is off


def test_wrong_pixels_are_told(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    upside_down = lambda *given: fn.flip(view_on_gpu(*given), horizontal=0, vertical=1)  # noqa: E731
    monkeypatch.setitem(graph._VIEWS, ("all", "gpu"), upside_down)
    with gpu_graph():
        assert {name: row.ok for name, row in rows_of(shards, "recipes", GPU).items()} == {
            "cifar10": False,
            "raw_uint8": False,
            "resnet50_v1": False,
            "MixUp and CutMix": False,
        }
        assert not any(row.ok for row in rows_of(shards, "formats", GPU).values())
        assert [name for name, row in rows_of(shards, "bad-images", GPU).items() if not row.ok] == ["the other images"]


def test_pixels_that_depend_on_the_batch_are_told(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is the same for the same batches, and only for them."""
    noisy = lambda *given: view_on_cpu(*given) + fn.random.uniform(range=(0.0, 0.1), seed=1)  # noqa: E731
    monkeypatch.setitem(graph._VIEWS, ("all", "cpu"), noisy)
    rows = rows_of(shards, "repeats")
    assert {name: row.ok for name, row in rows.items()} == {
        "again": True,
        "in batches of 5": False,
        "in one batch": False,
        "resumed after 7 samples": False,
    }
    assert rows["in batches of 5"].found.endswith(" of 32 images differ")


def test_a_bad_image_that_is_not_noticed_is_told(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_images, "_with_broken_table", lambda jpeg: jpeg)
    row = rows_of(shards, "bad-images")["replaced"]
    assert (row.ok, row.found, row.allowed) == (False, "2, 11", "2, 5, 11")


@pytest.mark.parametrize(("each_bytes", "ok"), [(1 << 20, True), (32 << 20, False)])
def test_memory_that_each_loader_leaves_taken_is_told(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch, each_bytes: int, ok: bool
) -> None:
    taken = iter(range(0, 100 * each_bytes, each_bytes))
    monkeypatch.setattr(memory, "_taken_bytes", lambda _: next(taken))
    [row] = rows_of(shards, "memory").values()
    assert row.ok == ok


def test_memory_is_measured(shards: list[Path]) -> None:
    subject = Subject(shards, 40, None, 0.1)
    before = memory._taken_bytes(subject)
    held = bytearray(64 << 20)
    held[:: 1 << 10] = b"1" * (64 << 10)
    assert memory._taken_bytes(subject) - before > 32 << 20


def test_an_error_is_a_row_and_the_next_one_is_run(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> Any:  # noqa: ANN401
        raise RuntimeError("CUDA is gone\nand more of that")

    def looks(subject: Subject) -> Looks:
        yield "first", lambda: fails(subject)
        yield "second", lambda: Outcome("good")
        fails(subject)

    monkeypatch.setattr(checks, "CHECKS", {"some": looks, "bad-images": CHECKS["bad-images"]})
    first, second, ended, *rest = verify(shards, None).rows
    assert first == Row("some", "first", "RuntimeError: CUDA is gone", "no error", ok=False)
    assert second == Row("some", "second", "good")
    assert ended == Row("some", "ended early", "RuntimeError: CUDA is gone", "no error", ok=False)
    assert {row.check for row in rest} == {"bad-images"}
    assert all(row.ok for row in rest)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (
            {"checks": ["recipes", "colours"]},
            ConfigError,
            "no check is called 'colours': allowed are machine, recipes, ",
        ),
        ({"device_id": 7}, DeviceError, "device_id=7 but "),
    ],
)
def test_a_mistake_is_told_before_the_work(
    shards: list[Path], arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        verify(shards, **{"device_id": None, **arguments})
