"""`Stage`: the batches of any iterable, against the loader over the same samples."""

from __future__ import annotations

import gc
import hashlib
import io
import os
import re
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from false_values import taken
from making import damaged_jpeg, encoded, jpeg, picture
from PIL import Image
from running import built_pipelines

from gpuloader import Compose, Decoder, GPULoader, Stage
from gpuloader import transforms as T
from gpuloader.errors import ConfigError, DataError, LoaderError

TRAIN = Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))])
EVALUATION = Compose([T.Resize((24, 32))], dtype="uint8")
PICTURES = [picture(40 + 3 * number, 60, number) for number in range(10)]
PNGS = [encoded(image, "PNG") for image in PICTURES]


def batches(images: list[Any], *sizes: int) -> Iterator[tuple[list[Any], list[int], list[str]]]:
    """These images in batches of these sizes, with their numbers and names."""
    ids = iter(range(len(images)))
    for size in sizes:
        numbers = [next(ids) for _ in range(size)]
        yield [images[number] for number in numbers], numbers, [f"name {number}" for number in numbers]


def alone(recipe: Compose, image: Any, number: int, **draws: int) -> torch.Tensor:  # noqa: ANN401
    return recipe(image, sample=number, **draws)


def test_the_others_come_as_they_are() -> None:
    arrays, tensors, names = np.arange(6).reshape(3, 2), torch.arange(3), ("a", "b", "c")
    [(images, ids, *others)] = Stage(EVALUATION)([[PNGS[:3], np.array([5, 6, 7]), arrays, tensors, names]])
    assert images.shape == (3, 3, 24, 32)
    assert ids.tolist() == [5, 6, 7]
    assert [other is given for other, given in zip(others, (arrays, tensors, names), strict=True)] == [True] * 3


@pytest.mark.parametrize("key", ["n01440764/0001", "", "a\0", "käse", "\udce4"])  # the last is a tar's name in Latin-1
def test_a_string_stands_for_its_hash(key: str) -> None:
    [bits, *_] = np.frombuffer(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), ">u8")
    [(images, ids)] = Stage(TRAIN, seed=3)([([PNGS[0], PNGS[1]], [key, "b"])], epoch=2)
    assert ids == [key, "b"]
    assert torch.equal(images[0], alone(TRAIN, PNGS[0], int(bits) // 2, seed=3, epoch=2))


def test_bad_images_are_known_by_their_strings() -> None:
    given = (PNGS[0], b""), np.array(["good", "bad"])
    with pytest.raises(DataError, match="image 'bad' cannot be decoded"):
        list(Stage(TRAIN)([given]))
    stage = Stage(TRAIN, on_error="skip")
    assert [ids.tolist() for _, ids in stage([given])] == [["good"]]
    assert list(stage.bad) == ["bad"]


def test_batches_may_grow_and_shrink_and_change_from_files_to_arrays() -> None:
    arrays = [np.asarray(image) for image in PICTURES]
    stage, mixed = Stage(TRAIN, seed=1), [PNGS[0], *PNGS[1:4], *PICTURES[4:9], arrays[9]]
    for epoch in range(2):
        given = list(stage(batches(mixed, 1, 3, 5, 1), epoch=epoch))
        assert [len(images) for images, *_ in given] == [1, 3, 5, 1]
        rows = torch.cat([images for images, *_ in given])
        for number, row in enumerate(rows):
            assert torch.equal(row, alone(TRAIN, arrays[number], number, seed=1, epoch=epoch))


def test_the_source_is_read_ahead() -> None:
    read, enough = [], threading.Event()

    def source() -> Iterator[Any]:
        for number in range(20):
            read.append(threading.current_thread())
            if number == 3:  # after one that is delivered, one that is decoded, and one that is read
                enough.set()
            yield PNGS[:2], [0, 1]

    loop = Stage(EVALUATION, decoder=Decoder(prefetch=1))(source())
    next(loop)
    assert enough.wait(10)  # while the loop works on its first batch
    assert threading.main_thread() not in read
    loop.close()  # type: ignore[attr-defined]
    assert len(read) == 4
    assert not any(thread.is_alive() for thread in read)


def test_a_stage_can_be_used_again_after_break_and_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    built, stage = built_pipelines(monkeypatch), Stage(EVALUATION)
    expected = [images for images, *_ in stage(batches(PNGS, 4, 4, 2))]
    for left in range(3):  # a loop that was left costs no pipeline, whatever it has under way
        for number, _ in enumerate(stage(batches(PNGS[::-1], 4, 4, 2))):
            if number == left:
                break
        assert all(map(torch.equal, (images for images, *_ in stage(batches(PNGS, 4, 4, 2))), expected))
    assert len(built) == 1

    def failing() -> Iterator[Any]:
        yield from batches(PNGS, 4, 4)
        raise ValueError("the source's own")

    for _ in range(2):
        for _ in stage(batches(PNGS, 4, 4, 2)):
            break
        with pytest.raises(ValueError, match="the source's own"):
            list(stage(failing()))
        given = [images for images, *_ in stage(batches(PNGS, 4, 4, 2))]
        assert all(map(torch.equal, given, expected))


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError])
def test_what_a_source_raises_reaches_the_loop(kind: type[BaseException]) -> None:
    def failing() -> Iterator[Any]:
        yield from batches(PNGS, 4, 3)
        raise error

    error, received = kind("mine"), []
    with pytest.raises(kind) as caught:
        received.extend(len(images) for images, *_ in Stage(EVALUATION)(failing()))
    assert (caught.value, received) == (error, [4, 3])


