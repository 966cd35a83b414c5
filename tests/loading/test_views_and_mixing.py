"""Several views of a sample, and batches whose samples are mixed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from loaders import CUT, SAMPLES, SMALL, loader, spoilt
from making import jpeg, write_samples, write_shard
from packing import samples_of
from running import run_views

from gpuloader import Decoder, GPULoader, LabelFrom, World
from gpuloader import transforms as T
from gpuloader.errors import ConfigError, LabelError
from gpuloader.loading.blending import mix_images, soft_labels
from gpuloader.plan import Cursor, Draws, Plan, Stream, all_samples
from gpuloader.recipe import Recipe

# --- views

TWO_SIZES = Recipe(
    views=[
        T.View([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.Normalize((0.5,) * 3, (0.2,) * 3)]),
        T.View([T.RandomResizedCrop((16, 24)), T.ColorJitter(0.4)], count=2),
    ]
)


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("output", ["tuple", "dict"])
def test_several_views_are_a_list_of_tensors(shards: list[Path], output: str, layout: str) -> None:
    overrides = {"layout": layout}
    images = [sample["jpg"] for sample in samples_of(shards)]
    with loader(shards, preset={TWO_SIZES: overrides}, output=output) as batches:
        expected = run_views(batches.preset, images)
        order = Plan(all_samples(SAMPLES), 8)
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
            how = batches.preset.mix.draw(Draws(0, 0, before["index"].numpy()).of(Stream.MIX), 32, 32)
            mix_images(before["image"], how)  # which test_blending.py compares with torchvision
            assert torch.equal(batch["image"], before["image"])
            expected = soft_labels(before["label"], torch.from_numpy(how.weight), 10, 0.1)
            torch.testing.assert_close(batch["label"], expected)
            cut += (how.box[:, 2] > 0).tolist()
    assert 0 < sum(cut) < len(cut)


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_bfloat16_is_rounded_from_float32_after_mixing(shards: list[Path], layout: str) -> None:
    recipe = {**SMALL, "layout": layout, "mix": MIX}
    with (
        mixed(shards, preset={"imagenet_train": recipe}) as exact,
        mixed(shards, preset={"imagenet_train": {**recipe, "dtype": "bfloat16"}}) as rounded,
    ):
        for one, other in zip(exact, rounded, strict=True):
            assert torch.equal(other["image"], one["image"].to(torch.bfloat16))
            assert ((other["image"].double() - one["image"].double()).abs() <= one["image"].double().abs() / 256).all()
            assert torch.equal(other["label"], one["label"])
            assert other["image"].stride() == one["image"].stride()


@pytest.mark.parametrize(("batch_size", "world_size"), [(2, 1), (4, 4)])
def test_the_neighbour_of_the_last_sample_may_be_padding(tmp_path: Path, batch_size: int, world_size: int) -> None:
    samples = 13
    tar = write_samples(tmp_path, samples)
    with mixed(tar) as batches:
        expected = by_sample(batches)
    got = {}
    for rank in range(world_size):
        with mixed(tar, batch_size, world=World(rank, world_size), decoder=Decoder(num_threads=1)) as batches:
            got |= by_sample(batches)
    assert sorted(got) == sorted(expected) == list(range(samples))
    assert all(equal(got[sample], expected[sample]) for sample in got)


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
        ({"batch_size": 7}, "batch_size=7: the recipe mixes neighbours, so it must be even"),
        ({"last_batch": "partial"}, 'last_batch="partial" would separate neighbours .*: use "drop" or "pad"'),
        ({"label_from": None}, "the recipe mixes samples, but label_from=None gives no labels to mix"),
    ],
)
def test_what_cannot_be_mixed_is_refused(shards: list[Path], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mixed(shards, **kwargs)


@pytest.mark.parametrize(
    ("classes", "num_classes", "rank", "warned"),
    [
        (["cat", "dog"], 3, 0, True),
        (["cat", "dog"], 3, 1, False),  # rank 0 has said it
        (["cat", "dog"], 2, 0, False),
        (None, 1000, 0, False),  # their number is not known: these shards may be a part of the data
    ],
)
def test_labels_that_are_not_as_wide_as_the_data_has_classes_are_a_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    classes: list[str] | None,
    num_classes: int,
    rank: int,
    warned: bool,
) -> None:
    tar = write_shard(tmp_path / "a.tar", [{"__key__": f"{i}", "jpg": jpeg(40, 40), "cls": b"0"} for i in range(8)])
    mix = {**MIX, "num_classes": num_classes}
    mixed(tar, 2, mix, label_from=LabelFrom("cls", classes), world=World(rank, 2)).close()
    says = f"the recipe's mix.num_classes is {num_classes}, but the data has 2 classes: labels get {num_classes} col"
    assert [says in message for message in caplog.messages] == [True] * warned


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


@pytest.mark.parametrize(
    "off", [{"p": {0: 1, 1: 0}}, {"mixup_alpha": {0: 0.8, 1: 0}, "cutmix_alpha": {0: 1, 1: 0}}], ids=str
)
def test_after_mixing_labels_stay_smoothed_shares(shards: list[Path], built: list[object], off: dict[str, Any]) -> None:
    """timm's --mixup-off-epoch 1, whose labels are `mixup_target(labels, classes, lam=1.0, smoothing)`."""
    with (
        mixed(shards, mix={**MIX, **off}) as batches,
        mixed(shards, mix=MIX) as always,
        loader(shards, output="dict", last_batch="pad", preset={"imagenet_train": SMALL}) as never,
    ):
        for one, other in zip(batches, always, strict=True):
            assert equal((one["image"], one["label"]), (other["image"], other["label"]))
        never.set_epoch(1)
        for one, other in zip(batches, never, strict=True):
            assert torch.equal(one["image"], other["image"])
            expected = [[0.91 if n == label else 0.01 for n in range(10)] for label in other["label"].tolist()]
            torch.testing.assert_close(one["label"], torch.tensor(expected))
    assert len(built) == 3  # one for each loader


def test_a_mix_cuts_within_the_size_of_its_epoch(shards: list[Path]) -> None:
    growing = {"RandomResizedCrop": {"size": {0: 24, 1: 32}}}
    mix = {"num_classes": 10, "cutmix_alpha": 1.0, "per": "sample"}
    with (
        mixed(shards, preset={"imagenet_train": {**growing, "mix": mix}}) as batches,
        loader(shards, preset={"imagenet_train": growing}) as unmixed,
    ):
        for epoch in range(2):
            for batch, (before, _) in zip(batches, unmixed, strict=True):
                how = batches.preset.mix.draw(Draws(0, epoch, batch["index"].numpy()).of(Stream.MIX), *before.shape[2:])
                changed = (batch["image"] != before).any(1).sum((1, 2)) / before[0, 0].numel()
                torch.testing.assert_close(1 - changed, torch.from_numpy(how.weight), atol=2e-3, rtol=0)
