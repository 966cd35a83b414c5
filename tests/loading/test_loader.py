"""GPULoader on the CPU: batches, epochs, ranks, state, bad images, life cycle."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_images import TIFF
from lifecycles import left_behind, threads_and_files
from making import SIZES, damaged_jpeg, jpeg, tar_by_command, write_samples, write_shard
from running import draw, run_graph, run_views
from webdataset import tariterators

from gpuloader import (
    BadImageError,
    BadImages,
    ConfigError,
    Decoder,
    DeviceError,
    GPULoader,
    LabelError,
    LoaderError,
    NoSamplesError,
    PresetError,
    Sampling,
    ShardChangedError,
    ShardNotFoundError,
    StateError,
    Stats,
    TarError,
    TooManyBadImagesError,
    World,
)
from gpuloader.helpers.cores import available_cores
from gpuloader.pipelines import build, is_decode_failure
from gpuloader.plan import Cursor, Draws, Plan, Stream
from gpuloader.recipe import Preset, View
from gpuloader.recipe.colors import ColorJitter
from gpuloader.recipe.crops import RandomHorizontalFlip, RandomResizedCrop
from gpuloader.recipe.output import Normalize

SMALL = {"RandomResizedCrop": {"size": 32}}
SAMPLES = 40
CUT = jpeg(64, 64)[:-30]
CUT_TIFF = TIFF[:-1000]  # the gate lets it pass, and only windows that need the last rows fail


def loader(tar: Any, batch_size: int = 8, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    return GPULoader(tar, batch_size, None, **{"preset": {"imagenet_train": SMALL}, **kwargs})


def evaluation(tar: Any, batch_size: int = 8, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    overrides = {"CenterCrop": {"size": 32}, "Resize": {"size": 36}}
    return loader(tar, batch_size, preset={"imagenet_eval": overrides}, **kwargs)


def by_webdataset(shards: Iterable[Path]) -> list[dict[str, Any]]:
    """The samples as webdataset reads them, in order."""
    samples = []
    for shard in shards:
        with shard.open("rb") as stream:
            samples += list(
                tariterators.group_by_keys(tariterators.tar_file_expander([{"url": str(shard), "stream": stream}]))
            )
    return samples


def indices(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_samples(tmp_path_factory.mktemp("shards"), SAMPLES)


def spoilt(folder: Path, bad: dict[int, bytes], count: int = SAMPLES) -> Path:
    """A shard in which some images are other bytes."""
    images = [bad.get(i, jpeg(*SIZES[i % len(SIZES)], seed=i)) for i in range(count)]
    samples = [{"__key__": f"{i:06d}", "jpg": image, "cls": b"%d" % (i % 10)} for i, image in enumerate(images)]
    return write_shard(folder / "spoilt.tar", samples)


# --- batches


def test_a_batch_is_images_and_labels(shards: list[Path]) -> None:
    with loader(shards) as batches:
        assert batches.device == torch.device("cpu")
        for images, labels in batches:
            assert images.shape == (8, 3, 32, 32)
            assert images.dtype == torch.float32
            assert images.device == labels.device == batches.device
            assert labels.shape == (8,)
            assert labels.dtype == torch.int64


def test_every_key_and_label_is_webdatasets(shards: list[Path]) -> None:
    expected = by_webdataset(shards)
    with loader(shards, output="dict", last_batch="partial") as batches:
        seen = 0
        for batch in batches:
            for key, label, index in zip(batch["key"], batch["label"].tolist(), batch["index"].tolist(), strict=True):
                assert key == expected[index]["__key__"]
                assert label == int(expected[index]["cls"])
                seen += 1
    assert seen == SAMPLES


def test_shards_made_by_tar_are_read_as_webdataset_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    for i in range(12):
        path = folder / f"class{i % 3}" / (f"photo.{i}.JPG" if i % 2 else f"photo{i}.jpeg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(40, 50, seed=i))
    tar = tar_by_command(folder, tmp_path / "train.tar")
    expected = [sample["__key__"] for sample in by_webdataset([tar]) if {"jpg", "jpeg"} & set(sample)]
    with evaluation(tar, 5, output="dict", label_from="folder") as batches:
        delivered = [
            (key, label) for batch in batches for key, label in zip(batch["key"], batch["label"].tolist(), strict=True)
        ]
        assert batches.classes == ("class0", "class1", "class2")
    assert [key for key, _ in delivered] == expected
    assert [f"class{label}" for _, label in delivered] == [key.split("/")[1] for key in expected]


def test_the_pixels_are_those_of_the_sample_its_epoch_and_its_draws(shards: list[Path]) -> None:
    images = [sample["jpg"] for sample in by_webdataset(shards)]
    with loader(shards, output="dict") as batches:
        batches.set_epoch(3)
        for batch in batches:
            expected = run_graph(batches.preset, images, draw(batches.preset, images, epoch=3))
            assert torch.equal(batch["image"], expected[batch["index"]])


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_dtype_and_memory_format_are_the_recipes(shards: list[Path], dtype: str, layout: str) -> None:
    overrides = {**SMALL, "dtype": dtype, "layout": layout, "Normalize": None}
    with loader(shards, preset={"imagenet_train": overrides}) as batches:
        images, _ = next(iter(batches))
    assert images.shape == (8, 3, 32, 32)
    assert images.dtype == getattr(torch, dtype)
    assert images.is_contiguous(
        memory_format=torch.channels_last if layout == "channels_last" else torch.contiguous_format
    )


def test_a_batch_stays_as_it_is_while_it_is_held(shards: list[Path]) -> None:
    with evaluation(shards, 4) as batches:
        held = [(images, images.clone()) for _ in range(3) for images, _ in batches]
    gc.collect()
    assert all(torch.equal(images, copy) for images, copy in held)


@pytest.mark.parametrize(
    ("label_from", "expected"),
    [("cls", [i % 10 for i in range(8)]), ("json:label", [i % 10 for i in range(8)]), (None, None)],
)
def test_labels_come_from_where_label_from_says(
    shards: list[Path], label_from: str | None, expected: list[int] | None
) -> None:
    with evaluation(shards, label_from=label_from) as batches:
        _, labels = next(iter(batches))
    assert (labels if expected is None else labels.tolist()) == expected


def test_fields_come_beside_the_image(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    file = tmp_path / "a.npy"
    np.save(file, array)
    sample = {
        "jpg": jpeg(40, 40),
        "json": b'{"a": [1]}',
        "txt": "grüße".encode(),
        "npy": file.read_bytes(),
        "bin": b"\0\1",
    }
    tar = write_shard(tmp_path / "a.tar", [{"__key__": f"{i}", **sample} for i in range(2)])
    with evaluation(tar, 2, label_from=None, output="dict", fields=("json", "txt", ".npy", "bin")) as batches:
        batch = next(iter(batches))
    assert batch["json"] == [{"a": [1]}] * 2
    assert batch["txt"] == ["grüße"] * 2
    assert batch["bin"] == [b"\0\1"] * 2
    np.testing.assert_array_equal(batch["npy"][1], array)


# --- epochs, ranks


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("last_batch", ["pad", "partial"])
def test_every_sample_exactly_once_in_an_epoch_over_all_ranks(
    shards: list[Path], world_size: int, last_batch: str
) -> None:
    delivered, steps = [], set()
    for rank in range(world_size):
        with loader(shards, 3, world=World(rank, world_size), last_batch=last_batch, output="dict") as batches:
            epoch = list(batches)
            steps.add((len(epoch), len(batches)))
            for batch in epoch:
                assert batch["image"].shape[0] == len(batch["key"]) == len(batch["valid"])
                delivered += batch["index"][batch["valid"]].tolist()
    assert sorted(delivered) == list(range(SAMPLES))
    assert steps == {(-(-SAMPLES // (3 * world_size)),) * 2}


def test_a_rank_without_a_sample_left_gets_an_empty_batch(shards: list[Path]) -> None:
    with evaluation(shards, 13, world=World(0, 3)) as batches:  # 40 = 39 + 1
        for _ in range(2):
            assert [len(images) for images, _ in batches] == [13, 0]
    with evaluation(shards, 13, world=World(2, 3)) as batches:
        assert [images.shape for images, _ in batches] == [(13, 3, 32, 32), (1, 3, 32, 32)]


def test_a_rank_that_never_gets_a_sample_gets_its_empty_batches(shards: list[Path], tmp_path: Path) -> None:
    five = write_samples(tmp_path, 5, shards=1)
    with evaluation(five, 1, world=World(0, 8)) as batches:
        for _ in range(3):
            assert [images.shape for images, _ in batches] == [(0, 3, 32, 32)]


def test_set_epoch_within_an_epoch_says_what_comes_after_it(shards: list[Path]) -> None:
    with loader(shards, output="dict") as batches:
        whole = {epoch: indices(batches) for epoch in range(6)}
        batches.set_epoch(0)
        seen = []
        for step, batch in enumerate(batches):
            seen.append(batch["index"].tolist())
            if step == 2:
                batches.set_epoch(5)
        assert seen == whole[0]
        assert indices(batches) == whole[5]


def test_epochs_follow_the_plan_and_a_loader_can_be_iterated_again(shards: list[Path]) -> None:
    with loader(shards, output="dict", seed=5) as batches:
        epochs = [indices(batches) for _ in range(3)]
        batches.set_epoch(1)
        assert indices(batches) == epochs[1]
        assert indices(batches) == epochs[2]
    plan = Plan(SAMPLES, 8, seed=5)
    assert epochs[2][1] == plan.batch(plan.after(Cursor(2))).ids.tolist()
    assert len({tuple(map(tuple, epoch)) for epoch in epochs}) == 3


def test_leaving_early_begins_the_next_epoch_next_time(shards: list[Path]) -> None:
    with loader(shards, output="dict") as batches:
        whole = [indices(batches) for _ in range(2)]
        batches.set_epoch(0)
        for _ in batches:
            break
        assert indices(batches) == whole[1]


def test_an_older_iterator_is_refused_after_a_newer_one_began(shards: list[Path]) -> None:
    with loader(shards) as batches:
        older = iter(batches)
        next(older)
        newer = iter(batches)
        next(newer)
        with pytest.raises(LoaderError, match="a newer one was begun"):
            next(older)
        assert len(list(newer)) == 4


def test_an_epoch_begins_with_its_first_batch_not_where_an_iterator_is_made(shards: list[Path]) -> None:
    with loader(shards, output="dict") as batches:
        iter(batches)  # as trainers do that look at a loader first
        unused, used = iter(batches), iter(batches)
        assert batches.state_dict()["epoch"] == 0
        first = [batch["index"].tolist() for batch in used]
        assert [batch["index"].tolist() for batch in unused] == indices_of(shards, epoch=1)
    assert first == indices_of(shards, epoch=0)


def indices_of(shards: list[Path], epoch: int) -> list[list[int]]:
    plan, cursor, steps = Plan(SAMPLES, 8), Cursor(epoch), []
    while cursor.epoch == epoch and plan.steps(cursor.delivered):
        steps.append(plan.batch(cursor).ids.tolist())
        cursor = plan.after(cursor)
    return steps


def test_a_finished_iterator_stays_finished(shards: list[Path]) -> None:
    with loader(shards) as batches:
        epoch = iter(batches)
        assert len(list(epoch)) == 5
        assert list(epoch) == []


def test_the_next_epoch_is_read_while_the_last_batch_is_used(shards: list[Path]) -> None:
    with loader(shards, output="dict") as batches:
        for _ in batches:
            pass
        stream = batches._stream
        first = next(iter(batches))
        assert batches._stream is stream  # the same pipeline runs on: nothing was begun again
        assert stream is not None
        assert {batch.cursor.epoch for batch in stream._feed.in_flight} == {1}
    assert first["index"].tolist() == Plan(SAMPLES, 8).batch(Cursor(1)).ids.tolist()


def test_steps_per_epoch_ends_every_epoch(shards: list[Path]) -> None:
    with loader(shards, sampling=Sampling(steps_per_epoch=2)) as batches:
        assert [len(list(batches)) for _ in range(3)] == [2, 2, 2] == [len(batches)] * 3


def test_the_ranks_come_from_torchruns_environment(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with evaluation(shards, output="dict") as batches:
        assert (batches.world.rank, batches.world.world_size, batches.world.local_rank) == (1, 2, 1)
        assert indices(batches)[0] == list(range(8, 16))


@pytest.mark.parametrize("processes", [1, 2, 1000])
def test_processes_that_torchrun_starts_on_a_machine_share_its_cores(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    with evaluation(shards) as batches:
        assert batches.run.num_threads == max(1, available_cores() // processes)
    with evaluation(shards, decoder=Decoder(num_threads=3)) as batches:
        assert batches.run.num_threads == 3


def test_ranks_whose_loaders_differ_all_fail_and_say_how(shards: list[Path], tmp_path: Path) -> None:
    script = (
        "import sys; import torch.distributed as dist\n"
        "from gpuloader import ConfigError, GPULoader, MixedLoader, World\n"
        "from gpuloader.helpers.cores import available_cores\n"
        "meeting, rank, *tar = sys.argv[1:]\n"
        "dist.init_process_group('gloo', init_method=f'file://{meeting}', rank=int(rank), world_size=2)\n"
        "loader = GPULoader(tar, 4, None); loader.close()\n"
        "assert loader.world.local_world_size == 2 and loader.run.num_threads == max(1, available_cores() // 2)\n"
        "GPULoader(tar, 4, None, world=World(0, 1), seed=int(rank)).close()\n"  # each for itself
        "try: GPULoader(tar, 4 + int(rank), None, seed=int(rank))\n"
        "except ConfigError as error: print(error)\n"
        "loaders = {name: GPULoader(tar, 4, None, sampling={'subset': range(int(name), 40)}) for name in '01'}\n"
        "MixedLoader(loaders)\n"
        "try: MixedLoader(loaders, 'weighted', weights={'0': 1, '1': 2 + int(rank)})\n"
        "except ConfigError as error: print(error)\n"
        "try: GPULoader(tar, 4, None, sampling={'weights': [1] * 39 + [1 + int(rank)]})\n"
        "except ConfigError as error: print(str(error).partition('\"')[0])"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "meeting")]
    ranks = [
        subprocess.Popen([*command, str(rank), *map(str, shards)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = (
        "the loaders of the ranks differ: seed=0 on ranks [0]; seed=1 on ranks [1]; "
        "batch_size=4 on ranks [0]; batch_size=5 on ranks [1]\n"
        'the loaders of the ranks differ: weights={"0": 1.0, "1": 2.0} on ranks [0]; '
        'weights={"0": 1.0, "1": 3.0} on ranks [1]\n'
        "the loaders of the ranks differ: sampling=\n"
    )
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == [said, said]


# --- views


TWO_SIZES = Preset(
    views=[
        View([RandomResizedCrop(32), RandomHorizontalFlip(), Normalize((0.5,) * 3, (0.2,) * 3)]),
        View([RandomResizedCrop((16, 24)), ColorJitter(0.4)], count=2),
    ],
    shuffle="full",
    last_batch="drop",
)


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("output", ["tuple", "dict"])
def test_several_views_are_a_list_of_tensors(shards: list[Path], output: str, layout: str) -> None:
    overrides = {"layout": layout}
    images = [sample["jpg"] for sample in by_webdataset(shards)]
    with loader(shards, preset={TWO_SIZES: overrides}, output=output) as batches:
        expected = run_views(batches.preset, images)
        order = Plan(SAMPLES, 8)
        cursor, memory_format = Cursor(), torch.channels_last if layout == "channels_last" else torch.contiguous_format
        for batch in batches:
            views, labels = batch if output == "tuple" else (batch["image"], batch["label"])
            ids = order.batch(cursor).ids
            assert isinstance(views, list)
            assert [tuple(view.shape) for view in views] == [(8, 3, 32, 32), (8, 3, 16, 24), (8, 3, 16, 24)]
            for view, theirs in zip(views, expected, strict=True):
                assert view.is_contiguous(memory_format=memory_format)
                assert torch.equal(view, theirs[ids])
            assert labels.tolist() == (ids % 10).tolist()
            cursor = order.after(cursor)


def test_views_of_a_rank_without_a_sample_are_empty(tmp_path: Path) -> None:
    five = write_samples(tmp_path, 5, shards=1)
    kwargs = {"preset": TWO_SIZES, "last_batch": "partial", "world": {"rank": 0, "world_size": 8}}
    with loader(five, 1, **kwargs) as batches:
        for views, labels in batches:
            assert [tuple(view.shape) for view in views] == [(0, 3, 32, 32), (0, 3, 16, 24), (0, 3, 16, 24)]
            assert labels.shape == (0,)


# --- mixing

MIX = {"num_classes": 10, "mixup_alpha": 0.8, "cutmix_alpha": 1.0, "per": "sample", "label_smoothing": 0.1}


def mixed(tar: Any, batch_size: int = 8, mix: dict[str, Any] = MIX, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    settings = {"output": "dict", "last_batch": "pad", "preset": {"imagenet_train": {**SMALL, "mix": mix}}, **kwargs}
    return loader(tar, batch_size, **settings)


def by_sample(batches: Iterable[Any]) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """The images and labels of the valid rows, by the samples' numbers."""
    return {
        index: (image, label)
        for batch in batches
        for index, valid, image, label in zip(
            batch["index"].tolist(), batch["valid"].tolist(), batch["image"], batch["label"], strict=True
        )
        if valid
    }