class Empty(list[Any]):
    """A column whose length cannot be asked for: it raises StopIteration."""

    def __len__(self) -> int:
        return next(iter(()))


def test_only_the_sources_own_next_ends_a_loop() -> None:
    received = []
    with pytest.raises(RuntimeError, match=r"StopIteration, raised in __len__ \(.*test_stage\.py, line"):
        received.extend(ids for _, ids in Stage(EVALUATION)([(PICTURES[:2], [0, 1]), ([PICTURES[0]], Empty())]))
    assert received == [[0, 1]]


def test_a_later_loop_ends_an_earlier_one() -> None:
    stage = Stage(EVALUATION)
    earlier = stage(batches(PNGS, 4, 4, 2))
    next(earlier)
    assert len(list(stage(batches(PNGS, 4, 4, 2)))) == 3
    with pytest.raises(LoaderError, match="a later one"):
        next(earlier)


def test_a_stage_that_is_dropped_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    loop = Stage(EVALUATION)(batches(PNGS, 2, 2, 2, 2, 2))
    next(loop)
    del loop
    gc.collect()
    assert set(threading.enumerate()) - before == set()


def test_a_closed_stage_holds_no_pipeline_and_can_be_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    built = built_pipelines(monkeypatch)
    threads = set(threading.enumerate())
    with Stage(EVALUATION) as stage:
        for _ in range(2):
            assert len(list(stage(batches(PNGS, 4, 4)))) == 2
            stage.close()
            next(iter(stage(batches(PNGS, 4, 4, 2))))  # left in the middle
            stage.close()
            assert [pipeline() for pipeline in built] == [None] * len(built)
            assert set(threading.enumerate()) == threads
        next(loop := iter(stage(batches(PNGS, 4, 4, 2))))
    assert built[-1]() is None
    with pytest.raises(LoaderError, match="was closed"):
        list(loop)


