"""Bad images: named, replaced, known from one run to the next, and too many of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_images import HEIGHT, TIFF, WIDTH
from loaders import CUT, SAMPLES, evaluation, loader, spoilt
from making import damaged_jpeg

from gpuloader import BadImages
from gpuloader.errors import BadImageError, DeviceError, StateError, TooManyBadImagesError
from gpuloader.images.gate import admit
from gpuloader.plan import Draws, Stream

pytestmark = pytest.mark.slow(kept=4, of="bad images")

CUT_TIFF = TIFF[:-1000]  # if the gate lets it pass, only windows that need the last rows fail


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


@pytest.mark.parametrize("bad", [CUT, damaged_jpeg()], ids=["the gate refuses", "DALI refuses"])
@pytest.mark.parametrize("on_error", ["raise", BadImages(replace=True)])
def test_a_bad_image_that_was_read_for_a_batch_that_nobody_took_is_not_named(
    tmp_path: Path, bad: bytes, on_error: str | BadImages
) -> None:
    with evaluation(spoilt(tmp_path, {5: bad}), 4, output="dict", on_error=on_error) as batches:
        for epoch in range(3):
            batches.set_epoch(epoch)
            assert next(iter(batches))["index"].tolist() == [0, 1, 2, 3]
        assert batches.stats().bad == {}
        batches.load_state_dict({**batches.state_dict(), "delivered": 8})
        assert next(iter(batches))["index"].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("on_error", ["raise", BadImages(replace=True, max_share=1)], ids=["raise", "replace"])
def test_where_a_good_jpeg_fails_too_no_image_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_error: str | BadImages, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gpuloader.pipelines.triage.good_jpeg", lambda: np.frombuffer(damaged_jpeg(), np.uint8))
    with evaluation(spoilt(tmp_path, {5: damaged_jpeg()}), 4, output="dict", on_error=on_error) as batches:
        epoch = iter(batches)
        next(epoch)
        with pytest.raises(DeviceError, match=r"not the images: .* \(driver .*, DALI .*, nvImageCodec .*\)"):
            next(epoch)
        assert batches.stats().bad == {}
    assert caplog.text == ""


def test_replaced_images_are_said_once_and_leave_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = {3: CUT, 4: damaged_jpeg(), 17: b"<html>", 39: damaged_jpeg()}
    with loader(spoilt(tmp_path, bad), output="dict", on_error=BadImages(replace=True, max_share=0.2)) as batches:
        rows = [pair for batch in batches for pair in zip(batch["index"].tolist(), batch["valid"].tolist())]
    assert sorted(number for number, valid in rows if valid) == sorted(set(range(SAMPLES)) - set(bad))
    assert len(rows) == SAMPLES
    for key in ("000003", "000004", "000017", "000039"):
        assert sum(f"'{key}'" in record.getMessage() for record in caplog.records) == 1


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


@pytest.fixture
def open_to_tiff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets TIFFs pass the gate: on the CPU, DALI decodes or refuses the other formats whatever the window is."""

    def admit_all(image: np.ndarray, *recipe: Any) -> tuple[np.ndarray, tuple[int, int]]:  # noqa: ANN401
        return (image, (HEIGHT, WIDTH)) if image[:2].tobytes() == b"II" else admit(image, *recipe)

    monkeypatch.setattr("gpuloader.loading.admitting.admit", admit_all)


@pytest.mark.usefixtures("open_to_tiff")
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


def test_an_image_that_only_the_decoder_refuses_costs_one_pipeline(tmp_path: Path, built: list[object]) -> None:
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
