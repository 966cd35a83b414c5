"""Decoding whole images: which of them cannot be, and which mipmaps are not of their picture."""

import io

import numpy as np
import pytest
from making import damaged_jpeg, jpeg
from nvidia.dali import fn
from PIL import Image
from running import as_arrays

from gpuloader.tools.decoder_process import WholeImages


def bad_of(decoder: WholeImages, images: list[bytes]) -> dict[int, str]:
    """The causes for pictures without mipmaps, by row."""
    return {row: cause for (row, _), cause in decoder.bad([{0: image} for image in as_arrays(images)]).items()}


@pytest.mark.parametrize("bad", [[], [0], [3], [6], [2, 3], [0, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_it_names_the_bad_rows_and_no_others(bad: list[int]) -> None:
    decoder = WholeImages(batch_size=8, num_threads=2, device_id=None)
    causes = bad_of(decoder, [damaged_jpeg() if row in bad else jpeg(60, 80, seed=row) for row in range(7)])
    assert sorted(causes) == bad
    assert set(causes.values()) <= {"DALI's decoder fails on it"}


@pytest.mark.parametrize("bad", [[], [0, 3], [0, 1, 2, 3]])
def test_it_reduces_the_good_rows(bad: list[int]) -> None:
    decoder = WholeImages(batch_size=4, num_threads=2, device_id=None, compares=True)
    images = [damaged_jpeg() if row in bad else jpeg(60 + 90 * row, 80, seed=row) for row in range(4)]
    assert sorted(bad_of(decoder, images)) == bad
    assert sorted({*decoder.trial.made, *bad}) == [0, 1, 2, 3]
    assert not set(decoder.trial.made) & set(bad)
    for row, pixels in decoder.trial.made.items():
        expected = Image.open(io.BytesIO(images[row])).resize((32, 32), Image.Resampling.BILINEAR)
        assert pixels.shape == (32, 32, 3)
        assert np.abs(pixels.astype(int) - np.asarray(expected)).mean() < 1


def test_it_goes_on_after_a_failure_with_batches_of_any_size() -> None:
    decoder = WholeImages(batch_size=4, num_threads=2, device_id=None)
    batches = [[damaged_jpeg()], [jpeg(8, 8)] * 4, [], [jpeg(8, 8), damaged_jpeg()], [jpeg(300, 200)]]
    assert [list(bad_of(decoder, batch)) for batch in batches] == [[0], [], [], [1], []]


def test_no_jpeg_engine_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails in a batch of training fails here too: no place in a batch gives it to an engine."""
    asked, decode = [], fn.decoders.image
    monkeypatch.setattr(
        fn.decoders, "image", lambda *args, **options: asked.append(options) or decode(*args, **options)
    )
    bad_of(WholeImages(batch_size=1, num_threads=1, device_id=None), [jpeg(8, 8)])
    assert [options["hw_decoder_load"] for options in asked] == [0]
