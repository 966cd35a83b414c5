"""Decoding whole images: which of a batch cannot be."""

import io
from typing import Any

import numpy as np
import pytest
from making import damaged_jpeg, encoded, jpeg, picture
from nvidia.dali import fn
from PIL import Image
from running import as_arrays

from gpuloader.pipelines import WholeDecoder, whole


@pytest.mark.parametrize("bad", [[], [0], [3], [6], [2, 3], [0, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_it_names_the_bad_rows_and_no_others(bad: list[int]) -> None:
    decoder = WholeDecoder(batch_size=8, num_threads=2, device_id=None)
    images = [damaged_jpeg() if row in bad else jpeg(60, 80, seed=row) for row in range(7)]
    causes = decoder.failures(as_arrays(images))
    assert sorted(causes) == bad
    assert set(causes.values()) <= {"DALI's decoder fails on it"}


def test_it_goes_on_after_a_failure_with_batches_of_any_size() -> None:
    decoder = WholeDecoder(batch_size=4, num_threads=2, device_id=None)
    batches = [[damaged_jpeg()], [jpeg(8, 8)] * 4, [], [jpeg(8, 8), damaged_jpeg()], [jpeg(300, 200)]]
    assert [list(decoder.failures(as_arrays(batch))) for batch in batches] == [[0], [], [], [1], []]


def test_it_gives_whole_images_that_are_the_callers_or_names_the_bad_rows() -> None:
    decoder = WholeDecoder(batch_size=4, num_threads=2, device_id=None)
    files = [jpeg(60, 80), jpeg(33, 51), encoded(picture(20, 31), "PNG")]
    images = decoder.decode(as_arrays(files))
    decoder.decode(as_arrays([jpeg(60, 80, seed=1)] * 4))  # into memory of its own
    for image, file in zip(images, files, strict=True):
        with Image.open(io.BytesIO(file)) as expected:
            assert np.abs(image.astype(int) - np.asarray(expected, int)).max() <= 1
    assert decoder.decode(as_arrays([files[0], damaged_jpeg()])) == {1: "DALI's decoder fails on it"}
    assert len(decoder.decode(as_arrays(files))) == 3


@pytest.mark.parametrize(("device_id", "pipelines"), [(None, 4), (0, 7)])
def test_on_a_gpu_each_image_of_a_batch_that_fails_has_a_pipeline_of_its_own(
    monkeypatch: pytest.MonkeyPatch, device_id: int | None, pipelines: int
) -> None:
    """There is no GPU here: the pipelines that are asked for are built for the CPU."""
    asked, graph = [], whole._graph

    def graph_on_cpu(on_cpu: bool, device_id: int | None, **kwargs: Any) -> Any:  # noqa: ANN401
        asked.append((on_cpu, device_id))
        return graph(True, device_id=None, **kwargs)

    monkeypatch.setattr(whole, "_graph", graph_on_cpu)
    decoder = WholeDecoder(batch_size=4, num_threads=1, device_id=device_id)
    batch = as_arrays([jpeg(8, 8), jpeg(8, 8), damaged_jpeg(), jpeg(8, 8)])
    assert list(decoder.failures(as_arrays([jpeg(8, 8)] * 4))) == []
    assert list(decoder.failures(batch)) == [2]
    assert list(decoder.failures(as_arrays([jpeg(8, 8)] * 4))) == []
    assert asked == pipelines * [(device_id is None, device_id)]


def test_no_jpeg_engine_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails in a batch of training fails here too: no place in a batch gives it to an engine."""
    asked, decode = [], fn.decoders.image
    monkeypatch.setattr(
        fn.decoders, "image", lambda *args, **options: asked.append(options) or decode(*args, **options)
    )
    WholeDecoder(batch_size=1, num_threads=1, device_id=None).failures(as_arrays([jpeg(8, 8)]))
    assert [options["hw_decoder_load"] for options in asked] == [0]
