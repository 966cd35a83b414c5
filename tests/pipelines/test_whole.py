"""Decoding whole images: which of a batch cannot be."""

from typing import Any

import pytest
from making import damaged_jpeg, jpeg
from nvidia.dali import fn
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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int | None]]:
    """The pipelines that are asked for: on the CPU or not, and the device. They are built for the CPU."""
    pipelines, graph = [], whole._graph

    def graph_on_cpu(batch: Any, device: str, device_id: int | None, **kwargs: Any) -> Any:  # noqa: ANN401
        pipelines.append((device == "cpu", device_id))
        return graph(batch, "cpu", device_id=None, **kwargs)

    monkeypatch.setattr(whole, "_graph", graph_on_cpu)
    return pipelines


@pytest.mark.parametrize(
    ("device_id", "bad", "pipelines"),
    [
        (None, [], 1),
        (None, [50], 3),  # the batch; the named one; the good one that is decoded before one is blamed, and the rest
        (0, [], 1),
        (0, [50], 3),
        (0, [0, 50, 63], 7),
    ],
)
def test_a_batch_with_a_bad_image_costs_few_pipelines(
    asked: list[tuple[bool, int | None]], device_id: int | None, bad: list[int], pipelines: int
) -> None:
    decoder = WholeDecoder(batch_size=64, num_threads=1, device_id=device_id)
    good = as_arrays([jpeg(8, 8)] * 64)
    assert decoder.failures(good) == {}
    [damaged] = as_arrays([damaged_jpeg()])
    some = [damaged if row in bad else image for row, image in enumerate(good)]
    assert list(decoder.failures(some)) == bad
    assert decoder.failures(good) == {}
    assert asked == pipelines * [(device_id is None, device_id)]


def test_no_jpeg_engine_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails in a batch of training fails here too: no place in a batch gives it to an engine."""
    asked, decode = [], fn.decoders.image
    monkeypatch.setattr(
        fn.decoders, "image", lambda *args, **options: asked.append(options) or decode(*args, **options)
    )
    WholeDecoder(batch_size=1, num_threads=1, device_id=None).failures(as_arrays([jpeg(8, 8)]))
    assert [options["hw_decoder_load"] for options in asked] == [0]
