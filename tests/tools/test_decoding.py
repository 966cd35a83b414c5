"""Decoding in a process of its own, which may end."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from making import jpeg
from running import as_arrays

from gpuloader.errors import LoaderError
from gpuloader.tools.decoder_process import DecoderProcess

pytestmark = pytest.mark.slow(kept=2, of="decoding")

GOOD = [jpeg(40, 60, seed=seed) for seed in range(20)]
KILLER = b"KILL" + bytes(100)
BREAKER = b"CUDA" + bytes(100)


def alone(images: list[bytes]) -> list[dict[int, np.ndarray]]:
    """Samples of a picture without copies."""
    return [{0: image} for image in as_arrays(images)]


@pytest.fixture
def killing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that ends the process on some bytes, as decoders do on some damage, though not whenever one likes."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "from gpuloader.images import gate\n"
        "admit = gate.admit\n"
        "def killing(image, *most):\n"
        "    if image[:4].tobytes() == b'KILL': os.kill(os.getpid(), 11)\n"
        "    if image[:4].tobytes() == b'CUDA':\n"
        "        raise RuntimeError('CUDA runtime API error cudaErrorIllegalAddress (700)')\n"
        "    return admit(image, *most)\n"
        "gate.admit = killing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.slow(kept=0)
@pytest.mark.usefixtures("killing")
@pytest.mark.parametrize("killers", [[0], [7], [19], [3, 4]])
def test_an_image_that_ends_the_process_is_named_and_no_other(killers: list[int]) -> None:
    images = [KILLER if row in killers else data for row, data in enumerate(GOOD)]
    with closing(DecoderProcess(20, 2, None)) as decoding:
        assert decoding.bad(alone(images)) == {(row, 0): "decoding it ends the process (SIGSEGV)" for row in killers}
        assert decoding.bad(alone(GOOD)) == {}


@pytest.mark.usefixtures("killing")
def test_a_mipmap_that_ends_the_process_is_named_and_neither_its_picture_nor_another_mipmap() -> None:
    mipmaps = as_arrays([GOOD[0], KILLER, jpeg(10, 15)])
    with closing(DecoderProcess(20, 2, None, compares=True)) as decoding:
        causes = decoding.bad([*alone(GOOD[1:]), dict(zip((0, 20, 10), mipmaps, strict=True))])
    assert causes == {(19, 20): "decoding it ends the process (SIGSEGV)"}


@pytest.mark.usefixtures("killing")
def test_an_image_that_breaks_cuda_for_the_process_is_named_and_no_other() -> None:
    with closing(DecoderProcess(20, 2, None)) as decoding:
        causes = decoding.bad(alone([GOOD[0], BREAKER]))
    assert causes == {(1, 0): "decoding it ends the process (an error of CUDA)"}


def test_a_machine_that_decodes_nothing_is_said_before_any_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIMGCODEC_EXTENSIONS_PATH", str(tmp_path))
    with closing(DecoderProcess(8, 2, None)) as decoding, pytest.raises(LoaderError, match="fails on a good JPEG"):
        decoding.bad(alone(GOOD))


@pytest.mark.slow(kept=0)
def test_where_all_images_end_the_process_they_are_not_to_blame(killing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuloader.tools.decoder_process.MOST_ENDS", 3)
    with (
        closing(DecoderProcess(8, 2, None)) as decoding,
        pytest.raises(LoaderError, match=r"4 times in a row \(SIGSEGV\)"),
    ):
        decoding.bad(alone([KILLER] * 8))


def test_a_process_that_does_not_begin_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.exit('a broken installation')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with (
        closing(DecoderProcess(8, 2, None)) as decoding,
        pytest.raises(LoaderError, match=r"(?s)did not start.*a broken inst"),
    ):
        decoding.bad(alone(GOOD[:1]))
