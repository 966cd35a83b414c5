"""How a GPU decodes is found out once, kept, and overruled. There is no GPU here: what the process finds is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import platformdirs
import pytest
import torch
from nvidia.dali import fn

from gpuloader import Compose, Decoder, GPULoader
from gpuloader.errors import ConfigError
from gpuloader.loading import probing
from gpuloader.loading.decoding import make_running
from gpuloader.loading.loader import run_of
from gpuloader.loading.probing import resolve_decoder
from gpuloader.pipelines.probe import Found
from gpuloader.transforms import GaussianBlur, RandomResizedCrop

NO_REGIONS = Found(("", "", "fails", "fails"))
VERSIONS = {"driver": "580.1", "DALI": "2.4.0", "nvImageCodec": "0.9.0", "nvJPEG": "12.4.0", "nvTIFF": "0.8.0"}


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


@pytest.mark.parametrize(
    ("given", "on_cpu", "on_gpu"),
    [
        (Decoder(), Decoder(region=False), Decoder(region=False, hw_load=1.0)),
        (Decoder(region=True), Decoder(region=True), Decoder(region=True, hw_load=1.0)),
    ],
)
@pytest.mark.usefixtures("tried")
def test_of_seekable_images_all_that_is_left_is_decoded(given: Decoder, on_cpu: Decoder, on_gpu: Decoder) -> None:
    assert resolve_decoder(given, None, seekable=True) == on_cpu
    assert resolve_decoder(given, 0, seekable=True) == on_gpu


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
    assert tried == [0, 1, *[0] * len(VERSIONS)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch would say it of a machine with a GPU: a loader can be made there, and its graph defined."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=1 << 36))


@pytest.mark.usefixtures("gpu", "tried")
def test_a_loaders_graph_decodes_as_was_found(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked, image = [], fn.decoders.image
    monkeypatch.setattr(fn.decoders, "image", lambda *args, **options: asked.append(options) or image(*args, **options))
    monkeypatch.setattr(fn.decoders, "image_slice", None)
    with GPULoader(shards, 8, 0) as loader:
        assert run_of(loader).decoder == Decoder(run_of(loader).num_threads, hw_load=1.0, region=False)
        make_running(run_of(loader), lambda: ([], run_of(loader).recipe.drawn_for_none))._build()
    [options] = asked
    assert (options["device"], options["hw_decoder_load"]) == ("mixed", 1.0)


@pytest.mark.usefixtures("gpu")
def test_what_a_gpu_cannot_do_is_said_before_anything_is_tried(shards: list[Path], tried: list[int]) -> None:
    recipe = Compose([RandomResizedCrop(224), GaussianBlur(173)])
    with pytest.raises(ConfigError, match=r"kernel_size 173: .* on a GPU allows up to 171"):
        GPULoader(shards, 8, 0, preset=recipe)
    assert tried == []


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
