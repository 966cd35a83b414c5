"""GPULoader on a GPU: the same batches as on the CPU, within the decoders' and the resize filters' difference."""

from pathlib import Path
from typing import Any

import pytest
import torch
from forms import FORMS, differences, options_of, write_forms
from making import damaged_jpeg, jpeg, write_decoded, write_samples, write_shard

from gpuloader import BadImages, GPULoader
from gpuloader.errors import BadImageError, DeviceError
from gpuloader.recipe import load_preset

# Mean difference in levels of 255: nvJPEG's chroma upsampling and inverse DCT, and DALI's border in `resize`. What is
# done to the pixels then widens it.
MEAN_LEVELS = 1.5
MEAN_LEVELS_BEHIND_OPERATIONS = 4.0


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_samples(tmp_path_factory.mktemp("shards"), 48, sizes=[(375, 500), (500, 375), (225, 300)])


def epoch(shards: Any, device_id: int | None, **kwargs: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    with GPULoader(shards, 8, device_id, output="dict", **kwargs) as batches:
        return list(batches)


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forms(tmp_path_factory.mktemp("forms"), [(375, 500), (500, 375), (225, 300)], 24)


@pytest.mark.parametrize("name", FORMS)
def test_the_batches_are_those_of_the_cpu(forms: Path, gpu: int, name: str) -> None:
    recipe = FORMS[name]
    on_gpu, on_cpu = (epoch(forms, device, last_batch="pad", **options_of(recipe)) for device in (gpu, None))
    for one, other in zip(on_gpu, on_cpu, strict=True):
        assert one["label"].device == one["valid"].device == torch.device("cuda", gpu)
        assert one["key"] == other["key"]
        torch.testing.assert_close(one["label"].cpu(), other["label"])
        for changed, levels in differences(recipe, torch.device("cuda", gpu), one, other):
            assert levels.mean() < (MEAN_LEVELS_BEHIND_OPERATIONS if changed else MEAN_LEVELS)


@pytest.mark.parametrize("name", ["imagenet_train", "imagenet_eval", "imagenet_randaugment"])
def test_decoded_images_are_as_on_the_cpu(shards: list[Path], gpu: int, name: str, tmp_path: Path) -> None:
    decoded, preset = write_decoded(tmp_path, shards), load_preset(name, {"Normalize": None})
    on_gpu, on_cpu = (epoch(decoded, device, preset=preset) for device in (gpu, None))
    for one, other in zip(on_gpu, on_cpu, strict=True):
        assert one["image"].device == torch.device("cuda", gpu)
        assert (one["image"].cpu() - other["image"]).abs().mean() * 255 < MEAN_LEVELS_BEHIND_OPERATIONS


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_dtype_and_memory_format_are_the_recipes(shards: list[Path], gpu: int, dtype: str, layout: str) -> None:
    overrides = {"dtype": dtype, "layout": layout, "Normalize": None}
    with GPULoader(shards, 8, gpu, preset={"imagenet_train": overrides}) as batches:
        images, labels = next(iter(batches))
    assert images.shape == (8, 3, 224, 224)
    assert images.dtype == getattr(torch, dtype)
    assert labels.dtype == torch.int64
    memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    assert images.is_contiguous(memory_format=memory_format)


def test_epochs_repeat_and_a_state_gives_the_rest_pixel_for_pixel(shards: list[Path], gpu: int) -> None:
    with GPULoader(shards, 8, gpu) as batches:
        whole = [images.clone() for images, _ in batches]
        batches.set_epoch(0)
        for step, (images, _) in enumerate(batches):
            assert torch.equal(images, whole[step])
            if step == 2:
                state = batches.state_dict()
    with GPULoader(shards, 8, gpu) as resumed:
        resumed.load_state_dict(state)
        rest = [images.clone() for images, _ in resumed]
    assert len(rest) == len(whole) - 3
    assert all(torch.equal(one, other) for one, other in zip(rest, whole[3:], strict=True))


def test_a_batch_stays_as_it_is_while_it_is_held(shards: list[Path], gpu: int) -> None:
    with GPULoader(shards, 8, gpu) as batches:
        held = [(images, images.clone()) for _ in range(3) for images, _ in batches]
    assert all(torch.equal(images, copy) for images, copy in held)


def test_a_cuda_graph_is_captured_beside_a_loader(shards: list[Path], gpu: int) -> None:
    inputs = torch.zeros((8, 3, 224, 224), device=gpu)
    with GPULoader(shards, 8, gpu, decoder={"prefetch": 4}) as loader:
        batches = iter(loader)
        next(batches)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            doubled = 2 * inputs
        for images, _ in batches:
            inputs.copy_(images)
            graph.replay()
            assert torch.equal(doubled, 2 * images)


def test_a_bad_image_is_named_or_replaced(tmp_path: Path, gpu: int) -> None:
    bad = {3: jpeg(64, 64)[:-30], 12: damaged_jpeg()}
    images = [bad.get(i, jpeg(60, 80, seed=i)) for i in range(24)]
    samples = [{"__key__": f"{i:06d}", "jpg": image, "cls": b"1"} for i, image in enumerate(images)]
    tar = write_shard(tmp_path / "spoilt.tar", samples)
    with GPULoader(tar, 8, gpu, preset="imagenet_eval") as batches, pytest.raises(BadImageError, match="000003"):
        list(batches)
    replaced = epoch(tar, gpu, preset="imagenet_eval", on_error=BadImages(replace=True, max_share=0.2))
    assert [(~batch["valid"]).sum().item() for batch in replaced] == [1, 1, 0]


def test_the_default_device_is_the_gpu_and_a_missing_one_is_refused(shards: list[Path], gpu: int) -> None:
    with GPULoader(shards, 8) as batches:
        assert batches.device.type == "cuda"
    with pytest.raises(DeviceError, match=r"device_id=99 but there are \d+ CUDA devices"):
        GPULoader(shards, 8, 99)
