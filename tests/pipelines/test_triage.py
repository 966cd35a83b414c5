"""Triage: which samples of a batch DALI cannot decode."""

from typing import Any

import numpy as np
import pytest
from bad_images import TIFF, zoo
from making import damaged_jpeg, jpeg
from running import as_arrays, draw

from gpuloader.pipelines import build, find_undecodable, gate
from gpuloader.pipelines.triage import _refused_by_graph, _refused_on_cpu
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


def test_on_the_cpu_it_refuses_what_the_graph_refuses() -> None:
    """Every kind of image that the gate lets pass, in several windows."""
    kinds = [CUT_TIFF, *(kind.data for kind in zoo())]
    images = [data for data in kinds if not isinstance(gate(np.frombuffer(data, np.uint8)), str)]
    preset = load_preset("imagenet_train", {"RandomResizedCrop": {"size": 32}})
    refused = []
    for epoch in range(4):
        arrays = draw(preset, images, epoch)
        refused.append(list(_refused_on_cpu(as_arrays(images), arrays, num_threads=2)))
        assert refused[-1] == list(_refused_by_graph(preset, as_arrays(images), arrays, None, {}))
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
    monkeypatch: pytest.MonkeyPatch, device_id: int | None, bad: list[int], pipelines: int
) -> None:
    """There is no GPU here: the pipelines that are asked for are built for the CPU."""
    asked, options = [], []

    def build_on_cpu(*args: Any, device_id: int | None, **kwargs: Any) -> Any:  # noqa: ANN401
        asked.append(device_id)
        options.append(kwargs["decoder_options"])
        return build(*args, device_id=None, **kwargs)

    monkeypatch.setattr("gpuloader.pipelines.triage.build", build_on_cpu)
    images = [damaged_jpeg() if row in bad else jpeg(60, 80, seed=row) for row in range(5)]
    given = {"hw_decoder_load": 0.65, "hybrid_huffman_threshold": 7}
    drawn = draw(PRESET, images)
    assert list(find_undecodable(PRESET, as_arrays(images), drawn, device_id, decoder_options=given)) == bad
    assert asked == pipelines * [device_id]
    assert options == pipelines * [{"hw_decoder_load": 0, "hybrid_huffman_threshold": 7}]