def equal(one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_mixed_samples_are_the_mix_of_the_two_unmixed_ones(shards: list[Path], dtype: str, layout: str) -> None:
    plain = {**SMALL, "dtype": dtype, "layout": layout}
    cut = []
    with (
        loader(shards, output="dict", preset={"imagenet_train": plain}) as unmixed,
        mixed(shards, last_batch="drop", preset={"imagenet_train": {**plain, "mix": MIX}}) as batches,
    ):
        for batch, before in zip(batches, unmixed, strict=True):
            assert batch["index"].tolist() == before["index"].tolist()
            assert batch["image"].dtype == getattr(torch, dtype)
            assert batch["label"].shape == (8, 10)
            assert batch["label"].dtype == torch.float32
            torch.testing.assert_close(batch["label"].sum(1), torch.ones(8))
            how = batches.preset.mix.draw(Draws(0, 0, before["index"].numpy()).of(Stream.MIX), 32, 32)
            images = before["image"].double()
            for row, (weight, box) in enumerate(zip(how.weight.tolist(), how.box.tolist(), strict=True)):
                expected, other, (top, left, bottom, right) = images[row].clone(), images[row ^ 1], box
                if bottom:
                    expected[:, top:bottom, left:right] = other[:, top:bottom, left:right]
                else:
                    expected = weight * expected + (1 - weight) * other
                tolerance = 1e-6 if dtype == "float32" else 4e-3
                torch.testing.assert_close(batch["image"][row].double(), expected, atol=tolerance, rtol=0)
                shares = torch.full((10,), 0.01)
                shares[before["label"][row]] += 0.9 * weight
                shares[before["label"][row ^ 1]] += 0.9 * (1 - weight)
                torch.testing.assert_close(batch["label"][row], shares, atol=1e-6, rtol=0)
                cut.append(bottom > 0)
    assert 0 < sum(cut) < len(cut)


@pytest.mark.parametrize(("batch_size", "world_size"), [(2, 1), (4, 1), (2, 2), (8, 2), (2, 4), (4, 4)])
@pytest.mark.parametrize("samples", [40, 13])  # 13: the last one's neighbour is padding
def test_what_is_mixed_depends_on_neither_batch_nor_world_size(
    shards: list[Path], tmp_path: Path, samples: int, batch_size: int, world_size: int
) -> None:
    tar = shards if samples == SAMPLES else write_samples(tmp_path, samples)
    with mixed(tar) as batches:
        expected = by_sample(batches)
    got = {}
    for rank in range(world_size):
        with mixed(tar, batch_size, world=World(rank, world_size), decoder=Decoder(num_threads=1)) as batches:
            got |= by_sample(batches)
    assert sorted(got) == sorted(expected) == list(range(samples))
    assert all(equal(got[sample], expected[sample]) for sample in got)


@pytest.mark.parametrize(("batch_size", "world_size"), [(8, 1), (2, 1), (4, 2), (2, 4)])
def test_a_state_goes_on_with_the_same_mixes(shards: list[Path], batch_size: int, world_size: int) -> None:
    with mixed(shards, 4) as batches:
        expected = by_sample(batches)
        batches.set_epoch(0)
        epoch = iter(batches)
        done = by_sample([next(epoch), next(epoch), next(epoch)])
        state = json.loads(json.dumps(batches.state_dict()))
    left = {}
    for rank in range(world_size):
        with mixed(shards, batch_size, world=World(rank, world_size)) as resumed:
            resumed.load_state_dict(state)
            left |= by_sample(resumed)
    assert sorted([*done, *left]) == list(range(SAMPLES))
    assert all(equal(left[sample], expected[sample]) for sample in left)


def test_a_mix_for_the_batch_is_one_for_all_of_its_ranks(shards: list[Path]) -> None:
    mix = {"num_classes": 10, "mixup_alpha": 0.8, "per": "batch"}

    def weights(batch: dict[str, Any]) -> set[float]:
        """The own shares of samples whose neighbours are of other classes."""
        own = batch["index"] % 10
        shares = batch["label"][torch.arange(len(own)), own]
        return {round(share, 5) for share in shares[own != own.reshape(-1, 2).flip(1).flatten()].tolist()}

    with mixed(shards, 8, mix) as batches:
        whole = list(batches)
    assert [len(weights(batch)) for batch in whole] == [1] * 5
    assert len(set.union(*map(weights, whole))) == 5
    of_ranks = []
    for rank in range(2):
        with mixed(shards, 4, mix, world=World(rank, 2)) as batches:
            of_ranks.append(list(batches))
    for batch, *parts in zip(whole, *of_ranks, strict=True):
        assert torch.equal(torch.cat([part["image"] for part in parts]), batch["image"])
        assert torch.equal(torch.cat([part["label"] for part in parts]), batch["label"])


def test_another_epoch_mixes_otherwise(shards: list[Path]) -> None:
    for per in ("sample", "batch"):
        with mixed(shards, 8, {**MIX, "per": per}, shuffle="none") as batches:
            one, other = (by_sample(batches) for _ in range(2))
        assert not any(torch.equal(one[sample][1], other[sample][1]) for sample in range(SAMPLES))


def test_a_replacement_brings_its_label_into_the_mix(tmp_path: Path) -> None:
    tar = spoilt(tmp_path, {6: CUT})
    kwargs = {"on_error": "replace", "shuffle": "none"}
    with mixed(tar, 8, {"num_classes": 10, "mixup_alpha": 1.0}, **kwargs) as batches:
        batch = next(iter(batches))
    classes = {int(sample) % 10 for sample in batch["index"][6:8]}
    assert batch["index"][6] != 6
    assert batch["valid"].tolist() == [True] * 6 + [False, True]
    for row in (6, 7):
        assert set(batch["label"][row].nonzero().flatten().tolist()) == classes


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"batch_size": 7}, "batch_size=7: the recipe mixes neighbours, so allowed are even numbers"),
        ({"last_batch": "partial"}, 'last_batch="partial" would part neighbours .*: use "drop" or "pad"'),
        ({"label_from": None}, "the recipe mixes samples, and label_from=None gives no labels to mix"),
    ],
)
def test_what_cannot_be_mixed_is_refused(shards: list[Path], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mixed(shards, **kwargs)


@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_a_label_that_is_no_class_of_the_recipe_is_named_at_its_batch(tmp_path: Path, label: int) -> None:
    samples = [{"__key__": f"{i}", "jpg": jpeg(40, 40), "cls": b"%d" % (label if i == 5 else i % 3)} for i in range(8)]
    tar = write_shard(tmp_path / "a.tar", samples)
    message = rf"'5' in .*a\.tar has the label {label}, but the recipe's mix.num_classes is 3: set it"
    with mixed(tar, 2, {**MIX, "num_classes": 3}, shuffle="none") as batches:
        epoch = iter(batches)
        assert [next(epoch)["label"].shape for _ in range(2)] == [(2, 3)] * 2
        with pytest.raises(LabelError, match=message):
            next(epoch)


# --- sizes by epoch

GROWING = {"RandomResizedCrop": {"size": {0: 24, 1: 32, 3: 40}}}


def test_sizes_change_with_the_epoch_in_one_running_pipeline(shards: list[Path]) -> None:
    with loader(shards, preset={"imagenet_train": GROWING}) as batches:
        streams, sizes = set(), []
        for _ in range(5):
            sizes.append({tuple(images.shape[1:]) for images, _ in batches})
            streams.add(id(batches._stream))
        assert sizes == [{(3, size, size)} for size in (24, 32, 32, 40, 40)]
        assert len(streams) == 1
        batches.set_epoch(0)
        assert next(iter(batches))[0].shape == (8, 3, 24, 24)
        batches.set_epoch(1000)
        assert next(iter(batches))[0].shape == (8, 3, 40, 40)


def test_the_pixels_of_an_epoch_are_those_of_its_size(shards: list[Path]) -> None:
    with loader(shards, preset={"imagenet_train": GROWING}) as batches:
        batches.set_epoch(1)
        growing = [images for images, _ in batches]
    with loader(shards) as batches:
        batches.set_epoch(1)
        assert all(torch.equal(images, other) for (images, _), other in zip(batches, growing, strict=True))


def test_a_state_in_the_middle_of_an_epoch_goes_on_in_its_size(shards: list[Path]) -> None:
    with loader(shards, preset={"imagenet_train": GROWING}, output="dict") as batches:
        batches.set_epoch(2)
        epoch = iter(batches)
        next(epoch)
        state = batches.state_dict()
        expected = [*epoch, *batches]
    with loader(shards, preset={"imagenet_train": GROWING}, output="dict") as resumed:
        resumed.load_state_dict(state)
        got = [*resumed, *resumed]
    assert [batch["image"].shape[-1] for batch in got] == [32] * 4 + [40] * 5
    assert all(torch.equal(one["image"], other["image"]) for one, other in zip(got, expected, strict=True))


def test_empty_batches_have_the_size_of_their_epoch(tmp_path: Path) -> None:
    five = write_samples(tmp_path, 5, shards=1)
    kwargs = {"preset": {"imagenet_train": GROWING}, "last_batch": "partial", "world": {"rank": 0, "world_size": 8}}
    with loader(five, 1, **kwargs) as batches:
        shapes = [tuple(images.shape) for _ in range(4) for images, _ in batches]
    assert shapes == [(0, 3, size, size) for size in (24, 32, 32, 40)]


def test_a_mix_cuts_within_the_size_of_its_epoch(shards: list[Path]) -> None:
    mix = {"num_classes": 10, "cutmix_alpha": 1.0, "per": "sample"}
    overrides = {**GROWING, "mix": mix}
    with (
        mixed(shards, preset={"imagenet_train": overrides}) as batches,
        loader(shards, preset={"imagenet_train": GROWING}) as unmixed,
    ):
        for epoch in range(2):
            for batch, (before, _) in zip(batches, unmixed, strict=True):
                how = batches.preset.mix.draw(Draws(0, epoch, batch["index"].numpy()).of(Stream.MIX), *before.shape[2:])
                changed = (batch["image"] != before).any(1).sum((1, 2)) / before[0, 0].numel()
                torch.testing.assert_close(1 - changed, torch.from_numpy(how.weight), atol=2e-3, rtol=0)


# --- state


def rest(state: dict[str, Any], tar: Any, batch_size: int = 8, **kwargs: Any) -> list[Any]:  # noqa: ANN401
    with loader(tar, batch_size, output="dict", **kwargs) as batches:
        batches.load_state_dict(json.loads(json.dumps(state)))
        return list(batches)


def test_a_state_at_every_step_gives_the_rest_pixel_for_pixel(shards: list[Path]) -> None:
    with loader(shards, output="dict", preset="imagenet_train_jitter") as batches:
        batches.set_epoch(2)
        states, whole = [batches.state_dict()], []
        for batch in batches:
            states.append(batches.state_dict())
            whole.append(batch)
        after = batches.state_dict()
    for step, state in enumerate(states):
        remaining = rest(state, shards, preset="imagenet_train_jitter")
        assert len(remaining) == len(whole) - step
        for one, other in zip(remaining, whole[step:], strict=True):
            assert torch.equal(one["image"], other["image"])
            assert torch.equal(one["label"], other["label"])
            assert one["key"] == other["key"]
    assert (after["epoch"], after["delivered"]) == (3, 0)


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 5), (2, 8), (3, 3)])
def test_another_world_goes_on_with_what_is_left_and_the_same_pixels(
    shards: list[Path], world_size: int, batch_size: int
) -> None:
    with loader(shards, output="dict", last_batch="partial") as batches:
        whole = {int(i): image for batch in batches for i, image in zip(batch["index"], batch["image"], strict=True)}
        batches.set_epoch(0)
        epoch = iter(batches)
        done = [i for _ in range(3) for i in next(epoch)["index"].tolist()]
        state = batches.state_dict()
    left = {}
    for rank in range(world_size):
        for batch in rest(
            state,
            shards,
            batch_size,
            last_batch="partial",
            world=World(rank, world_size),
            decoder=Decoder(num_threads=1),
        ):
            left |= {int(i): image for i, image in zip(batch["index"], batch["image"], strict=True)}
    assert sorted([*done, *left]) == list(range(SAMPLES))
    assert all(torch.equal(image, whole[i]) for i, image in left.items())


