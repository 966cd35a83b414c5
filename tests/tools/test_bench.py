"""What `bench` gives back: its structure. Figures are not tested, they are the machine's."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import damaged_jpeg, encoded, jpeg, write_decoded, write_shard
from numpy.typing import NDArray
from PIL import Image

from gpuloader import BadImages, Decoder, GPULoader, World
from gpuloader import transforms as T
from gpuloader.errors import BadImageError, ConfigError
from gpuloader.loading.loader import run_of
from gpuloader.loading.run import Run
from gpuloader.pack.packing import pack
from gpuloader.recipe import Recipe
from gpuloader.tools.bench import bench, find_mipmaps, find_smaller
from gpuloader.tools.bench_result import BenchResult, SmallerFacts
from gpuloader.tools.limits import Cost, limit_of
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


def busy(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    ends = time.process_time() + 0.02
    while time.process_time() < ends:
        pass
    return image


def test_own_code_is_a_stage_whose_processes_count_and_limits_if_it_is_slow(shards: list[Path]) -> None:
    recipe = Recipe([T.CenterCrop(32), T.Apply(busy)])
    result = bench(shards, 8, None, preset=recipe, seconds=1, decoder=Decoder(2, processes=1))
    assert stages(result) == ["read", "gate", "decode", "resize", "own code", "loader"]
    figures = {each.stage: each for each in result.devices[0].stages}
    assert figures["resize"].cpu_seconds_per_1000 < 10
    for stage in ("own code", "loader"):
        assert figures[stage].cpu_seconds_per_1000 > 10  # of 20, because a batch may have been ready before
        assert figures[stage].images_per_second < 100
    costs = {stage: Cost(1000 / each.images_per_second, each.cpu_seconds_per_1000) for stage, each in figures.items()}
    assert limit_of(costs, on_gpu=False)[0] == "own code"
    limit = result.devices[0].limit
    assert ("Own code is the bottleneck" in limit and "Decoder(processes=...)" in limit) or "contradict" in limit


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


# --- smaller copies


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pictures of 300 x 300 pixels, with copies or without, beside half as many of 60 x 60; and of other sides."""
    folder = tmp_path_factory.mktemp("squares")

    def write(name: str, sides: list[int]) -> Path:
        files = {side: encoded(Image.new("RGB", (side, side), "red"), "JPEG") for side in sides}
        samples = [{"__key__": f"{n}", "jpg": files[side], "cls": b"0"} for n, side in enumerate(sides)]
        return write_shard(folder / f"{name}.tar", samples)

    sides = {"plain": [300, 300, 60], "large": [1280], "medium": [1279], "eighths": [320, 320, 320, 60]}
    made = {name: write(name, each) for name, each in sides.items()}
    pack(made["plain"], folder / "packed", mipmaps=(96, 48), shuffle=False, workers=1)
    [made["packed"]] = (folder / "packed").glob("*.tar")
    return made


BY_RECIPE = "`oversampling: 1.5` in the recipe"
BY_PACK = "`gpuloader pack --mipmaps 1024,512`"


@pytest.mark.parametrize(
    ("find", "data", "side", "oversampling", "expected"),
    [
        (find_mipmaps, "packed", 24, 1.5, SmallerFacts("", 2 / 3, (2 * 48**2 + 60**2) / (2 * 300**2 + 60**2))),
        (find_mipmaps, "packed", 24, 4, SmallerFacts("", 2 / 3, (2 * 96**2 + 60**2) / (2 * 300**2 + 60**2))),
        (find_mipmaps, "packed", 80, 1.5, SmallerFacts("", 0, 1)),  # as 120 pixels are needed
        (find_mipmaps, "packed", 24, None, SmallerFacts(BY_RECIPE, 2 / 3, (2 * 48**2 + 60**2) / (2 * 300**2 + 60**2))),
        (find_mipmaps, "packed", 24, "off", None),
        (find_mipmaps, "packed", 80, None, None),
        (find_mipmaps, "large", 224, None, SmallerFacts(f"{BY_PACK} and {BY_RECIPE}", 1, (512 / 1280) ** 2)),
        (find_mipmaps, "large", 400, None, SmallerFacts(f"{BY_PACK} and {BY_RECIPE}", 1, (1024 / 1280) ** 2)),
        (find_mipmaps, "large", 224, 3, SmallerFacts(BY_PACK, 1, (1024 / 1280) ** 2)),
        (find_mipmaps, "large", 800, None, None),
        (find_mipmaps, "medium", 224, None, None),
        (find_mipmaps, "plain", 24, None, None),
        (find_smaller, "eighths", 40, None, SmallerFacts(BY_RECIPE, 3 / 4, (3 * 80**2 + 60**2) / (3 * 320**2 + 60**2))),
        (find_smaller, "eighths", 40, 1.5, SmallerFacts("", 3 / 4, (3 * 80**2 + 60**2) / (3 * 320**2 + 60**2))),
        (find_smaller, "eighths", 40, 3, SmallerFacts("", 3 / 4, (3 * 160**2 + 60**2) / (3 * 320**2 + 60**2))),
        (find_smaller, "eighths", 20, 1.5, SmallerFacts("", 1, (3 * 40**2 + 30**2) / (3 * 320**2 + 60**2))),
        (find_smaller, "eighths", 40, "off", None),
        (find_smaller, "eighths", 300, None, None),
    ],
)
def test_what_smaller_pictures_save_is_known_from_the_draws(
    squares: dict[str, Path],
    find: Callable[[Run], SmallerFacts | None],
    data: str,
    side: int,
    oversampling: Any,  # noqa: ANN401
    expected: SmallerFacts | None,
) -> None:
    preset = Recipe([T.Resize(side), T.CenterCrop(side)], oversampling=oversampling)
    with GPULoader(squares[data], 2, None, preset=preset) as loader:
        found = find(run_of(loader))
    if expected is None:
        assert found is None
    else:
        assert found == replace(expected, pixels=pytest.approx(expected.pixels))


def test_mipmaps_of_recipes_that_refuse_them_and_of_decoded_images_are_left_out(
    squares: dict[str, Path], tmp_path: Path
) -> None:
    aliased = Recipe([T.Resize(24, antialias=False), T.CenterCrop(24)])
    for tar, preset in ((squares["packed"], aliased), (write_decoded(tmp_path, [squares["large"]]), "imagenet_eval")):
        with GPULoader(tar, 1, None, preset=preset) as loader:
            assert find_mipmaps(run_of(loader)) is None
