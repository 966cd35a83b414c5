"""Triage: which samples of a batch DALI cannot decode."""

from typing import Any

import numpy as np
import pytest
from bad_images import TIFF, zoo
from making import damaged_jpeg, jpeg
from running import as_arrays, draw

from gpuloader.pipelines import build, find_undecodable, gate
from gpuloader.recipe import Preset, load_preset

PRESET = load_preset("imagenet_eval", {"Resize": {"size": 32}, "CenterCrop": {"size": 32}})

CUT_TIFF = TIFF[:-1000]  # only windows that need the last rows fail


def test_the_damaged_image_passes_the_gate() -> None:
    assert gate(np.frombuffer(damaged_jpeg(), np.uint8)) == (64, 64)


@pytest.mark.parametrize("bad", [[], [0], [3], [7], [2, 3], [0, 1, 2, 3, 4, 5, 6, 7]])
@pytest.mark.parametrize("preset", [PRESET, load_preset("imagenet_train_jitter", {"RandomResizedCrop": {"size": 32}})])
def test_it_names_the_bad_rows_and_no_others(bad: list[int], preset: Preset) -> None:
    images = [damaged_jpeg() if row in bad else jpeg(60, 80, seed=row) for row in range(8)]
    causes = find_undecodable(preset, as_arrays(images), draw(preset, images), device_id=None)
    assert list(causes) == bad
    assert set(causes.values()) <= {"DALI's decoder fails on it"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """There is no GPU here: the pipelines that are asked for, in this list, are built for the CPU."""
    devices = []

    def build_on_cpu(*args: Any, device_id: int | None, **kwargs: Any) -> Any:  # noqa: ANN401
        devices.append(device_id)
        return build(*args, device_id=None, **kwargs)

    monkeypatch.setattr("gpuloader.pipelines.triage.build", build_on_cpu)
    return devices


def test_on_the_cpu_it_refuses_what_the_graph_refuses(asked: list[int | None]) -> None:
    """Every kind of image that the gate lets pass, in several windows."""
    kinds = [CUT_TIFF, *(kind.data for kind in zoo())]
    images = [data for data in kinds if not isinstance(gate(np.frombuffer(data, np.uint8)), str)]
    preset = load_preset("imagenet_train", {"RandomResizedCrop": {"size": 32}})
    refused = []
    for epoch in range(4):
        arrays = draw(preset, images, epoch)
        refused.append(list(find_undecodable(preset, as_arrays(images), arrays, None, num_threads=2)))
        assert asked == []
        assert refused[-1] == list(find_undecodable(preset, as_arrays(images), arrays, device_id=0))
        asked.clear()
    assert len(images) > max(map(len, refused)) > 10
    assert {0 in rows for rows in refused} == {True, False}  # that depends on the window


@pytest.mark.parametrize(
    ("device_id", "bad", "pipelines"),
    [
        (None, [2, 4], 0),
        (None, [], 1),  # what fails then fails in the graph alone, if at all
        (0, [2, 4], 5),
    ],
)
def test_on_a_gpu_each_image_has_a_pipeline_of_its_own(
    asked: list[int | None], device_id: int | None, bad: list[int], pipelines: int
) -> None:
    images = [damaged_jpeg() if row in bad else jpeg(60, 80, seed=row) for row in range(5)]
    assert list(find_undecodable(PRESET, as_arrays(images), draw(PRESET, images), device_id)) == bad
    assert asked == pipelines * [device_id]
