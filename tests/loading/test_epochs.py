"""Epochs: their order, where they begin and end, and sizes that change with them."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from threading import Event

import pytest
import torch
from loaders import SAMPLES, indices, loader

from gpuloader.errors import LoaderError
from gpuloader.plan import Cursor, Plan, all_samples


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
    plan = Plan(all_samples(SAMPLES), 8, seed=5)
    assert epochs[2][1] == plan.batch(plan.after(Cursor(2))).ids.tolist()
    assert len({tuple(map(tuple, epoch)) for epoch in epochs}) == 3


def test_the_epoch_can_be_set_as_with_the_sampler_of_a_dataloader(shards: list[Path]) -> None:
    with loader(shards, output="dict") as batches:
        whole = [indices(batches) for _ in range(2)]
        seen = []
        for epoch in (1, 0, 1):
            batches.sampler.set_epoch(epoch)
            seen.append(indices(batches))
        assert seen == [whole[1], whole[0], whole[1]]


def test_an_older_iterator_is_refused_after_a_newer_one_began(shards: list[Path]) -> None:
    with loader(shards) as batches:
        older = iter(batches)
        next(older)
        newer = iter(batches)
        next(newer)
        with pytest.raises(LoaderError, match="a newer one began"):
            next(older)
        assert len(list(newer)) == 4


def test_an_epoch_begins_with_its_first_batch_not_where_an_iterator_is_made(shards: list[Path]) -> None:
    with loader(shards, output="dict") as batches:
        iter(batches)  # as trainers do that look at a loader first
        unused, used = iter(batches), iter(batches)
        assert batches.state_dict()["epoch"] == 0
        found = [indices(used), indices(unused)]
        batches.set_epoch(0)
        assert found == [indices(batches), indices(batches)]


def test_a_finished_iterator_stays_finished(shards: list[Path]) -> None:
    with loader(shards) as batches:
        epoch = iter(batches)
        assert len(list(epoch)) == 5
        assert list(epoch) == []


def test_the_next_epoch_is_read_while_the_last_batch_is_used(shards: list[Path], built: list[object]) -> None:
    read_on, read = Event(), list[str]()

    def note(components: list[bytes]) -> list[None]:
        read.append(json.loads(components[0])["k"])
        if len(read) > 5:
            read_on.set()
        return [None] * len(components)

    with loader(shards, output="dict", fields={"json": note}) as batches:
        epoch = iter(batches)
        for _ in range(5):
            next(epoch)
        assert read_on.wait(60)
        first = next(iter(batches))
    assert first["key"][0] == read[5]
    assert first["index"].tolist() == Plan(all_samples(SAMPLES), 8).batch(Cursor(1)).ids.tolist()
    assert len(built) == 1  # the same pipeline runs on


def test_beginning_epochs_again_and_again_builds_one_pipeline(shards: list[Path], built: list[object]) -> None:
    """As scripts do: `next(iter(loader))`, a loop that is left early, an epoch that is set."""
    with loader(shards, output="dict") as batches:
        whole = [list(batches) for _ in range(4)]
    built.clear()
    with loader(shards, output="dict") as batches:
        firsts = [next(iter(batches)) for _ in range(3)]
        third = list(islice(batches, 3))[2]
        batches.set_epoch(1)
        again = list(batches)
        assert len(built) == 1
    expected = [*(epoch[0] for epoch in whole[:3]), whole[3][2], *whole[1]]
    for ours, theirs in zip([*firsts, third, *again], expected, strict=True):
        assert ours["key"] == theirs["key"]
        assert torch.equal(ours["image"], theirs["image"])
        assert torch.equal(ours["label"], theirs["label"])


# --- sizes by epoch

GROWING = {"RandomResizedCrop": {"size": {0: 24, 1: 32, 3: 40}}}


def test_sizes_change_with_the_epoch_in_one_running_pipeline(shards: list[Path], built: list[object]) -> None:
    with loader(shards, preset={"imagenet_train": GROWING}) as batches:
        sizes = []
        for _ in range(5):
            sizes.append({tuple(images.shape[1:]) for images, _ in batches})
        assert sizes == [{(3, size, size)} for size in (24, 32, 32, 40, 40)]
        assert len(built) == 1
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
