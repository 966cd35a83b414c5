"""How a GPU decodes is found out once, kept, and overruled. There is no GPU here: what the process finds is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest
import torch

from gpuloader import Decoder
from gpuloader.loading import probing
from gpuloader.loading.probing import resolve_decoder
from gpuloader.pipelines.probe import Found

NO_REGIONS = Found(("", "", "fails", "fails"))
VERSIONS = {"driver": "580.1", "DALI": "2.4.0", "nvImageCodec": "0.9.0"}


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The GPUs that were tried, each of another kind."""
    gpus: list[int] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(probing, "probe", lambda gpu: gpus.append(gpu) or NO_REGIONS)
    monkeypatch.setattr(probing, "decoder_versions", lambda: VERSIONS)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: f"GPU of kind {gpu}")
    return gpus


@pytest.mark.parametrize(
    ("given", "expected", "tries"),
    [
        (Decoder(), Decoder(region=False, hw_load=1.0), [0]),
        (Decoder(3, 4, hybrid_huffman_threshold=5), Decoder(3, 4, 1.0, 5, False), [0]),
        (Decoder(region=True), Decoder(region=True, hw_load=1.0), [0]),
        (Decoder(hw_load=0.5), Decoder(region=False, hw_load=0.5), [0]),
        (Decoder(region=True, hw_load=0), Decoder(region=True, hw_load=0), []),  # nothing is left to find out
    ],
)
def test_what_is_given_overrules_what_is_found(
    tried: list[int], given: Decoder, expected: Decoder, tries: list[int]
) -> None:
    assert resolve_decoder(given, 0) == expected
    assert tried == tries
    assert resolve_decoder(given, None) is given  # on the CPU
    assert tried == tries


def test_it_is_found_out_once_for_a_kind_of_gpu_and_its_versions(
    tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for gpu in (0, 0, 1, 0, 1):
        assert resolve_decoder(Decoder(), gpu).region is False
    assert tried == [0, 1]
    for name in VERSIONS:
        monkeypatch.setattr(probing, "decoder_versions", lambda name=name: {**VERSIONS, name: "another"})
        resolve_decoder(Decoder(), 0)
        resolve_decoder(Decoder(), 0)
    assert tried == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"problems": ["", ""]}', '{"problems": "abcd", "key": {}}', "\0"])
def test_a_file_that_is_damaged_is_found_out_again(tried: list[int], content: str) -> None:
    resolve_decoder(Decoder(), 0)
    [file] = platformdirs.user_cache_path("gpuloader").iterdir()
    file.write_text(content)
    for _ in range(2):
        assert resolve_decoder(Decoder(), 0).region is False
    assert tried == [0, 0]


def test_where_nothing_can_be_kept_a_warning_says_so(
    tried: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gpuloader").write_text("a file in the folder's place")
    assert resolve_decoder(Decoder(), 0).region is False
    assert "each loader tries again how the GPU decodes" in caplog.text
