"""What `bench` gives back: its structure. Figures are not tested, they are the machine's."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from making import damaged_jpeg, jpeg, write_decoded, write_shard
from PIL import Image

from gpuloader import BadImages, GPULoader, World
from gpuloader.errors import BadImageError, ConfigError
from gpuloader.tools.bench import bench
from gpuloader.tools.bench_result import BenchResult
from gpuloader.tools.machine import this_machine

SECONDS = 0.1
SMALL = {"Resize": {"size": 40}, "CenterCrop": {"size": 32}}


@pytest.fixture(scope="module")
def measured(shards: list[Path]) -> BenchResult:
    return bench(shards, 8, None, preset={"imagenet_eval": SMALL}, seconds=SECONDS)


def stages(result: BenchResult) -> list[str]:
    [device] = result.devices
    return [figures.stage for figures in device.stages]


def test_every_stage_is_measured_and_the_shares_add_up(measured: BenchResult) -> None:
    assert stages(measured) == ["read", "gate", "decode", "resize", "loader"]
    [cpu] = measured.devices
    assert cpu.device == "cpu"
    assert cpu.num_threads == measured.machine.cores
    assert min(figures.images_per_second for figures in cpu.stages) > 0
    assert min(figures.cpu_seconds_per_1000 for figures in cpu.stages) > 0
    assert sum(figures.cpu_share for figures in cpu.stages) == pytest.approx(1)
    assert cpu.limit.endswith(".")


def test_a_node_reads_its_share_of_the_shards(shards: list[Path]) -> None:
    world = World(0, 4, local_world_size=2)
    for shuffle, share in (("full", 1.0), ("shards", 0.5)):
        data = bench(
            shards, 4, None, preset={"imagenet_eval": SMALL}, seconds=SECONDS, shuffle=shuffle, world=world
        ).data
        assert data.node_bytes / data.shard_bytes == pytest.approx(share, rel=0.01)


def test_the_facts_are_those_of_the_shards_and_the_call(measured: BenchResult, shards: list[Path]) -> None:
    data = measured.data
    assert (data.shards, data.images, data.decoded, data.fits_in_memory) == (2, 40, False, True)
    assert (data.jpegs, data.seekable) == (40, 0)
    assert data.node_bytes == data.shard_bytes == sum(shard.stat().st_size for shard in shards)
    assert measured.settings["batch_size"] == 8
    assert list(measured.settings["preset"]) == ["imagenet_eval"]
    assert measured.machine == this_machine()
    assert measured.machine.versions["gpuloader"]


@pytest.mark.parametrize("preset", ["imagenet_randaugment", "resnet50_v2", "dino"])
def test_recipes_that_change_pixels_have_a_stage_for_it(shards: list[Path], preset: str) -> None:
    overrides = {"mix": {"num_classes": 10}} if preset == "resnet50_v2" else None
    result = bench(shards, 8, None, preset={preset: overrides}, seconds=SECONDS)
    assert stages(result) == ["read", "gate", "decode", "resize", "pixels", "loader"]


def test_decoded_images_are_not_decoded(shards: list[Path], tmp_path: Path) -> None:
    result = bench(write_decoded(tmp_path, shards), 8, None, seconds=SECONDS)
    assert result.data.decoded
    assert stages(result) == ["read", "gate", "resize", "loader"]


@pytest.mark.parametrize("arguments", [{"output": "dict", "fields": ["json"]}, {"label_from": None}])
def test_the_loaders_arguments_are_taken(shards: list[Path], arguments: dict[str, object]) -> None:
    arguments = {"preset": {"imagenet_eval": SMALL}, **arguments}
    assert stages(bench(shards, 8, None, seconds=SECONDS, **arguments))[-1] == "loader"


@pytest.mark.parametrize("image", [damaged_jpeg(), b"no image"])
def test_a_bad_image_is_named_and_can_be_left_out(image: bytes, tmp_path: Path) -> None:
    samples = [{"__key__": f"{n}", "jpg": image if n == 3 else jpeg(40, 40, n), "cls": b"0"} for n in range(8)]
    shard = write_shard(tmp_path / "a.tar", samples)
    with pytest.raises(BadImageError) as caught:
        bench(shard, 4, None, seconds=SECONDS)
    assert caught.value.key == "3"
    bad = tmp_path / "bad.jsonl"
    with GPULoader(shard, 4, None, on_error="replace") as loader:
        list(loader)
        loader.write_quarantine(bad)
    for preset in ("cifar10", "cifar10_eval"):
        measured = bench(shard, 4, None, seconds=SECONDS, preset=preset, on_error=BadImages(known=bad))
        assert stages(measured)[-1] == "loader"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 41}, "batch_size=41: the shards have 40 samples; give at most that"),
        ({"seconds": 0}, "seconds=0: allowed is a number above 0"),
        ({"plot": "/no/such/a.png"}, "/no/such/a.png: there is no folder /no/such"),
    ],
)
def test_mistakes(shards: list[Path], arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench(shards, **{"batch_size": 8, "device_id": None, "seconds": SECONDS, **arguments})


def test_the_plot_is_written(shards: list[Path], tmp_path: Path) -> None:
    bench(shards, 8, None, seconds=SECONDS, plot=tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 10


def test_without_matplotlib_the_extra_is_named(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"matplotlib, which is not installed: pip install 'gpuloader\[plot\]'"):
        bench(shards, 8, None, seconds=SECONDS, plot=tmp_path / "a.png")


def test_a_folder_is_measured_as_shards_are(folder: Path, measured: BenchResult) -> None:
    result = bench(folder, 8, None, preset={"imagenet_eval": SMALL}, seconds=SECONDS)
    assert stages(result) == stages(measured)
    size = result.data.shard_bytes
    assert result.data == replace(measured.data, shards=1, shard_bytes=size, node_bytes=size)