def test_dalis_pool_is_returned_when_nobody_else_runs_ahead(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[str] = []
    with GPULoader(shards, 8, None, preset="cifar10_eval") as loader, Stage(EVALUATION) as stage:
        next(iter(loader))
        list(stage(batches(PNGS, 4)))
        monkeypatch.setattr("gpuloader.pipelines.pipeline_runner.ReleaseUnusedMemory", lambda: returned.append("all"))
        stage.close()
        assert returned == []  # the loader has a pipeline
        list(stage(batches(PNGS, 4)))
        loader.close()
        assert returned == []  # the stage has one
        stage.close()
        assert returned == ["all"]


def test_a_forked_child_has_a_pipeline_of_its_own() -> None:
    stage = Stage(EVALUATION)
    loop = stage(batches(PNGS, 4, 4, 2))
    images, *_ = next(loop)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if not child:
        same = torch.equal(next(stage(batches(PNGS, 4, 4, 2)))[0], images)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [len(images) for images, *_ in loop] == [4, 2]


# --- bad images

BAD = {  # with a part of the cause
    "text": (b"not an image", "no image format"),
    "empty": (b"", "empty"),
    "cut": (jpeg(60, 80)[:900], ""),
    "damaged": (damaged_jpeg(), "DALI's decoder fails on it"),  # which only decoding finds
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_an_error_with_its_id_or_left_out(name: str, caplog: pytest.LogCaptureFixture) -> None:
    file, cause = BAD[name]
    with pytest.raises(DataError, match=rf"image 71 cannot be decoded: .*{cause}"):
        list(Stage(TRAIN)([([PNGS[0], file], [70, 71])]))
    files = [*PNGS[:2], file, *PNGS[3:5], file, file, *PNGS[7:]]
    stage = Stage(TRAIN, on_error="skip")
    for epoch in range(2):
        given = list(stage(batches(files, 5, 2, 3), epoch=epoch))  # all of the second batch are bad
        assert [(ids, names[-1]) for _, ids, names in given] == [([0, 1, 3, 4], "name 4"), ([7, 8, 9], "name 9")]
        for images, ids, _ in given:
            for image, number in zip(images, ids, strict=True):
                assert torch.equal(image, alone(TRAIN, PNGS[number], number, epoch=epoch))
    assert list(stage.bad) == [2, 5, 6]
    assert all(cause in each for each in stage.bad.values())
    assert sum("bad image left out" in record.message for record in caplog.records) == 3  # each once


class Unreadable:
    """An array that NumPy refuses to take."""

    def __array__(self, *_: object, **__: object) -> Any:  # noqa: ANN401
        raise ZeroDivisionError("no numbers here")


def cut(kind: str) -> Image.Image:
    """A PIL image whose file ends too early, opened but not decoded yet, as `Image.open` gives it."""
    whole = encoded(picture(300, 400), kind)
    return Image.open(io.BytesIO(whole[: len(whole) // 2]))


UNREADABLE = {  # with a part of the cause
    "a JPEG that is cut": (lambda: cut("JPEG"), "this JpegImageFile cannot become an array: image file is truncated"),
    "a PNG that is cut": (lambda: cut("PNG"), "this PngImageFile cannot become an array: "),
    "rows of two lengths": (lambda: [[1], [2, 3]], "this list cannot become an array: .*inhomogeneous"),
    "a user's class": (Unreadable, "this Unreadable cannot become an array: no numbers here"),
}


@pytest.mark.parametrize("orientation", ["apply", "off"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_an_image_in_memory_that_cannot_become_an_array_is_bad(name: str, orientation: Any) -> None:  # noqa: ANN401
    make, cause = UNREADABLE[name]
    recipe = Compose([T.Resize((24, 32))], orientation=orientation)
    stage = Stage(recipe, on_error="skip")
    given = [(PICTURES[:1], [3]), ([PICTURES[1], make()], [4, 5]), ([make()], [6]), (PICTURES[2:3], [7])]
    assert [ids for _, ids in stage(given)] == [[3], [4], [7]]
    assert list(stage.bad) == [5, 6]
    assert all(re.match(cause, each) for each in stage.bad.values())
    with pytest.raises(DataError, match=f"image 5 cannot be decoded: {cause}"):
        list(Stage(recipe)([([PICTURES[1], make()], [4, 5])]))
    with pytest.raises(DataError, match=f"image 1 cannot be decoded: {cause}"):
        recipe([PICTURES[1], make()])


def test_skip_leaves_rows_of_arrays_and_tensors_out() -> None:
    stage = Stage(EVALUATION, on_error="skip")
    given = ([PNGS[0], b"", PNGS[2]], torch.tensor([4, 5, 6]), np.eye(3), ("a", "b", "c"))
    [(images, ids, rows, names)] = stage([given])
    assert (len(images), ids.tolist(), rows.tolist(), names) == (2, [4, 6], np.eye(3)[[0, 2]].tolist(), ["a", "c"])


def test_an_image_that_would_be_too_large_is_bad() -> None:
    recipe = Compose([T.Resize(400)], batch="list")
    flat = np.zeros((4, 400, 3), np.uint8)  # 400 x 40000
    stage = Stage(recipe, on_error="skip")
    [(images, ids)] = stage([([flat, np.zeros((40, 40, 3), np.uint8)], [0, 1])])
    assert (len(images), ids, list(stage.bad)) == (1, [1], [0])


# --- refusals


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (PNGS[0], "tuples"),
        ({"images": PNGS[:2]}, "tuples"),
        ((PNGS[0], [1]), "a list of images"),
        ((PNGS[:2], [1]), "ids: the source gave"),
        ((PNGS[:2], [1, -1]), r"integer in \[0, 2\*\*63\)"),
        ((PNGS[:2], [1, 2**63]), r"integer in \[0, 2\*\*63\)"),
        ((PNGS[:2], ["a", 1]), "or a string for each"),
        ((PNGS[:1], [1], np.array(3)), "the entry 0"),  # of shape ()
        ((set(PNGS[:1]), [1]), "a list of images"),  # which has no order
        ((PNGS[:2], [1, 2], [1, 2], [1]), "the entry 1"),
        (([PNGS[0], PICTURES[1]], [1, 2]), "1 of 2 images are bytes"),
        (([np.zeros((3, 4, 4), np.uint8)], [1]), "image 0 is uint8 of shape"),
    ],
)
def test_what_else_a_source_gives_is_refused(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(Stage(EVALUATION, on_error="skip")([given]))


@pytest.mark.parametrize(
    "preset", [{"transforms": [{"Resize": {"size": [24, 32]}}]}, {"cifar10_eval": {"dtype": "float16"}}], ids=str
)
def test_a_recipe_and_a_decoder_may_be_dictionaries(preset: dict[str, Any]) -> None:
    [(images, _)] = Stage(preset, decoder={"num_threads": 1, "prefetch": 3})([(PNGS[:2], [0, 1])])
    assert torch.equal(images, Compose.load(preset)(PNGS[:2]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decoder": {"threads": 3}}, "`decoder.threads` is an unknown key"),
        ({"preset": Compose([T.RandomResizedCrop(32)], mix=T.Mix(num_classes=3, mixup_alpha=0.2))}, "mix=None"),
        ({"preset": Compose([T.RandomIoUCrop(), T.Resize((8, 8))])}, "RandomIoUCrop draws by boxes"),
        ({"on_error": "replace"}, '"raise" and "skip"'),
        ({"seed": -1}, "seed=-1"),
        ({"source": None}, "source=None: allowed is what a `for` loop takes"),
        ({"source": 3}, "source=3: allowed is what a `for` loop takes"),
        ({"epoch": -1}, "epoch=-1"),  # before anything is read
    ],
)
def test_an_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    call = {name: arguments[name] for name in ("source", "epoch") if name in arguments}
    made = {name: arguments[name] for name in arguments.keys() - call.keys()}
    with pytest.raises(ConfigError, match=message):
        Stage(**{"preset": TRAIN, **made})(**{"source": [], **call})


@pytest.mark.parametrize(("name", "allowed"), [("preset", ""), ("on_error", ""), ("seed", "0"), ("decoder", "{}")])
def test_values_that_count_as_false_are_no_defaults(name: str, allowed: str) -> None:
    assert taken(lambda value: Stage(**{"preset": "cifar10_eval", "device_id": None, name: value})) == allowed


def test_an_empty_batch_is_passed_over() -> None:
    assert [ids for _, ids in Stage(EVALUATION)([([], []), (PNGS[:1], [3]), ([], [])])] == [[3]]