def test_the_state_is_small_plain_and_the_same_on_every_rank(shards: list[Path], tmp_path: Path) -> None:
    states = []
    for rank in range(2):
        with loader(shards, world=World(rank, 2)) as batches:
            next(iter(batches))
            states.append(batches.state_dict())
    assert states[0] == states[1]
    assert states[0]["delivered"] == 16  # of both ranks, and none that was only prefetched
    assert len(json.dumps(states[0])) < 4096
    torch.save(states[0], tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == states[0]


def test_set_epoch_of_a_restored_epoch_does_not_begin_it_again(shards: list[Path]) -> None:
    with loader(shards, output="dict") as batches:
        next(iter(batches))
        state = batches.state_dict()
    with loader(shards) as resumed:
        resumed.load_state_dict(state)
        resumed.set_epoch(0)  # what every training loop does first
        assert len(list(resumed)) == len(resumed) - 1
        resumed.set_epoch(0)
        assert len(list(resumed)) == len(resumed)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"seed": 1}, "the state has seed=0, this loader has seed=1"),
        ({"shuffle": "block"}, "the state has shuffle='full', this loader has shuffle='block'"),
        (
            {"preset": {"imagenet_train": {"RandomResizedCrop": {"size": 48}}}},
            r"another recipe: transforms\[0\].RandomResizedCrop.size was 32, is 48. Make the loader as it was",
        ),
    ],
)
def test_a_state_of_another_run_is_refused(shards: list[Path], kwargs: dict[str, Any], message: str) -> None:
    with loader(shards) as batches:
        state = batches.state_dict()
    with loader(shards, **kwargs) as other, pytest.raises(StateError, match=message):
        other.load_state_dict(state)


