"""What people bring from torch's DataLoader: each word is taken, or an error says what it is called here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_graph import GPU, gpu_graph
from making import encoded, jpeg, write_shard
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from gpuloader import Compose, GPULoader, Sampling
from gpuloader.errors import ConfigError, DeviceError, LoaderError
from gpuloader.loading.arguments import resolve_own_device
from gpuloader.loading.warning import warn_of_places

SMALL = {"CenterCrop": {"size": 32}, "Resize": {"size": 36}}


def loader(tar: Any, batch_size: int = 8, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    return GPULoader(tar, batch_size, **{"device_id": None, "preset": {"imagenet_eval": SMALL}, **kwargs})


def order(tar: Any, **kwargs: Any) -> list[int]:  # noqa: ANN401
    with loader(tar, output="dict", **kwargs) as batches:
        return [index for batch in batches for index in batch["index"].tolist()]


# --- arguments


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"num_workers": 8}, "num_workers: there are no worker processes here: set decoder=Decoder(num_threads=)"),
        ({"drop_last": True}, 'drop_last: use last_batch="drop" for True; "partial" keeps the short batch'),
        ({"transform": None}, "transform: use preset=Compose.from_torchvision(transform)"),
        ({"timeout": 3, "in_order": True}, "timeout: not needed here, leave it out: batches are made in threads"),
        (
            {"shuffle": 1},
            "shuffle=1: allowed are 'none', 'full', 'block', 'shards', True, False and a function of the epoch",
        ),
        ({"bach_size": 3}, "bach_size: GPULoader has no such argument; did you mean batch_size?"),
    ],
)
def test_arguments_of_torchs_dataloader_have_counterparts_here(
    shards: list[Path], argument: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        loader(shards, **argument)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "dtype", "strides_of_channels", "sides"),
    [
        ("image_size", torch.float32, False, [(128, 128), (128, 128)]),  # for training and for evaluation
        ("dtype", torch.float16, False, [(224, 224)]),
        ("memory_format", torch.float32, True, [(224, 224)]),
        ("augment", torch.float32, False, [(224, 224), (224, 224)]),
    ],
)
def test_what_a_recipe_decides_is_asked_for_as_the_error_says(
    shards: list[Path], argument: str, dtype: torch.dtype, strides_of_channels: bool, sides: list[tuple[int, int]]
) -> None:
    with pytest.raises(ConfigError, match=f"^{argument}: it is part of the recipe: use preset=") as caught:
        loader(shards, **{argument: None})
    presets = [ast.literal_eval(text) for text in re.findall(r"preset=(\{.*?\}\}(?:\})?|\"\w+\")", str(caught.value))]
    assert len(presets) == len(sides)
    for preset, shape in zip(presets, sides):
        with loader(shards, preset=preset, shuffle=False) as batches:
            images, _ = next(iter(batches))
        assert (images.shape[2:], images.dtype, images.stride(1) == 1) == (shape, dtype, strides_of_channels)


@pytest.mark.parametrize("argument", ["crop_size", "image_size", "img_size", "input_size", "size"])
def test_the_advice_on_sizes_keeps_the_presets_ratio(shards: list[Path], argument: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loader(shards, **{argument: 128})
    [_, advised] = [ast.literal_eval(text) for text in re.findall(r"preset=(\{.*?\}\}\})", str(caught.value))]
    (resized, crop), (usual, usual_crop) = (
        [each.size for each in Compose.load(preset).transforms[:2]]  # type: ignore[attr-defined]
        for preset in (advised, "imagenet_eval")
    )
    assert (crop, resized) == (128, round(128 * usual / usual_crop))


def test_every_argument_of_torchs_dataloader_is_known(shards: list[Path]) -> None:
    ours = {"dataset": "tar", "batch_size": "batch_size", "shuffle": "shuffle"}
    for argument in set(DataLoader.__init__.__annotations__) - {"return", *ours}:
        with pytest.raises(ConfigError) as caught:
            loader(shards, **{argument: None})
        assert "no such argument" not in str(caught.value)


def test_a_loader_is_looped_over_without_a_dataloader_around_it(shards: list[Path]) -> None:
    with loader(shards) as batches:
        for wrong in (lambda: batches[0], lambda: next(iter(DataLoader(batches))), lambda: batches[:2]):
            with pytest.raises(ConfigError, match="loop over it"):
                wrong()
        assert len(list(batches)) == 5


def test_shuffle_is_true_or_false_as_in_torch(shards: list[Path]) -> None:
    assert order(shards, shuffle=False) == order(shards, shuffle="none") == list(range(40))
    assert order(shards, shuffle=True) == order(shards, shuffle="full") != list(range(40))


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), None])
def test_the_cpu_has_torchs_names(shards: list[Path], device: object) -> None:
    with loader(shards, device_id=device) as batches:
        assert batches.device == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda:0", torch.device("cuda", 1), 0])
def test_a_gpu_has_torchs_names(shards: list[Path], device: object) -> None:
    with pytest.raises(DeviceError) as caught:
        loader(shards, device_id=device)
    assert str(caught.value) == f"device_id={device!r} but there is no CUDA device; use device_id=None for the CPU"


@pytest.mark.parametrize("device", ["gpu", "cuda:x", torch.device("meta"), -1, True])
def test_other_devices_are_refused(shards: list[Path], device: object) -> None:
    with pytest.raises(ConfigError, match='allowed are a GPU\'s number, "cuda:0"'):
        loader(shards, device_id=device)


def test_no_gpu_is_used_in_a_process_that_was_forked_after_cuda_began(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuloader.loading.arguments.is_forked_after_cuda", lambda: True)  # it needs a GPU to be true
    with pytest.raises(DeviceError, match=r"forked after CUDA began in its parent.*get_context\(\"spawn\"\)"):
        loader(shards, device_id=0)


@pytest.mark.slow(kept=0)
def test_a_loader_that_lacks_memory_says_what_takes_it(tmp_path: Path) -> None:
    large = encoded(Image.new("RGB", (6000, 6000)), "JPEG")
    shard = write_shard(tmp_path / "large.tar", [{"__key__": f"{i}", "jpg": large, "cls": b"1"} for i in range(8)])
    script = (
        "import resource, sys; from gpuloader import GPULoader; from gpuloader.errors import DeviceError\n"
        "loader = GPULoader(sys.argv[1], 8, None, preset='imagenet_eval', decoder={'num_threads': 1, 'prefetch': 1})\n"
        "taken = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (taken + 2**29,) * 2)\n"
        "try: next(iter(loader))\n"
        "except DeviceError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", script, shard], stdout=subprocess.PIPE, text=True, check=True)
    assert result.stdout.startswith("cpu has no memory left for batch_size=8, prefetch=1 and images of up to 6000x6000")
    assert "for decoded images. Take a smaller batch_size or prefetch, or smaller images" in result.stdout


@pytest.mark.parametrize(
    ("fields", "named"),
    [(["boxes.npy"], "boxes.npy"), (["json", "mask.png", "keypoints"], "mask.png, keypoints"), (["myboxes.npy"], None)],
)
def test_fields_that_hold_places_are_said_once_to_stay_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fields: list[str] | dict[str, Any], named: str | None
) -> None:
    warn_of_places.cache_clear()
    components = dict.fromkeys(fields, b"1")
    tar = write_shard(tmp_path / "a.tar", [{"__key__": f"{i}", "jpg": jpeg(40, 40), **components} for i in range(8)])
    for rank in (1, 0, 0):
        loader(tar, label_from=None, output="dict", fields=fields, world={"rank": rank, "world_size": 2}).close()
    said = [record.getMessage() for record in caplog.records]
    assert [message.partition(", but the fields ")[2].partition(" stay as they are")[0] for message in said] == (
        [named] if named else []
    )


class InWorkers(IterableDataset[int]):
    """Makes a loader where it is iterated, as people do who wrap one."""

    def __init__(self, tar: list[Path], shared: bool) -> None:
        self._tar = tar
        self._shared = shared

    def __iter__(self) -> Any:  # noqa: ANN401
        worker = get_worker_info()
        share = {"world": {"rank": worker.id, "world_size": worker.num_workers}} if self._shared else {}
        with loader(self._tar, output="dict", **share) as batches:
            yield from (index for batch in batches for index in batch["index"].tolist())


@pytest.mark.slow(kept=1)
@pytest.mark.parametrize(
    ("workers", "shared", "samples"),
    [(1, False, list(range(40))), (2, True, list(range(40)))],
    ids=["one worker", "two workers that share"],
)
def test_a_loader_in_torchs_workers_gives_each_sample_once(
    shards: list[Path], workers: int, shared: bool, samples: list[int]
) -> None:
    batches = DataLoader(InWorkers(shards, shared), None, num_workers=workers, multiprocessing_context="spawn")
    assert sorted(int(index) for index in batches) == samples


def test_a_loader_in_each_of_several_workers_of_torch_is_refused(shards: list[Path]) -> None:
    with pytest.raises(
        ConfigError, match=r"in worker 0 of 2 of a torch DataLoader, and each of them would deliver all"
    ):
        list(DataLoader(InWorkers(shards, shared=False), None, num_workers=2))


# --- what a loader tells of itself


def test_a_loader_tells_what_it_runs(shards: list[Path]) -> None:
    with loader(shards, 16, sampling=Sampling(subset=slice(30)), last_batch="partial") as batches:
        assert (batches.num_samples, batches.batch_size, len(batches), batches.num_batches) == (30, 16, 2, 2)
        assert (len(batches.dataset), batches.dataset.classes, batches.dataset.class_to_idx) == (40, None, {})


@pytest.mark.parametrize(
    ("kwargs", "world_size", "samples"),
    [
        ({"last_batch": "partial"}, 3, 14),  # 13 of some ranks: those of torch's DistributedSampler are 14, too
        ({"last_batch": "drop"}, 2, 16),
        ({"sampling": {"subset": slice(30)}}, 2, 15),
    ],
)
def test_the_sampler_has_the_length_that_scripts_of_torch_read(
    shards: list[Path], kwargs: dict[str, Any], world_size: int, samples: int
) -> None:
    with loader(shards, 16, world={"rank": 0, "world_size": world_size}, **kwargs) as batches:
        assert (len(batches.sampler), batches.batch_sampler) == (samples, None)
        with pytest.raises(LoaderError, match=r"the sampler of a GPULoader gives no ids: use output=\"dict\""):
            list(batches.sampler)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({}, "GPULoader(40 samples, 5 steps of 8, cpu, recipe"),
        ({"shuffle": True, "world": {"rank": 1, "world_size": 2}}, "shuffle full, last batch partial, rank 1 of 2"),
        ({"shuffle": lambda epoch: range(40)}, "shuffle a function, last batch"),
        ({"sampling": {"weights": "balanced"}}, "shuffle by weights, last batch"),
    ],
)
def test_a_loader_shows_what_it_runs(shards: list[Path], kwargs: dict[str, Any], says: str) -> None:
    with loader(shards, **kwargs) as batches:
        assert says in repr(batches)


@pytest.mark.parametrize(("given", "device"), [("auto", GPU), (GPU, GPU), ("cuda", GPU), (None, None), ("cpu", None)])
def test_what_is_no_loader_chooses_its_device_as_a_loader_does(given: Any, device: int | None) -> None:  # noqa: ANN401
    with gpu_graph():
        assert resolve_own_device(given) == device
    if device is None or given == "auto":  # on a machine without a GPU
        assert torch.cuda.is_available() or resolve_own_device(given) is None


def test_in_a_worker_process_auto_is_the_cpu() -> None:
    with gpu_graph():
        [found] = DataLoader(["auto"], batch_size=None, num_workers=1, collate_fn=resolve_own_device)
    assert found is None
