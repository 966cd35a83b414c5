"""What ends a running graph, and what is left of that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_graph import GPU, gpu_graph, load_on
from making import damaged_jpeg, jpeg, write_shard
from nvidia.dali import fn

from gpuloader import BadImages, Compose, Decoder, GPULoader
from gpuloader.chain import decode
from gpuloader.errors import DeviceError
from gpuloader.pipelines import GraphInputs, decoder_buffers, graph_pipeline


def test_the_decoder_is_told_the_largest_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the height of one and the width of another, which no image has."""
    asked, cut = [], fn.decoders.image_slice
    monkeypatch.setattr(fn.decoders, "image_slice", lambda *args, **given: asked.append(given) or cut(*args, **given))
    samples = [{"__key__": str(n), "jpg": jpeg(*size)} for n, size in enumerate([(20, 80), (60, 30)])]
    shard = write_shard(tmp_path / "a.tar", samples)
    with GPULoader(shard, 2, None, preset="imagenet_eval", label_from=None) as loader:
        next(iter(loader))
    [options] = asked
    assert (options["preallocate_height_hint"], options["preallocate_width_hint"]) == (60, 30)
    # 16-bit coefficients, and on the device the levels.
    assert (options["device_memory_padding"], options["host_memory_padding"]) == (9 * 1800, 6 * 1800)


@pytest.mark.parametrize(
    ("size", "device_mib", "host_mib"), [((1024, 1024), 9, 6), ((2048, 1024), 16, 8), ((0, 0), 16, 8)]
)
def test_a_gpus_decoder_reserves_at_most_what_dali_does(size: tuple[int, int], device_mib: int, host_mib: int) -> None:
    assert list(decoder_buffers(*size).values()) == [device_mib << 20, host_mib << 20]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each batch that pipelines are given."""
    rows: list[int] = []

    def noting(inputs: GraphInputs, feed: Any, **options: Any) -> Any:  # noqa: ANN401
        def noted() -> tuple[Any, ...]:
            given = feed()
            assert {len(each) for each in given} == {len(given[0])}
            rows.append(len(given[0]))
            return given

        return graph_pipeline(inputs, noted, **options)

    monkeypatch.setattr("gpuloader.chain.decode.graph_pipeline", noting)
    return rows


@pytest.mark.parametrize(("hw_load", "first"), [(None, 4), (0.0, 4), (1.0, 12)])
def test_the_first_batch_of_a_pipeline_is_a_whole_one_where_engines_decode(
    shards: list[Path], given: list[int], hw_load: float | None, first: int
) -> None:
    """nvImageCodec gives its engines at most as many of a batch as the first had: here that would be 4."""
    arguments: dict[str, Any] = {"preset": "cifar10", "last_batch": "partial", "decoder": Decoder(hw_load=hw_load)}
    with GPULoader(shards, 12, None, **arguments) as loader:
        whole = [images for _ in range(2) for images, _ in loader]
    given.clear()
    with GPULoader(shards, 12, None, **arguments) as loader:
        loader.load_state_dict({**loader.state_dict(), "delivered": 36})
        rest = [images for _ in range(2) for images, _ in loader]
    assert given[:3] == [first, 12, 12]
    assert [len(images) for images in rest] == [4, 12, 12, 12, 4]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(rest, whole[3:], strict=True))


@pytest.mark.parametrize(("device_id", "rows"), [(None, [1, 1, 3, 3, 4]), (GPU, [2, 2, 4, 3, 4])])
def test_a_recipe_run_by_itself_fills_its_batches_in_the_same_way(
    given: list[int], device_id: int | None, rows: list[int]
) -> None:
    files = [jpeg(40 + seed, 60, seed=seed) for seed in range(4)]
    with gpu_graph():
        expected = Compose.load("cifar10_eval")(files, device_id=device_id)
        given.clear()
        compose = Compose.load("cifar10_eval")
        for count in (1, 1, 3, 3, 4):
            assert torch.equal(compose(files[:count], device_id=device_id), expected[:count])
    assert given == rows


@pytest.mark.parametrize(
    ("decoder", "seekable", "on_cpu", "on_gpu"),
    [
        (Decoder(), False, {"num_threads": 3, "region": True}, {"num_threads": 3, "hw_load": 1.0, "region": False}),
        (Decoder(), True, {"num_threads": 3, "region": False}, {"num_threads": 3, "hw_load": 1.0, "region": False}),
        (Decoder(5, 4, hw_load=0.5), False, {"region": True}, {"region": False}),
        (Decoder(region=True, hw_load=0), True, {"num_threads": 3}, {"num_threads": 3}),
        (Decoder(5, processes=0), False, {"region": True}, {"hw_load": 1.0, "region": False}),
    ],
)
def test_a_device_decides_what_none_means(
    decoder: Decoder, seekable: bool, on_cpu: dict[str, Any], on_gpu: dict[str, Any]
) -> None:
    processes = decoder.num_threads or 3 if decoder.processes is None else decoder.processes
    assert decoder.on(None, 3, seekable) == replace(decoder, processes=processes, **on_cpu)
    assert decoder.on(0, 3, seekable) == replace(decoder, processes=processes, **on_gpu)


@pytest.mark.parametrize(
    ("hw_load", "device_id", "threads"),
    [(None, 0, 8), (1, 0, 8), (0.5, 0, 12), (0, 0, 12), (None, None, 12), (1, None, 12)],
)
def test_engines_leave_few_threads_work(hw_load: float | None, device_id: int | None, threads: int) -> None:
    assert Decoder(hw_load=hw_load).on(device_id, 12).num_threads == threads
    assert Decoder(10, hw_load=hw_load).on(device_id, 12).num_threads == 10


def test_a_gpu_decodes_whole_images_with_its_engines(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked, image = [], fn.decoders.image
    monkeypatch.setattr(fn.decoders, "image", lambda *args, **options: asked.append(options) or image(*args, **options))
    with load_on(GPU, shards, preset="cifar10_eval") as loader:
        next(iter(loader))
    assert [options["hw_decoder_load"] for options in asked] == [1.0]


def test_a_batch_that_fails_while_each_of_its_images_decodes_is_the_decoders_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU's engines may fail. Here an image that fails passes when it is tried alone."""
    monkeypatch.setattr(decode, "find_undecodable", lambda *_, **__: {})
    files = [jpeg(48, 64), damaged_jpeg(), jpeg(48, 64)]
    shard = write_shard(tmp_path / "a.tar", [{"__key__": str(n), "jpg": file} for n, file in enumerate(files)])
    bad_images = BadImages(replace=True)
    with GPULoader(shard, 3, None, preset="cifar10", label_from=None, on_error=bad_images) as loader:
        with pytest.raises(DeviceError, match=r"(?s)not an image: .*fn\.decoders"):
            next(iter(loader))
        assert loader.stats().bad == {}