def test_a_state_of_other_data_is_refused(shards: list[Path]) -> None:
    with loader(shards) as batches:
        state = batches.state_dict()
    with loader(shards[:1]) as other, pytest.raises(StateError, match="it had 2 shards, this loader has 1"):
        other.load_state_dict(state)
    with loader(shards) as same, pytest.raises(StateError, match="it lacks dataset, delivered, epoch"):
        same.load_state_dict({"version": 1, "seed": 0})


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"delivered": SAMPLES + 1}, "the state has delivered=41 in epoch 0: allowed is an integer in [0, 40]"),
        ({"delivered": True}, "the state has delivered=True in epoch 0: allowed"),
        ({"epoch": "0"}, "the state's epoch is '0': allowed is an integer in [0, 2**32]"),
        ({"epoch": -1}, "the state's epoch is -1: allowed"),
        ({"epoch": 2**32 + 1}, "the state's epoch is 4294967297: allowed"),
        # Behind the last epoch.
        (
            {"epoch": 2**32, "delivered": 1},
            "the state has delivered=1 in epoch 4294967296: allowed",
        ),
    ],
)
def test_a_state_of_a_place_that_no_run_has_is_refused(shards: list[Path], place: dict[str, Any], message: str) -> None:
    with loader(shards) as batches:
        before = batches.state_dict()
        with pytest.raises(StateError, match=re.escape(message)):
            batches.load_state_dict({**before, **place})
        assert batches.state_dict() == before


