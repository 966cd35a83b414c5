"""`on_error="skip"`: batches without bad samples and padding, so that evaluation counts each good sample once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from loaders import CUT, SAMPLES, assert_equal, evaluation, indices, spoilt
from making import damaged_jpeg, jpeg, write_shard
from scenes import EVAL as SCENES_EVAL
from scenes import loader as loader_of_scenes
from scenes import shard as shard_of_scenes

from gpuloader import BadImages, GPULoader, World
from gpuloader.errors import ConfigError

SKIP = BadImages(skip=True, max_share=1)
REPLACE = BadImages(replace=True, max_share=1)
# 3 is refused by the gate; 5 by the decoder; 16 to 23 are all of a batch; 39 is the last sample.
BAD = {3: CUT, 5: damaged_jpeg(), **dict.fromkeys(range(16, 24), CUT), 39: b"<html>"}
GOOD = [sample for sample in range(SAMPLES) if sample not in BAD]


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spoilt(tmp_path_factory.mktemp("spoilt"), BAD)


def test_steps_stay_and_a_batch_may_be_short_or_empty(tar: Path, caplog: pytest.LogCaptureFixture) -> None:
    with evaluation(tar, 8, on_error=SKIP, output="dict") as batches:
        for _ in range(2):
            epoch = list(batches)
            assert [batch["image"].shape for batch in epoch] == [(rows, 3, 32, 32) for rows in (6, 8, 0, 8, 7)]
            assert indices(epoch) == [[i for i in range(k, k + 8) if i not in BAD] for k in range(0, SAMPLES, 8)]
            assert all(batch["valid"].all() and len(batch["valid"]) == len(batch["key"]) for batch in epoch)
            assert [batch["label"].tolist() for batch in epoch] == [[i % 10 for i in ids] for ids in indices(epoch)]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["bad image left out"] * len(BAD)


@pytest.mark.parametrize("last_batch", ["pad", "equal", "partial"])
@pytest.mark.parametrize("ranks", [1, 7])
def test_padding_is_left_out_so_each_good_sample_comes_once_over_all_ranks(
    tar: Path, ranks: int, last_batch: str
) -> None:
    delivered, steps = [], set()
    for rank in range(ranks):
        with evaluation(tar, 5, on_error=SKIP, last_batch=last_batch, world=World(rank, ranks), output="dict") as given:
            epoch = list(given)
            steps.add(len(epoch))
            delivered += [sample for ids in indices(epoch) for sample in ids]
    assert sorted(delivered) == GOOD
    assert steps == {-(-SAMPLES // (5 * ranks))}


def rows_of(entry: Any, rows: list[int], views: int) -> Any:  # noqa: ANN401
    if views > 1 and isinstance(entry, list) and len(entry) == views:
        return [rows_of(view, rows, 1) for view in entry]
    if entry is None:
        return None
    return entry[rows] if isinstance(entry, torch.Tensor) else [entry[row] for row in rows]


def test_targets_and_fields_are_those_of_the_other_rows(tmp_path: Path) -> None:
    broken = {2: {"json": b"{"}, 5: {"png": CUT}, **{number: {"mask.png": b"no mask"} for number in range(8, 12)}}
    scenes = shard_of_scenes(tmp_path, broken)
    crop = {"transforms": [{"RandomIoUCrop": {}}, *SCENES_EVAL["transforms"]]}  # which draws by the boxes
    for preset in (SCENES_EVAL, crop):
        with (
            loader_of_scenes(scenes, preset=preset, on_error=SKIP) as short,
            loader_of_scenes(scenes, preset=preset, on_error=REPLACE, last_batch=short_last(short)) as whole,
        ):
            for one, other in zip(short, whole, strict=True):
                rows = [row for row, valid in enumerate(other["valid"].tolist()) if valid]
                for name in one:
                    assert_equal(one[name], rows_of(other[name], rows, 1))
            assert sorted(short.stats().bad) == [2, 5, 8, 9, 10, 11]


def short_last(batches: GPULoader[Any]) -> Any:  # noqa: ANN401
    return "drop" if batches.preset.random else "partial"


def test_a_collator_never_gets_a_value_of_a_sample_that_is_left_out(tmp_path: Path) -> None:
    samples = [
        {"__key__": f"{i:03d}", "jpg": CUT if i % 3 == 1 else jpeg(48, 48, seed=i), "txt": b"%d" % i} for i in range(9)
    ]
    seen: list[list[str]] = []

    def collate(texts: list[bytes]) -> list[str]:
        seen.append([text.decode() for text in texts])
        return seen[-1]

    options = {"label_from": None, "output": "dict", "fields": {"txt": collate}, "on_error": SKIP}
    with evaluation(write_shard(tmp_path / "a.tar", samples), 3, **options) as batches:
        assert [batch["txt"] for batch in batches] == [["0", "2"], ["3", "5"], ["6", "8"]] == seen[:3]


def test_a_label_of_a_sample_that_is_left_out_is_not_read(tmp_path: Path) -> None:
    documents = [b'{"class": %d}' % i for i in range(6)]
    documents[1] = b"{"
    samples = [
        {"__key__": str(i), "jpg": CUT if i == 1 else jpeg(48, 48, seed=i), "json": document}
        for i, document in enumerate(documents)
    ]
    tar = write_shard(tmp_path / "a.tar", samples)
    with evaluation(tar, 4, label_from="json:class", on_error=SKIP) as batches:
        assert [labels.tolist() for _, labels in batches] == [[0, 2, 3], [4, 5]]


def test_known_bad_images_are_left_out_without_being_read(tar: Path, tmp_path: Path) -> None:
    with evaluation(tar, 8, on_error=SKIP) as first:
        expected = [labels.tolist() for _, labels in first]
        first.write_quarantine(tmp_path / "bad.jsonl")
    with evaluation(tar, 8, on_error={"skip": True, "known": tmp_path / "bad.jsonl"}) as second:
        assert [labels.tolist() for _, labels in second] == expected
        assert second.stats().bad == {}


@pytest.mark.parametrize("saved_with", [SKIP, REPLACE], ids=["skip", "replace"])
def test_a_state_counts_places_and_does_not_depend_on_what_is_left_out(tar: Path, saved_with: BadImages) -> None:
    with evaluation(tar, 8, on_error=SKIP, output="dict") as whole:
        expected = indices(whole)
    with evaluation(tar, 8, on_error=saved_with, output="dict") as batches:
        states = [batches.state_dict() for _ in batches]
    assert [state["delivered"] for state in states] == [8, 16, 24, 32, 40]
    for done, state in enumerate(states[:-1], start=1):
        with evaluation(tar, 8, on_error=SKIP, output="dict") as resumed:
            resumed.load_state_dict(state)
            assert indices(resumed) == expected[done:]
            assert resumed.state_dict() == {**states[-1], "epoch": 1, "begin": 40, "delivered": 0}


REFUSED = "this recipe uses no random numbers, so it is for evaluation, where replacements of bad images would count"


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"on_error": "replace"}, r'on_error="replace": '),
        ({"on_error": "replace", "output": {"image": "pixel_values", "label": "labels"}}, r'on_error="replace": '),
        ({"on_error": {"known": "bad.jsonl"}}, r"BadImages\(known=\.\.\.\): "),  # these would be replaced, too
        ({"sampling": {"leave_out": [3]}}, r"Sampling\(leave_out=\.\.\.\): "),
        ({"on_error": {"known": "bad.jsonl", "skip": True}}, None),
        ({"sampling": {"leave_out": [3]}, "on_error": "skip"}, None),
        ({"sampling": {"leave_out": [3]}, "output": "dict"}, None),
        ({"sampling": {"leave_out": [3]}, "preset": "cifar10"}, None),
        ({"on_error": "replace", "output": "dict"}, None),
        ({"on_error": "replace", "output": {"image": "x", "valid": "real"}}, None),
        ({"on_error": "raise"}, None),
        ({"on_error": "replace", "preset": "cifar10"}, None),  # for training
    ],
    ids=str,
)
def test_an_evaluation_that_would_count_replacements_is_refused(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], refused: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").touch()
    given = {"preset": "cifar10_eval", **options}
    if refused is None:
        GPULoader(shards, 8, "cpu", **given).close()
    else:
        with pytest.raises(ConfigError, match=f"^{refused}{REFUSED}"):
            GPULoader(shards, 8, "cpu", **given)


def test_what_mixes_neighbours_has_none_left_out(shards: list[Path]) -> None:
    with pytest.raises(ConfigError, match='on_error="skip" would separate neighbours that the recipe mixes: use "repl'):
        GPULoader(shards, 8, "cpu", preset="resnet50_v2", on_error="skip")
