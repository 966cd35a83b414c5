"""Triage: which samples of a batch DALI cannot decode."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_images import PNG, TIFF, zoo
from making import damaged_jpeg, encoded, jpeg, picture
from running import as_arrays, draw
from verdicts import verdict

from gpuloader.images.gate import admit
from gpuloader.pipelines import GraphInputs, cut_to_region, find_undecodable, graph_pipeline
from gpuloader.recipe import Recipe, load_preset

pytestmark = pytest.mark.slow(kept=7, of="triage")

PRESET = load_preset("imagenet_eval", {"Resize": {"size": 32}, "CenterCrop": {"size": 32}})

CUT_TIFF = TIFF[:-1000]  # as large as PNG; the gate passes no image of which only some windows fail, as of this


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What pipelines are asked for. There is no GPU here: they are built for the CPU."""
    options = []

    def build_on_cpu(inputs: GraphInputs, feed: Any, *, device_id: int | None, **kwargs: Any) -> Any:  # noqa: ANN401
        options.append({"device_id": device_id, "decoder_options": kwargs["decoder_options"]})
        inputs.device = "cpu"
        return graph_pipeline(inputs, feed, device_id=None, **kwargs)

    monkeypatch.setattr("gpuloader.pipelines.triage.graph_pipeline", build_on_cpu)
    return options


def test_the_damaged_image_passes_the_gate() -> None:
    assert admit(np.frombuffer(damaged_jpeg(), np.uint8))[1] == (64, 64)


@pytest.mark.parametrize("bad", [[], [0], [3], [7], [2, 3], [0, 1, 2, 3, 4, 5, 6, 7]])
@pytest.mark.parametrize("preset", [PRESET, load_preset("imagenet_train_jitter", {"RandomResizedCrop": {"size": 32}})])
def test_it_names_the_bad_rows_and_no_others(bad: list[int], preset: Recipe) -> None:
    images = [damaged_jpeg() if row in bad else jpeg(60, 80, seed=row) for row in range(8)]
    causes = find_undecodable(preset.whole_graph, as_arrays(images), draw(preset, images), device_id=None)
    assert list(causes) == bad
    assert set(causes.values()) <= {"DALI's decoder fails on it"}


def test_on_the_cpu_it_refuses_what_the_graph_refuses(asked: list[dict[str, Any]]) -> None:
    """Every kind of image that the gate lets pass, in several windows."""
    admitted = [verdict(admit, np.frombuffer(kind.data, np.uint8)) for kind in zoo()]
    files = [image[0] for image in admitted if not isinstance(image, str)]
    preset = load_preset("imagenet_train", {"RandomResizedCrop": {"size": 32}})
    refused = []
    for epoch in range(4):
        params = draw(preset, [PNG, *(file.tobytes() for file in files)], epoch)
        images = [*as_arrays([CUT_TIFF]), *files]
        refused.append(list(find_undecodable(preset.whole_graph, images, params, None, num_threads=2)))
        assert asked == []
        assert refused[-1] == list(find_undecodable(preset.whole_graph, images, params, device_id=0))
        asked.clear()
    assert len(images) > max(map(len, refused)) > 10
    assert {0 in rows for rows in refused} == {True, False}  # that depends on the window


def test_the_windows_of_files_that_were_cut_are_those_in_the_cuts(asked: list[dict[str, Any]]) -> None:
    seekable = [encoded(picture(160, 240, row), "JPEG", restart_marker_blocks=3) for row in range(4)]
    preset = load_preset("imagenet_train", {"RandomResizedCrop": {"size": 32}})
    images = [*seekable, damaged_jpeg()]
    files, params = cut_to_region([file.copy() for file in as_arrays(images)], draw(preset, images))
    assert params.origin.any(axis=1)[:4].any()
    assert list(find_undecodable(preset.whole_graph, files, params, None)) == [4]
    assert asked == []  # the decoder alone was asked
    assert list(find_undecodable(preset.whole_graph, files, params, device_id=0)) == [4]