def test_the_end_of_the_last_epoch_is_a_place_where_no_batch_comes(shards: list[Path]) -> None:
    with loader(shards) as batches:
        batches.set_epoch(2**32 - 1)
        assert len(list(batches)) == len(batches)
        state = batches.state_dict()
    with loader(shards) as batches:
        batches.load_state_dict(state)
        assert batches.state_dict() == state
        with pytest.raises(ConfigError, match=r"epoch=4294967296: allowed is an integer in \[0, 2\*\*32\)"):
            next(iter(batches))
        batches.set_epoch(0)
        assert len(list(batches)) == len(batches)


@pytest.mark.parametrize("quarantine", [[[SAMPLES, "cut"]], [[-1, "cut"]], [["0", "cut"]], [[0]], [3], 3, None, "cut"])
def test_a_state_whose_quarantine_cannot_be_is_refused(shards: list[Path], quarantine: object) -> None:
    with (
        loader(shards) as same,
        pytest.raises(StateError, match=r"no list of \[sample, cause\] with samples among the 40"),
    ):
        same.load_state_dict({**same.state_dict(), "quarantine": quarantine})


# --- bad images


@pytest.mark.parametrize(
    ("bad", "cause"), [(CUT, "no end-of-image marker"), (damaged_jpeg(), "DALI's decoder fails on it"), (b"", "empty")]
)
def test_a_bad_image_is_named_after_the_batches_before_it(tmp_path: Path, bad: bytes, cause: str) -> None:
    tar = spoilt(tmp_path, {19: bad})
    with evaluation(tar, 4) as batches:
        epoch = iter(batches)
        for _ in range(4):
            next(epoch)
        with pytest.raises(BadImageError, match=cause) as caught:
            next(epoch)
        assert (caught.value.shard, caught.value.key) == (str(tar), "000019")
        with tar.open("rb") as file:
            file.seek(caught.value.offset)
            assert file.read(len(bad)) == bad
        assert batches.state_dict()["delivered"] == 16


