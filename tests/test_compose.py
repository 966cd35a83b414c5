"""`Compose` run by itself: what it takes and gives, against the loader and torchvision."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from false_values import taken
from gpu_graph import GPU, gpu_graph
from lifecycles import left_behind, threads_and_files
from making import damaged_jpeg, encoded, jpeg, picture
from oracle import transforms
from running import built_pipelines

from gpuloader import Compose, GPULoader
from gpuloader import transforms as T
from gpuloader.errors import ConfigError, DataError, PresetError

pytestmark = pytest.mark.slow(kept=13, of="compose")

v2 = transforms.v2
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMAL = v2.Normalize(MEAN, STD)
FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
PICTURES = [picture(*size, seed) for seed, size in enumerate([(60, 80), (80, 60), (33, 51), (64, 64), (48, 97)])]
ARRAYS = [np.asarray(image) for image in PICTURES]
FILES = [encoded(image, "PNG") for image in PICTURES]


@pytest.fixture
def train() -> Compose:
    """Draws much."""
    changes = [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    return Compose([*changes, T.Normalize(MEAN, STD)])


@pytest.fixture
def evaluation() -> Compose:
    """Draws nothing."""
    return Compose([T.Resize(40), T.CenterCrop(32)], dtype="uint8")


# --- what it takes and gives


def test_an_image_may_be_an_array_pillows_or_a_file(train: Compose) -> None:
    expected = train(ARRAYS[0])
    assert expected.shape == (3, 32, 32)
    assert expected.dtype == torch.float32
    for image in (PICTURES[0], FILES[0], bytearray(FILES[0]), np.asfortranarray(ARRAYS[0])):
        assert torch.equal(train(image), expected)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("images", [ARRAYS, PICTURES, FILES], ids=["arrays", "Pillow's", "files"])
def test_a_list_is_a_batch_of_samples_in_their_order(train: Compose, images: list[Any], count: int) -> None:
    batch = train(images[:count], sample=7)
    assert batch.shape == (count, 3, 32, 32)
    for number, tensor in enumerate(batch):
        assert torch.equal(train(images[number], sample=7 + number), tensor)


def test_several_views_are_a_list() -> None:
    compose = Compose(views=[T.View([T.RandomResizedCrop(32)]), T.View([T.RandomResizedCrop((16, 24))], count=2)])
    one, batch = compose(ARRAYS[0], sample=3), compose(ARRAYS[:2], sample=3)
    assert [tuple(view.shape) for view in one] == [(3, 32, 32), (3, 16, 24), (3, 16, 24)]
    assert [tuple(view.shape) for view in batch] == [(2, 3, 32, 32), (2, 3, 16, 24), (2, 3, 16, 24)]
    assert all(torch.equal(view, views[0]) for view, views in zip(one, batch, strict=True))
    assert not torch.equal(one[1], one[2])


def test_what_it_gave_stays_as_it_is(train: Compose) -> None:
    held = train(ARRAYS[0])
    kept = held.clone()
    for image in ARRAYS:
        train(image)
    assert torch.equal(held, kept)


# --- draws


def test_draws_repeat_and_differ_by_seed_epoch_and_sample(train: Compose) -> None:
    places = [{}, {"sample": 1}, {"epoch": 1}, {"seed": 1}, {"sample": 2**62, "epoch": 2**32 - 1, "seed": 2**64 - 1}]
    first = [train(ARRAYS[0], **place) for place in places]
    again = [train(ARRAYS[0], **place) for place in reversed(places)][::-1]
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)
    assert len({tensor.numpy().tobytes() for tensor in first}) == len(places)


def test_numpys_integers_are_integers(train: Compose) -> None:
    numbers = {"seed": np.uint64(3), "epoch": np.int32(1), "sample": np.int64(5)}
    assert torch.equal(train(ARRAYS[0], **numbers), train(ARRAYS[0], seed=3, epoch=1, sample=5))


# --- as a recipe


@pytest.mark.parametrize(
    ("transform", "options", "training"),
    [
        (transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()]), {}, True),
        (v2.Compose([v2.Resize(9), v2.CenterCrop(8), v2.RandomHorizontalFlip()]), {}, True),
        (v2.Compose([v2.Resize(9), v2.CenterCrop(8), *FLOAT]), {"mix": T.Mix(10, 1.0)}, True),
        (transforms.Compose([transforms.Resize(9), transforms.CenterCrop(8), transforms.ToTensor()]), {}, False),
        (v2.Compose([v2.Resize(9), v2.CenterCrop(8)]), {"views": 2}, False),
    ],
)
def test_what_draws_is_loaded_for_training_and_else_for_evaluation(
    shards: list[Path], transform: object, options: dict[str, Any], training: bool
) -> None:
    recipe = Compose.from_torchvision(transform, **options)
    with GPULoader(shards, 16, None, preset=recipe, output="dict") as loader:
        ids = [number for batch in loader for number in batch["index"].tolist()]
    assert len(ids) == (32 if training else 40)  # of 40
    assert (ids == sorted(ids)) != training
    with GPULoader(shards, 16, None, preset=recipe, output="dict", shuffle="none", last_batch="pad") as loader:
        assert [batch["index"].tolist()[0] for batch in loader] == [0, 16, 32]  # the loader's arguments have the say


def test_a_recipe_is_loaded_with_values_replaced(train: Compose) -> None:
    compose = Compose.load("imagenet_eval", CenterCrop={"size": 24}, Resize={"size": 24}, Normalize=None)
    assert torch.equal(compose(ARRAYS[0]), Compose([T.Resize(24), T.CenterCrop(24)])(ARRAYS[0]))
    assert Compose.load(train) == train
    with pytest.raises(PresetError, match="no preset is called 'imagenet_evil'"):
        Compose.load("imagenet_evil")


@pytest.mark.parametrize("batch", ["list", {"pad": 64}], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_without_transforms_it_only_decodes(batch: Any, dtype: Any) -> None:  # noqa: ANN401
    for made, array in zip(Compose([], batch=batch, dtype=dtype)(FILES), ARRAYS, strict=True):
        height, width, _ = array.shape
        expected = torch.from_numpy(array.copy()).permute(2, 0, 1)
        expected = expected if dtype == "uint8" else expected / 255
        torch.testing.assert_close(made[:, :height, :width], expected, rtol=0, atol=1e-7)  # levels are exact
        assert made.shape[1:] == ((height, width) if batch == "list" else (128, 128))
        assert torch.count_nonzero(made) == torch.count_nonzero(expected)  # the padding is 0


def test_a_mix_is_left_to_the_loader() -> None:
    mixing, plain = (Compose.load("resnet50_v2", RandomResizedCrop={"size": 32}, **mix) for mix in ({}, {"mix": None}))
    assert torch.equal(mixing(ARRAYS[:2]), plain(ARRAYS[:2]))


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda compose: pickle.loads(pickle.dumps(compose))])
def test_it_can_be_copied_and_pickled_also_after_it_ran(train: Compose, make: Any) -> None:  # noqa: ANN401
    expected = train(ARRAYS[0])
    other = make(train)
    assert other == train
    assert torch.equal(other(ARRAYS[0]), expected)


# --- torchvision


@pytest.mark.parametrize(
    ("transform", "levels"),
    [
        (transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()]), 1),
        (transforms.Compose([transforms.Resize((30, 37)), transforms.ToTensor(), NORMAL]), 1 / 0.224),
        (v2.Compose([v2.Resize(40, antialias=True), v2.CenterCrop((32, 24)), *FLOAT, NORMAL]), 1 / 0.224),
        (v2.Compose([v2.Resize(40, max_size=45), v2.CenterCrop(45), *FLOAT]), 1),
        (v2.Compose([v2.Resize((32, 30), v2.InterpolationMode.BICUBIC), *FLOAT]), 2),
        (v2.Compose([v2.Resize((32, 30)), v2.Pad((1, 2, 3, 4), fill=(9, 100, 200)), *FLOAT]), 1),
        (v2.Compose([v2.Resize((32, 30)), v2.Pad(5, padding_mode="reflect"), *FLOAT]), 1),
        (v2.Compose([v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0), v2.Resize((20, 30)), *FLOAT]), 1),
        (v2.Compose([v2.Resize((32, 30)), v2.RandomHorizontalFlip(0.0), v2.RandomInvert(1.0), *FLOAT]), 1),
        (v2.Compose([v2.Resize((32, 30)), v2.GaussianBlur(5, 1.5), *FLOAT]), 2),
        (v2.Compose([v2.Resize((32, 30)), v2.ColorJitter(brightness=(1.5, 1.5)), *FLOAT]), 2),
        ([v2.Resize((32, 30)), v2.Compose([v2.RandomApply([v2.RandomInvert(1.0)], 1.0), v2.Compose(FLOAT)])], 1),
    ],
)
def test_from_torchvision_does_what_torchvision_does(transform: Any, levels: float) -> None:  # noqa: ANN401
    ours = Compose.from_torchvision(transform)
    theirs = v2.Compose(transform) if isinstance(transform, list) else transform
    for image in PICTURES:
        difference = (ours(image) - theirs(image)).abs().max().item()
        assert difference <= levels / 255 + 1e-5


def test_from_torchvision_without_floats_gives_levels() -> None:
    transform = v2.Compose([v2.Resize((16, 25), v2.InterpolationMode.NEAREST), v2.PILToTensor()])
    ours = Compose.from_torchvision(transform)(PICTURES[2])
    assert ours.dtype == torch.uint8
    assert torch.equal(ours, transform(PICTURES[2]))


# --- errors


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        ([], ConfigError, "images: found 0, 0 of them bytes: give at least one, all arrays or all bytes"),
        ([ARRAYS[0], FILES[0]], ConfigError, "images: found 2, 1 of them bytes"),
        (ARRAYS[0][..., 0], ConfigError, r"image 0 is uint8 of shape \(60, 80\): allowed are the bytes of a file"),
        (ARRAYS[0] / np.float32(255), ConfigError, r"image 0 is float32 of shape \(60, 80, 3\)"),
        (ARRAYS[0][:0], ConfigError, r"image 0 is uint8 of shape \(0, 80, 3\)"),
        ("cat.jpg", ConfigError, "image 0 is a str: allowed are the bytes of a file, PIL images, and uint8"),
        (b"<html>", DataError, "image 0 cannot be decoded: no image format that DALI reads"),
        ([FILES[0], jpeg(64, 64)[:-30]], DataError, "image 1 cannot be decoded: a JPEG that is cut"),
        ([jpeg(64, 64), damaged_jpeg(), FILES[0]], DataError, "^image 1 cannot be decoded: DALI's decoder fails on"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_what_is_no_image_is_named(evaluation: Compose, images: Any, error: type[Exception], message: str) -> None:  # noqa: ANN401
    with pytest.raises(error, match=message):
        evaluation(images)


@pytest.mark.parametrize(("name", "value", "end"), [("seed", -1, 64), ("epoch", 2**32, 32), ("sample", -1, 63)])
def test_numbers_out_of_range_and_false_are_refused(evaluation: Compose, name: str, value: int, end: int) -> None:
    with pytest.raises(ConfigError, match=rf"{name}={value}: allowed is an integer in \[0, 2\*\*{end}\)"):
        evaluation(ARRAYS[0], **{name: value})  # type: ignore[call-overload]
    assert taken(lambda value: evaluation(ARRAYS[0], **{name: value})) == "0"  # type: ignore[call-overload]


def test_values_that_count_as_false_are_no_list_of_functions() -> None:
    assert taken(lambda value: Compose.load("cifar10_eval", functions=value)) == "() [] {}"  # type: ignore[arg-type]


# --- threads and processes


def test_a_bad_image_in_one_thread_does_not_harm_another() -> None:
    compose, good, bad = Compose([T.Resize((16, 16))]), jpeg(64, 64), damaged_jpeg()
    expected = compose(good)

    def run(number: int) -> torch.Tensor | None:
        try:
            return compose(bad if number % 3 == 0 else good)
        except DataError:
            return None

    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(run, range(60)))
    for number, tensor in enumerate(got):
        assert (tensor is None) if number % 3 == 0 else torch.equal(tensor, expected)


def test_it_ends_its_threads_with_itself() -> None:
    def run() -> Compose:
        compose = Compose([T.RandomResizedCrop(32), T.ColorJitter(0.4)])
        compose(ARRAYS)
        compose(jpeg(64, 64))
        return compose

    run()  # libraries keep threads and files of their own from their first use on
    gc.collect()
    at_start = threads_and_files()
    gc.disable()
    try:
        compose = run()
        assert threads_and_files() - at_start
        del compose
        assert left_behind(at_start) == {}
    finally:
        gc.enable()


def test_the_last_graph_alone_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    built = built_pipelines(monkeypatch)
    compose = Compose([T.Resize((8, 9))])
    expected = [compose(image) for image in ARRAYS]
    for count, graphs in ((3, 2), (4, 2), (1, 2), (5, 3), (2, 3)):  # made for 1 image, then for 4, then for 8
        assert torch.equal(compose(ARRAYS[:count]), torch.stack(expected[:count]))
        assert (len(built), sum(each() is not None for each in built)) == (graphs, 1)
    compose(FILES)
    assert (len(built), sum(each() is not None for each in built)) == (4, 1)
    with gpu_graph():
        torch.testing.assert_close(compose(ARRAYS, device_id=GPU), torch.stack(expected), rtol=0, atol=0.02)
        assert (len(built), sum(each() is not None for each in built)) == (5, 1)
        compose.close()
        compose.close()
        assert [each() for each in built] == [None] * 5
    assert torch.equal(compose(ARRAYS[0]), expected[0])


def test_a_forked_child_makes_its_own_pipeline_and_can_exit() -> None:
    script = (
        "import os, sys, warnings\n"
        "import numpy as np\n"
        "from gpuloader import Compose\n"
        "from gpuloader.recipe.crops import Resize\n"
        "warnings.simplefilter('ignore')\n"
        "compose, image = Compose([Resize((16, 16))]), np.zeros((20, 20, 3), np.uint8)\n"
        "compose(image)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    print(tuple(compose(image).shape), flush=True)\n"
        "    sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "print(tuple(compose(image).shape))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout == "(3, 16, 16)\n(3, 16, 16)\n"