@pytest.mark.parametrize(("region", "bad"), [(True, []), (False, [1])])
def test_where_whole_images_are_decoded_damage_outside_of_the_region_counts(region: bool, bad: list[int]) -> None:
    preset, images = load_preset("imagenet_eval", {"Resize": {"size": 32}, "CenterCrop": {"size": 8}}), [TIFF, CUT_TIFF]
    causes = find_undecodable(preset.whole_graph, as_arrays(images), draw(preset, [PNG, PNG]), None, region=region)
    assert list(causes) == bad


@pytest.mark.parametrize(
    ("device_id", "bad", "pipelines"),
    [
        (None, [2, 4], 0),
        (None, [], 1),  # the graph tries all at once
        (0, [], 1),
        (0, [2], 3),  # the batch; the image alone; the good one that is decoded before one is blamed, and the rest
        (0, [2, 4], 5),
        (0, [0, 1, 2, 3, 4], 11),
    ],
)
def test_on_a_gpu_an_image_that_is_tried_alone_has_a_pipeline_of_its_own(
    asked: list[dict[str, Any]], device_id: int | None, bad: list[int], pipelines: int
) -> None:
    images = [damaged_jpeg() if row in bad else jpeg(60, 80, seed=row) for row in range(5)]
    given = {"hw_decoder_load": 0.65, "hybrid_huffman_threshold": 7}
    params = draw(PRESET, images)
    found = find_undecodable(PRESET.whole_graph, as_arrays(images), params, device_id, decoder_options=given)
    assert list(found) == bad
    options = {"hw_decoder_load": 0, "hybrid_huffman_threshold": 7}
    assert asked == pipelines * [{"device_id": device_id, "decoder_options": options}]


@pytest.mark.parametrize(
    ("bad", "named", "pipelines"),
    [
        ([77], 77, 2),  # the named one alone; the good one and the rest
        ([77], 77 + 2 * 128, 2),  # in a batch that was filled with its own images
        ([77], None, 3),  # the whole batch names it
        ([3, 77, 127], 3, 6),
        ([*range(20)], None, 1 + 2 * 8 + 120 + 12),  # of many bad ones, those after the eighth: all are tried
        ([77], 5, 129),  # one that can be decoded: all are tried, and the good one
        ([], 5, 128),
    ],
)
def test_the_image_that_dali_names_is_tried_first(
    asked: list[dict[str, Any]], bad: list[int], named: int | None, pipelines: int
) -> None:
    """Of 128, each with a pipeline of its own if it is tried alone: without the name, the search is long."""
    images = as_arrays([damaged_jpeg() if row in bad else jpeg(20, 30) for row in range(128)])
    params = draw(PRESET, [image.tobytes() for image in images])
    message = "" if named is None else f"`fn.decoders.image`,\n\nencountered:\n\nFailed to decode sample #{named} : "
    assert sorted(find_undecodable(PRESET.whole_graph, images, params, 0, message=message)) == bad
    assert len(asked) == pipelines


BROKEN = """
import sys
import numpy as np
from gpuloader.errors import DeviceError
from gpuloader.pipelines import find_undecodable
from gpuloader.plan import Draws
from gpuloader.recipe import load_preset
from gpuloader.tools.decoder_process import WholeImages

preset = load_preset("cifar10_eval")
params = preset.draw(Draws(0, 0, np.zeros(1, np.int64)), np.array([[64, 64]]))
image = np.frombuffer(bytes.fromhex(sys.argv[1]), np.uint8)
for blame in (
    lambda: find_undecodable(preset.whole_graph, [image], params, None),
    lambda: find_undecodable(preset.whole_graph, [image], params, None, region=False),  # by the graph
    lambda: WholeImages(1, 1, None).bad([{0: image}]),
):
    try:
        print(blame())
    except DeviceError as error:
        print(str(error).partition(":")[0])
"""


def test_an_installation_without_decoders_is_not_blamed_on_the_images(tmp_path: Path) -> None:
    environment = {**os.environ, "NVIMGCODEC_EXTENSIONS_PATH": str(tmp_path)}
    command = [sys.executable, "-c", BROKEN, jpeg(64, 64).hex()]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    said = "the decoder fails on a good JPEG, so the installation or the machine is the cause, not the images"
    assert result.stdout.splitlines() == [said] * 3