def replaced(tar: Path, **kwargs: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    with loader(
        tar, output="dict", on_error=BadImages(replace=True, max_share=0.2), last_batch="partial", **kwargs
    ) as batches:
        return list(batches)


def test_replace_trains_on_with_the_same_replacements_however_the_run_is_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = {3: CUT, 4: damaged_jpeg(), 17: b"<html>", 39: damaged_jpeg()}
    tar = spoilt(tmp_path, bad)
    batches = replaced(tar)
    images = {}
    for batch in batches:
        for i, valid, image in zip(batch["index"].tolist(), batch["valid"].tolist(), batch["image"], strict=True):
            assert i not in bad
            if valid:
                images[i] = image
    assert sorted(images) == sorted(set(range(SAMPLES)) - set(bad))
    assert sum((~batch["valid"]).sum().item() for batch in batches) == len(bad)
    for key in ("000003", "000004", "000017", "000039"):
        assert sum(f"'{key}'" in record.getMessage() for record in caplog.records) == 1

    flat = [(i, image) for batch in batches for i, image in zip(batch["index"].tolist(), batch["image"], strict=True)]
    other = [replaced(tar, batch_size=4, world=World(rank, 2), decoder=Decoder(num_threads=1)) for rank in range(2)]
    merged = [
        (i, image)
        for step in zip(*other, strict=True)
        for batch in step
        for i, image in zip(batch["index"].tolist(), batch["image"], strict=True)
    ]
    assert [i for i, _ in merged] == [i for i, _ in flat]
    assert all(torch.equal(one, two) for (_, one), (_, two) in zip(merged, flat, strict=True))


def test_the_replacement_is_the_first_good_sample_that_the_plan_draws(tmp_path: Path) -> None:
    tar = spoilt(tmp_path, {7: CUT})
    draws = Draws(0, 0, np.array([7])).uniform(Stream.REPLACEMENT, 100)[0]
    expected = next(sample for sample in np.floor(draws * SAMPLES).astype(int).tolist() if sample != 7)
    with evaluation(tar, 8, output="dict", on_error=BadImages(replace=True, max_share=0.1)) as batches:
        first = next(iter(batches))
    assert first["index"].tolist() == [0, 1, 2, 3, 4, 5, 6, expected]
    assert first["label"].tolist()[-1] == expected % 10
    assert first["valid"].tolist() == [True] * 7 + [False]


def test_a_resumed_run_knows_its_quarantine(tmp_path: Path) -> None:
    tar = spoilt(tmp_path, {2: damaged_jpeg(), 30: CUT})
    with evaluation(tar, 8, output="dict", on_error=BadImages(replace=True, max_share=0.1)) as batches:
        whole, states = [], []
        for batch in batches:
            whole.append(batch)
            states.append(batches.state_dict())
        assert set(batches.stats().bad) == {2, 30}
    assert [sample for sample, _ in states[0]["quarantine"]] == [2]  # 30 may have been read, but was not handed out
    with evaluation(tar, 8, output="dict", on_error=BadImages(replace=True, max_share=0.1)) as resumed:
        resumed.load_state_dict(states[1])
        assert set(resumed.stats().bad) == {2}
        for one, other in zip(resumed, whole[2:], strict=True):
            assert torch.equal(one["image"], other["image"])
        assert resumed.state_dict()["quarantine"] == states[-1]["quarantine"]


def test_what_one_run_found_bad_the_next_one_leaves_out_from_the_start(tmp_path: Path) -> None:
    tar, file = spoilt(tmp_path, {2: damaged_jpeg(), 30: CUT}), tmp_path / "bad.jsonl"
    with evaluation(tar, output="dict", on_error=BadImages(replace=True, max_share=0.1)) as first:
        batches = list(first)
        first.write_quarantine(file)
        state = first.state_dict()
    with evaluation(
        tar, output="dict", on_error=BadImages(known=file)
    ) as second:  # bad images are errors here, but not those
        for one, other in zip(batches, second, strict=True):
            assert torch.equal(one["image"], other["image"])
            assert one["valid"].tolist() == other["valid"].tolist()
        assert second.stats().bad == {}
        second.write_quarantine(tmp_path / "again.jsonl")
        assert (tmp_path / "again.jsonl").read_text() == file.read_text()
        with pytest.raises(StateError, match="known_bad="):
            second.load_state_dict(state)


@pytest.mark.parametrize("damaged", [damaged_jpeg(), CUT_TIFF], ids=["bad in all windows", "bad in some"])
def test_what_was_seen_before_does_not_say_which_images_are_bad(tmp_path: Path, damaged: bytes) -> None:
    tar, file = spoilt(tmp_path, {2: damaged, 9: CUT, 21: damaged}), tmp_path / "bad.jsonl"
    times_bad = 0
    with loader(tar, output="dict", on_error=BadImages(replace=True, max_share=0.1)) as running:
        for epoch in range(6):
            batches = list(running)
            for other_size in (8, 4):
                with loader(tar, other_size, output="dict", on_error=BadImages(replace=True, max_share=0.1)) as fresh:
                    fresh.set_epoch(epoch)
                    assert_same(batches, list(fresh))
                    fresh.write_quarantine(file)
                    times_bad += 2 in fresh.stats().bad
            with loader(tar, output="dict", on_error=BadImages(known=file)) as warned:
                warned.set_epoch(epoch)
                assert_same(batches, list(warned))
    assert times_bad == 12 if damaged != CUT_TIFF else 0 < times_bad < 12


def assert_same(batches: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    for name in ("image", "index", "valid"):
        assert torch.equal(*(torch.cat([batch[name] for batch in each]) for each in (batches, others)))


def test_an_image_that_only_the_decoder_refuses_costs_one_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def counted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        built.append(args)
        return build(*args, **kwargs)

    monkeypatch.setattr("gpuloader.loading.decoding.build", counted)
    monkeypatch.setattr("gpuloader.pipelines.triage.build", counted)
    bad = dict.fromkeys((5, 6, 17, 30), damaged_jpeg())
    settings = {"batch_size": 2, "shuffle": "none", "on_error": {"replace": True, "max_share": 0.1}}
    of_epochs = []
    with loader(spoilt(tmp_path, bad), **settings) as batches:
        for _ in range(3):
            assert len(list(batches)) == 20
            of_epochs.append(len(built))
        assert batches.stats().bad.keys() == bad.keys()
        state = batches.state_dict()
    assert of_epochs == 3 * [1 + len(bad)]
    built.clear()
    with loader(tmp_path / "spoilt.tar", **settings) as resumed:
        resumed.load_state_dict(state)
        assert len(list(resumed)) == 20
    assert len(built) == 1


def test_a_batch_that_was_read_before_its_stand_in_was_known_to_be_bad_is_read_again(tmp_path: Path) -> None:
    draws = Draws(0, 0, np.arange(SAMPLES)).uniform(Stream.REPLACEMENT, 100)[:, 0]
    stand_ins = enumerate(np.floor(draws * SAMPLES).astype(int).tolist())
    sample, stand_in = next(pair for pair in stand_ins if 2 <= pair[0] - pair[1] <= 4)
    tar = spoilt(tmp_path, {sample: CUT, stand_in: damaged_jpeg()})
    with evaluation(tar, 2, output="dict", on_error=BadImages(replace=True, max_share=0.1)) as batches:
        valid = torch.cat([batch["valid"] for batch in batches])
    assert set(torch.nonzero(~valid).flatten().tolist()) == {sample, stand_in}


def test_one_bad_image_never_ends_a_run_that_replaces(tmp_path: Path) -> None:
    with loader(spoilt(tmp_path, {7: CUT}), on_error=BadImages(replace=True, max_share=0)) as batches:
        assert len(list(batches)) == 5
        assert set(batches.stats().bad) == {7}


def test_where_all_are_bad_the_message_says_so(tmp_path: Path) -> None:
    tar = spoilt(tmp_path, dict.fromkeys(range(SAMPLES), CUT))
    with (
        loader(tar, on_error=BadImages(replace=True, max_share=1)) as batches,
        pytest.raises(TooManyBadImagesError, match="and so are the 100 samples drawn to replace it"),
    ):
        next(iter(batches))


def test_an_error_of_dalis_own_is_not_blamed_on_an_image() -> None:
    decoder = "Error in CPU operator `nvidia.dali.fn.decoders.image_slice`,\n\nencountered:\n\n"
    assert is_decode_failure(decoder + "Failed to decode sample #3 : ")
    assert not is_decode_failure(decoder + "CUDA allocation failed")
    assert not is_decode_failure("Error in GPU operator `nvidia.dali.fn.resize`,\n\nencountered:\n\nsomething")


def test_more_bad_images_than_allowed_end_the_run_in_either_way_they_are_found(tmp_path: Path) -> None:
    for name, bad in (("cut", CUT), ("damaged", damaged_jpeg())):
        (tmp_path / name).mkdir()
        tar = spoilt(tmp_path / name, dict.fromkeys(range(10, 15), bad))
        with (
            loader(tar, on_error=BadImages(replace=True, max_share=0.1)) as batches,
            pytest.raises(
                TooManyBadImagesError, match=r"5 of 40 images are bad, more than BadImages\(max_share=0.1\) allows"
            ),
        ):
            list(batches)


# --- errors


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"device_id": 0}, DeviceError, "device_id=0 but no CUDA device; use device_id=None for the CPU"),
        ({"device_id": -1}, ConfigError, "device_id=-1: allowed are a GPU's number"),
        ({"device_id": "gpu"}, ConfigError, "device_id='gpu': allowed are"),
        ({"batch_size": 41}, ConfigError, "40 samples are fewer than one step of .* batch_size 41"),
        ({"batch_size": 0}, ConfigError, "batch_size=0: allowed is an integer of at least 1"),
        (
            {"preset": "imagenet_trian"},
            PresetError,
            r"no preset is called 'imagenet_trian' \(did you mean imagenet_train",
        ),
        ({"output": "list"}, ConfigError, 'output=\'list\': allowed are "tuple", "dict" and a mapping'),
        ({"output": {"image": "x", "label": "x"}}, ConfigError, "gives two entries the same name"),
        ({"on_error": "skip"}, ConfigError, 'on_error=\'skip\': allowed are "raise", "replace" and a BadImages'),
        ({"on_error": {"max_share": 2}}, ConfigError, r"BadImages\(max_share=2\): allowed is a share"),
        ({"on_error": {"max_share": True}}, ConfigError, r"BadImages\(max_share=True\): allowed is a share"),
        ({"on_error": {"max_share": "1%"}}, ConfigError, r"BadImages\(max_share='1%'\): allowed is a share"),
        ({"sampling": {"steps_per_epoch": "3"}}, ConfigError, "steps_per_epoch='3': allowed is 1 to 5"),
        ({"sampling": {"steps_per_epoch": True}}, ConfigError, "steps_per_epoch=True: allowed is 1 to 5"),
        ({"sampling": {"steps_per_epoch": 2.0}}, ConfigError, "steps_per_epoch=2.0: allowed is 1 to 5"),
        ({"world": {"rank": "0", "world_size": "1"}}, ConfigError, "rank='0', world_size='1'"),
        ({"tar": None}, ConfigError, "tar=None: allowed is a path"),
        ({"tar": ["a.tar", 3]}, ConfigError, "allowed is a path, a URL, a folder, a pattern, or a list of those"),
        ({"preset": 3}, PresetError, "preset=3, .*: allowed are a name, a path or a Compose"),
        ({"preset": {"imagenet_train": 3}}, PresetError, "overrides=3: allowed are"),
        ({"fields": 3, "output": "dict"}, ConfigError, "fields=3: give a list of extensions"),
        ({"decoder": {"prefetch": 0}}, ConfigError, r"prefetch=0\): allowed is an integer from 1 to 64"),
        ({"decoder": {"hw_load": 1.5}}, ConfigError, r"hw_load=1.5\): allowed is a share in \[0, 1\], or None"),
        ({"decoder": {"hw_load": True}}, ConfigError, r"hw_load=True\): allowed is a share"),
        (
            {"decoder": {"hybrid_huffman_threshold": -1}},
            ConfigError,
            r"hybrid_huffman_threshold=-1\): allowed is an integer from 0",
        ),
        (
            {"decoder": {"hybrid_huffman_threshold": 1e6}},
            ConfigError,
            r"hybrid_huffman_threshold=1000000.0\): allowed is an integer",
        ),
        ({"decoder": {"num_threads": 0}}, ConfigError, r"num_threads=0\): allowed is an integer from 1 to 1024"),
        ({"fields": ["json"]}, ConfigError, 'with output="dict" only'),
        ({"fields": "json", "output": "dict"}, ConfigError, r"give a list of extensions, such as \['json'\]"),
        ({"fields": ["key"], "output": "dict"}, ConfigError, "key stands for something else"),
        ({"world": {"rank": 1}}, ConfigError, "world_size is missing; give all of rank, world_size"),
        ({"world": {"rank": 2, "world_size": 2}}, ConfigError, "0 <= rank < world_size"),
        ({"label_from": "txt"}, ConfigError, "label_from='txt': allowed are"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused(
    shards: list[Path], kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    if torch.cuda.is_available() and error is DeviceError:
        pytest.skip("there is a GPU")
    with pytest.raises(error, match=message):
        GPULoader(**{"tar": shards, "batch_size": 8, "device_id": None, **kwargs})


def test_settings_of_the_decoder_reach_it_and_change_no_pixel(shards: list[Path]) -> None:
    with loader(shards) as batches:
        expected = torch.cat([images for images, _ in batches])
    with loader(shards, decoder=Decoder(hw_load=0.375, hybrid_huffman_threshold=123_456)) as batches:
        torch.testing.assert_close(torch.cat([images for images, _ in batches]), expected, rtol=0, atol=0)
    with loader(shards, decoder=Misspelt()) as batches, pytest.raises(KeyError, match="hw_decoder_lode"):
        next(iter(batches))  # DALI knows the others


class Misspelt(Decoder):
    """With an option that DALI does not know."""

    dali_options = {"hw_decoder_lode": 0.375}  # type: ignore[assignment]  # noqa: RUF012


def test_numpys_integers_are_integers(shards: list[Path]) -> None:
    with loader(shards, np.int64(8), seed=np.uint64(2**63), world=World(np.int32(0), np.int32(2))) as batches:
        next(iter(batches))
        assert json.loads(json.dumps(batches.state_dict()))["seed"] == 2**63


def test_missing_empty_and_broken_shards_say_what_to_do(tmp_path: Path, shards: list[Path]) -> None:
    with pytest.raises(ShardNotFoundError, match=r"no such file.*near that name are train-0000.tar"):
        loader(shards[0].with_name("train-000.tar"))
    with pytest.raises(ShardNotFoundError, match="no file matches"):
        loader(str(tmp_path / "*.tar"))
    no_image = write_shard(tmp_path / "text.tar", [{"__key__": "a", "txt": b"hello"}])
    with pytest.raises(NoSamplesError, match=r"no images in .*text.tar: a sample needs a member named KEY.EXT"):
        loader(no_image)
    no_label = write_shard(tmp_path / "unlabelled.tar", [{"__key__": "a", "jpg": jpeg(40, 40)}])
    with pytest.raises(LabelError, match=r"1 of 1 samples lack a label.*'a' in .*unlabelled.tar.*None \(images only\)"):
        loader(no_label)
    broken = tmp_path / "broken.tar"
    broken.write_bytes(shards[0].read_bytes()[:6000])
    with pytest.raises(TarError, match=r"broken.tar: truncated.* at byte"):
        loader(broken)


@pytest.mark.parametrize(
    "change",
    [
        lambda tar: os.utime(tar, ns=(1, 1)),
        lambda tar: os.truncate(tar, 20_000),
        lambda tar: os.truncate(tar, 0),
        lambda tar: tar.write_bytes(bytes(tar.stat().st_size)),
    ],
    ids=["touched", "truncated", "emptied", "overwritten"],
)
def test_a_shard_that_changes_meanwhile_is_named(tmp_path: Path, change: Callable[[Path], None]) -> None:
    tar = spoilt(tmp_path, {})
    with loader(tar, 2) as batches:
        next(iter(batches))
        change(tar)
        with pytest.raises(ShardChangedError, match=r"spoilt\.tar"):
            list(batches)


@pytest.mark.parametrize("change", [Path.unlink, lambda tar: write_shard(tar.with_suffix(".new"), []).replace(tar)])
def test_a_shard_that_loses_its_name_meanwhile_is_read_on(tmp_path: Path, change: Callable[[Path], None]) -> None:
    tar = spoilt(tmp_path, {})
    with loader(tar, 2) as whole:
        expected = [images for images, _ in whole]
    with loader(tar, 2, decoder=Decoder(prefetch=1)) as batches:
        epoch = iter(batches)
        next(epoch)
        change(tar)
        for (images, _), theirs in zip(epoch, expected[1:], strict=True):
            assert torch.equal(images, theirs)


def test_a_label_that_json_lacks_is_an_error_at_its_batch(tmp_path: Path) -> None:
    samples = [{"__key__": f"{i}", "jpg": jpeg(40, 40), "json": b'{"label": 1}' if i < 3 else b"{}"} for i in range(4)]
    tar = write_shard(tmp_path / "a.tar", samples)
    with evaluation(tar, 1, label_from="json:label") as batches:
        epoch = iter(batches)
        assert [next(epoch)[1].item() for _ in range(3)] == [1, 1, 1]
        with pytest.raises(LabelError, match=r"component of '3' in .*a.tar has no 64-bit integer under 'label'"):
            next(epoch)


# --- life cycle


@pytest.fixture
def at_start(shards: list[Path]) -> Counter[str]:
    """Threads and files before a test; libraries keep some of their own from their first use on."""
    with loader(shards) as batches:
        next(iter(batches))
    gc.collect()
    return threads_and_files()


def test_closing_ends_threads_and_files(shards: list[Path], at_start: Counter[str]) -> None:
    for close in ("close", "garbage"):
        batches = loader(shards)
        next(iter(batches))
        assert threads_and_files() - at_start
        if close == "close":
            batches.close()
            batches.close()
            with pytest.raises(LoaderError, match="closed"):
                iter(batches)
        del batches
        gc.collect()
        assert left_behind(at_start) == {}


def test_a_dropped_loader_ends_without_the_garbage_collector(shards: list[Path], at_start: Counter[str]) -> None:
    gc.disable()
    try:
        for _ in loader(shards):
            break
        assert left_behind(at_start) == {}
    finally:
        gc.enable()


@pytest.mark.parametrize("bad", [CUT, damaged_jpeg()])
def test_a_kept_error_does_not_keep_the_pipeline(tmp_path: Path, bad: bytes, at_start: Counter[str]) -> None:
    tar = spoilt(tmp_path, {3: bad})
    kept = []
    for _ in range(3):
        with evaluation(tar) as batches, pytest.raises(BadImageError) as caught:
            list(batches)
        kept.append(caught.value)
    gc.collect()
    assert left_behind(at_start) == {}


def test_a_forked_child_can_exit_and_is_told_to_make_its_own_loader(shards: list[Path]) -> None:
    script = (
        "import os, sys, warnings\n"
        "from gpuloader import GPULoader, LoaderError\n"
        "loader = GPULoader(sys.argv[1], 8, None, preset={'imagenet_train': {'RandomResizedCrop': {'size': 32}}})\n"
        "epoch = iter(loader); next(epoch)\n"
        "warnings.simplefilter('ignore')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        next(epoch)\n"
        "    except LoaderError as error:\n"
        "        print(error, flush=True)\n"
        "    sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "print(sum(1 for _ in epoch))"
    )
    command = [sys.executable, "-c", script, str(shards[0].parent)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    message = "this loader belongs to the parent of this forked process: make a new one"
    assert result.stdout == f"{message}\n4\n"


def compile_kernels(shards: list[Path]) -> None:
    """So that a process of its own has them, and says nothing of compiling on stderr."""
    with GPULoader(shards, 8, None, preset={"imagenet_train": {"RandomResizedCrop": {"size": 32}}}) as loader:
        next(iter(loader))


def test_a_process_ends_while_the_reader_waits_for_a_slow_disk(shards: list[Path], tmp_path: Path) -> None:
    compile_kernels(shards)
    (tmp_path / "slow_disk.py").write_text(
        "import os, time\n"
        "preadv, slow = os.preadv, [False]\n"
        "def slowly(*arguments):\n"
        "    if slow[0]:\n"
        "        time.sleep(0.05)\n"
        "    return preadv(*arguments)\n"
        "os.preadv = slowly\n"
    )
    script = (
        "import slow_disk, sys\n"
        "from gpuloader import GPULoader\n"
        "loader = GPULoader(sys.argv[1], 8, None, preset={'imagenet_train': {'RandomResizedCrop': {'size': 32}}})\n"
        "epoch = iter(loader); next(epoch)\n"
        "slow_disk.slow[0] = True\n"
        "next(epoch)"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(shards[0].parent)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert result.stderr == ""


def test_a_loader_that_is_left_open_does_not_hold_up_the_end_of_the_process(shards: list[Path]) -> None:
    compile_kernels(shards)
    script = (
        "from gpuloader import GPULoader; import sys\n"
        "loader = GPULoader(sys.argv[1], 8, None, preset={'imagenet_train': {'RandomResizedCrop': {'size': 32}}})\n"
        "print(next(iter(loader))[0].shape)"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(shards[0].parent)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "torch.Size([8, 3, 32, 32])\n"
    assert result.stderr == ""


def test_importing_the_package_imports_neither_dali_nor_torch() -> None:
    script = (
        "import gpuloader, sys; print([name for name in ('torch', 'nvidia.dali', 'lightning') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_stats_count_what_was_handed_out(shards: list[Path]) -> None:
    with loader(shards) as batches:
        for _ in batches:
            pass
        stats = batches.stats()
    assert (stats.batches, stats.samples, stats.bad) == (5, 40, {})
    assert 0 < stats.waiting_seconds <= stats.elapsed_seconds
    assert stats.reading_seconds > 0


def test_stats_are_the_sums_of_those_of_each_batch(shards: list[Path]) -> None:
    with loader(shards, 12, last_batch="partial") as batches:
        assert batches.stats() == Stats()
        sums = Stats()
        for _ in range(2):
            for images, _ in batches:
                stats = batches.stats()
                last = stats.last
                assert last is not None
                assert (last.batches, last.samples, last.bad, last.last) == (1, len(images), {}, None)
                assert last.waiting_seconds == pytest.approx(last.decoding_seconds + last.delivering_seconds)
                assert last.waiting_seconds <= last.elapsed_seconds
                assert min(last.decoding_seconds, last.delivering_seconds, last.gating_seconds) > 0
                sums = sums.after(last)
                assert stats == sums
                assert stats.ready_batches == last.ready_batches <= 3  # as many as are read ahead of two decoded ones
    assert (sums.batches, sums.samples) == (8, 80)


def test_stats_go_on_over_a_restored_state_and_know_the_bad_images_of_all(tmp_path: Path) -> None:
    with evaluation(spoilt(tmp_path, {2: CUT}), on_error="replace") as batches:
        next(iter(batches))
        batches.load_state_dict(batches.state_dict())
        next(iter(batches))
        stats = batches.stats()
    assert (stats.batches, set(stats.bad)) == (2, {2})


def test_the_body_of_the_loop_counts_as_elapsed_and_not_as_waiting(shards: list[Path]) -> None:
    with loader(shards) as batches:
        for _ in batches:
            time.sleep(0.02)
        stats = batches.stats()
    assert stats.elapsed_seconds - stats.waiting_seconds >= 4 * 0.02
