"""Triage: which samples of a batch DALI cannot decode."""

from typing import Any

import numpy as np
import pytest
from making import damaged_jpeg, jpeg
from running import as_arrays, draw

from gpuloader.pipelines import build, gate, undecodable
from gpuloader.recipe import Preset, load_preset

PRESET = load_preset("imagenet_eval", {"Resize": {"size": 32}, "CenterCrop": {"size": 32}})


def test_the_damaged_image_passes_the_gate() -> None:
    assert gate(np.frombuffer(damaged_jpeg(), np.uint8)) == (64, 64)


@pytest.mark.parametrize("bad", [[], [0], [3], [7], [2, 3], [0, 1, 2, 3, 4, 5, 6, 7]])
@pytest.mark.parametrize("preset", [PRESET, load_preset("imagenet_train_jitter", {"RandomResizedCrop": {"size": 32}})])
def test_it_names_the_bad_rows_and_no_others(bad: list[int], preset: Preset) -> None:
    images = [damaged_jpeg() if row in bad else jpeg(60, 80, seed=row) for row in range(8)]
    causes = undecodable(preset, as_arrays(images), draw(preset, images), device_id=None)
    assert list(causes) == bad
    assert set(causes.values()) <= {"DALI's decoder fails on it"}


@pytest.mark.parametrize(("device_id", "pipelines"), [(None, 2), (0, 5)])
def test_on_a_gpu_each_image_has_a_pipeline_of_its_own(
    monkeypatch: pytest.MonkeyPatch, device_id: int | None, pipelines: int
) -> None:
    """There is no GPU here: the pipelines that are asked for are built for the CPU."""
    asked = []

    def build_on_cpu(*args: Any, device_id: int | None, **kwargs: Any) -> Any:  # noqa: ANN401
        asked.append(device_id)
        return build(*args, device_id=None, **kwargs)

    monkeypatch.setattr("gpuloader.pipelines.triage.build", build_on_cpu)
    images = [damaged_jpeg() if row == 2 else jpeg(60, 80, seed=row) for row in range(5)]
    assert list(undecodable(PRESET, as_arrays(images), draw(PRESET, images), device_id)) == [2]
    assert asked == pipelines * [device_id]
