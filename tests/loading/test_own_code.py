"""Own code in a loader: the same pixels wherever it runs, exactly once, and errors that name the sample."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import active_children
from pathlib import Path
from threading import get_native_id
from typing import Any

import numpy as np
import pytest
import scenes
import torch
from lifecycles import left_behind, threads_and_files
from loaders import CUT, seen
from making import jpeg
from numpy.typing import NDArray
from scenes import assert_same, by_sample, shard
from torchvision.transforms import v2

from gpuloader import BadImages, Compose, Decoder, GPULoader
from gpuloader import transforms as T
from gpuloader.chain import own_workers
from gpuloader.errors import ConfigError, DataError, LoaderError
from gpuloader.recipe import Recipe
from gpuloader.recipe.model import Transform

Levels = NDArray[np.uint8]
CROP, FLIP, JITTER = T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)
NORMAL, ERASE = T.Normalize([0.5] * 3, [0.25] * 3), T.RandomErasing()
FILES = [jpeg(60 + 7 * number, 90 - 5 * number, number) for number in range(6)]


def same(image: Levels, rng: np.random.Generator) -> Levels:
    return image


def grain(image: Levels, rng: np.random.Generator) -> Levels:
    return (image + rng.normal(0, 20, image.shape)).clip(0, 255).astype(np.uint8)


def from_all_generators(image: Levels, rng: np.random.Generator) -> Levels:
    """What others' code draws from."""
    drawn = random.random(), np.random.random(), torch.rand(()).item()
    return (image * np.array(drawn)).astype(np.uint8)


def turned(image: Levels) -> Levels:
    return image[:, ::-1]


def larger(image: Levels, rng: np.random.Generator) -> Levels:
    return np.pad(image, [(0, int(rng.integers(0, 40))), (0, int(rng.integers(0, 40))), (0, 0)])


def load(tar: Any, transforms: Sequence[Transform], *, processes: int = 0, **options: Any) -> GPULoader:  # noqa: ANN401
    recipe = Recipe(transforms, **options.pop("recipe", {}))
    arguments = {"output": "dict", "batch_size": 8, "device_id": None, **options}
    return GPULoader(tar, preset=recipe, decoder=Decoder(2, processes=processes), **arguments)


# Pixels.


@pytest.mark.parametrize(
    "transforms",
    [
        [T.Apply(same), CROP, FLIP, JITTER, NORMAL, ERASE],
        [CROP, T.Apply(same), FLIP, JITTER, NORMAL, ERASE],
        [CROP, FLIP, JITTER, T.Apply(same), JITTER, NORMAL, ERASE],
        [CROP, FLIP, JITTER, FLIP, T.Apply(same), NORMAL, ERASE],  # flips among the colours, too
    ],
    ids=lambda transforms: str([type(each).__name__ for each in transforms].index("Apply")),
)
def test_a_recipe_cut_at_own_code_makes_the_pixels_of_the_whole(transforms: list[Transform]) -> None:
    whole = [each for each in transforms if not isinstance(each, T.Apply)]
    if isinstance(whole[2], T.Normalize):
        whole.insert(2, JITTER)
    given = {"seed": 3, "epoch": 2, "sample": 10}
    assert torch.equal(Compose(transforms)(FILES, **given), Compose(whole)(FILES, **given))


def test_a_recipe_of_one_pass_is_rounded_to_levels_between() -> None:
    whole, cut = (Compose(each)(FILES, seed=3) for each in ([CROP, NORMAL], [CROP, T.Apply(same), NORMAL]))
    assert 0 < ((whole - cut).abs().max() * 0.25 * 255).item() <= 0.5001


def test_it_gets_the_levels_before_it_and_its_result_is_what_follows() -> None:
    """The oracle is NumPy on the image that the recipe without it makes."""
    before = Compose([CROP, JITTER], dtype="uint8")(FILES, seed=3).numpy()
    made = Compose([CROP, JITTER, T.Apply(turned), NORMAL])(FILES, seed=3)
    expected = (torch.from_numpy(before[..., ::-1].copy()) / 255 - 0.5) / 0.25
    assert torch.allclose(made, expected, atol=1e-6)


def test_generators_that_others_code_draws_from_are_seeded_in_processes(shards: list[Path]) -> None:
    """Threads do not seed the generators of the process: there `rng` alone is repeatable."""
    runs = []
    for processes in (1, 3):
        with load(shards, [CROP, T.Apply(from_all_generators), NORMAL], processes=processes, seed=7) as batches:
            runs.append([seen(batches), seen(batches)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]  # another epoch


def test_a_call_leaves_the_generators_of_the_program_as_they_are() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.random(), torch.rand(()).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    Compose([CROP, T.Apply(from_all_generators)])(FILES)
    assert (random.random(), np.random.random(), torch.rand(()).item()) == expected


def test_torchvisions_transforms_work_as_they_are(shards: list[Path]) -> None:
    before = Compose([CROP], dtype="uint8")(FILES, seed=3)
    made = Compose([CROP, T.Apply(v2.RandomPosterize(2, p=1))], dtype="uint8")(FILES, seed=3)
    assert torch.equal(made, v2.functional.posterize(before, 2))
    with load(shards, [CROP, T.Apply(v2.RandomPerspective(p=1))], processes=2, seed=5) as batches:
        processes = seen(batches)
    with load(shards, [CROP, T.Apply(v2.RandomPerspective(p=1))], processes=1, seed=5) as batches:
        assert seen(batches) == processes


def test_an_image_is_its_own_to_change() -> None:
    def black(image: Levels) -> Levels:
        image[:] = 0
        return image

    pictures = [np.full((9, 9, 3), 200, np.uint8)]
    assert Compose([T.Apply(black)], dtype="uint8", batch="list")(pictures)[0].max() == 0
    assert pictures[0].min() == 200


def test_sizes_that_it_changes(shards: list[Path]) -> None:
    """What follows draws by the sizes that come out, and a batch says how large its images are."""
    transforms = [T.Apply(larger, same_size=False), T.Resize((20, 30)), NORMAL]
    with load(shards, transforms, processes=2, shuffle="none") as batches:
        assert {batch["image"].shape for batch in batches} == {(8, 3, 20, 30)}
    own = T.Apply(larger, same_size=False)
    with load(shards, [own], processes=2, shuffle="none", recipe={"batch": "list", "dtype": "uint8"}) as batches:
        made = [(size.tolist(), image) for batch in batches for size, image in zip(batch["size"], batch["image"])]
    assert [size for size, _ in made] == [list(image.shape[1:]) for _, image in made]
    assert len({tuple(size) for size, _ in made}) > 20
    with load(shards, [own], processes=0, shuffle="none", recipe={"batch": {"pad": 8}, "dtype": "uint8"}) as batches:
        masks = [mask for batch in batches for mask in batch["pixel_mask"]]
    assert [[int(mask.any(1).sum()), int(mask.any(0).sum())] for mask in masks] == [size for size, _ in made]


def test_each_view_has_its_own() -> None:
    views = [T.View([T.Apply(grain), NORMAL], 2), T.View([NORMAL])]
    one, other, plain = Compose([T.CenterCrop(24)], views=views)(FILES, seed=3)
    assert not torch.equal(one, other)
    assert torch.equal(plain, Compose([T.CenterCrop(24)], views=[views[1]] * 3)(FILES, seed=3)[2])


def test_each_view_has_its_own_targets(tmp_path: Path) -> None:
    tar = shard(tmp_path)
    own: list[Transform] = [T.Apply(nothing, targets=True), NORMAL]
    of_views: list[list[Transform]] = [[T.Resize((40, 60))], MOVING]
    found = []
    for behind in (own, [NORMAL]):
        with scenes.loader(tar, preset=Recipe(views=[T.View([*each, *behind]) for each in of_views])) as batches:
            found.append([boxes for batch in batches for view in batch["boxes"] for boxes in view])
    assert len(found[0]) == len(found[1]) > 0
    assert all(torch.allclose(ours, theirs, atol=1e-3) for ours, theirs in zip(*found))


def test_views_that_share_it_get_one_result() -> None:
    calls = []

    def counted(image: Levels, rng: np.random.Generator) -> Levels:
        calls.append(1)
        return grain(image, rng)

    shared = Compose([CROP, T.Apply(counted)], views=[T.View([NORMAL]), T.View([NORMAL]), T.View([JITTER, NORMAL])])
    first, second, third = shared(FILES, seed=3)
    assert torch.equal(first, Compose([CROP, T.Apply(grain), NORMAL])(FILES, seed=3))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert len(calls) == len(FILES) + 2  # the first image is tried twice before


# Targets.

COLUMNS = ("boxes", "boxes_labels", "boxes_iscrowd", "boxes_area", "boxes_number")
MOVING: list[Transform] = [
    T.RandomResizedCrop((40, 56), scale=(0.5, 1), interpolation="nearest"),
    T.RandomVerticalFlip(),
]


def nothing(image: Levels, targets: dict[str, Any], rng: np.random.Generator) -> tuple[Levels, dict[str, Any]]:
    return image, targets


def flipped_boxes(boxes: Any, width: int) -> Any:  # noqa: ANN401
    return np.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1)


def flipped(image: Levels, targets: dict[str, Any]) -> tuple[Levels, dict[str, Any]]:
    """As RandomHorizontalFlip(1) does it."""
    width, points = image.shape[1], targets["points"]
    return image[:, ::-1], {
        **targets,
        "boxes": flipped_boxes(targets["boxes"], width),
        "points": np.stack([width - 1 - points[..., 0], points[..., 1]], -1)[:, ::-1],  # the pair changes places
        "points_visibility": targets["points_visibility"][:, ::-1],
        "mask": targets["mask"][:, ::-1],
        "objects": targets["objects"][..., ::-1],
    }


def scene(tar: Path, transforms: Sequence[Transform], **options: Any) -> dict[int, dict[str, Any]]:  # noqa: ANN401
    with scenes.loader(tar, preset=Recipe(transforms), **options) as batches:
        return by_sample(batches)


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize(
    "cut",
    [
        lambda own: [own, *MOVING, NORMAL],
        lambda own: [*MOVING, own, JITTER, NORMAL],
        lambda own: [MOVING[0], own, MOVING[1], NORMAL],  # geometry on both sides
    ],
)
def test_targets_go_through_it_as_through_a_transform_of_the_recipe(
    tmp_path: Path, cut: Callable[..., list[Transform]], processes: int
) -> None:
    tar = shard(tmp_path)
    decoder = Decoder(2, processes=processes)
    with_own = scene(tar, cut(T.Apply(flipped, targets=True)), decoder=decoder)
    expected = scene(tar, cut(T.RandomHorizontalFlip(1)))
    for number, sample in expected.items():
        for name in (
            "boxes",
            "boxes_labels",
            "boxes_area",
            "boxes_number",
            "points",
            "points_visibility",
            "mask",
            "objects",
        ):
            assert torch.allclose(with_own[number][name].double(), sample[name].double(), atol=1e-3), (name, number)


def test_rows_that_it_leaves_out_go_from_all_columns(tmp_path: Path) -> None:
    def first_only(image: Levels, targets: dict[str, Any]) -> tuple[Levels, dict[str, Any]]:
        kept = {name: value[1:] if name.startswith("boxes") else value for name, value in targets.items()}
        return image, kept

    tar = shard(tmp_path)
    left, whole = (scene(tar, [T.Resize((40, 60)), *own]) for own in ([T.Apply(first_only, targets=True)], []))
    for number, sample in whole.items():
        for name in COLUMNS:
            assert torch.equal(left[number][name], sample[name][1:])


def test_transforms_that_draw_by_boxes_draw_by_those_behind_it(tmp_path: Path) -> None:
    tar, draw = shard(tmp_path), [T.RandomIoUCrop(), T.Resize((40, 60)), JITTER, NORMAL]
    assert_same(scene(tar, [T.Apply(nothing, targets=True), *draw]), scene(tar, draw))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda image, targets: image, "TypeError: it returned array("),
        (lambda image, targets: (image, {}), "own code returned no target 'boxes' that can be used: it is missing"),
        (
            lambda image, targets: (image, {**targets, "boxes": np.zeros((9, 4))}),
            "9 boxes, and {'labels': 0, 'iscrowd': 0, 'area': 0, 'number': 0}: allowed are finite boxes, with a row",
        ),
        (
            lambda image, targets: (image, {**targets, "boxes": targets["boxes"] + np.nan, "mask": 0}),
            "own code returned no target",
        ),
    ],
)
def test_targets_that_cannot_be_used_are_an_error(tmp_path: Path, made: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(DataError) as caught:
        scene(shard(tmp_path), [T.Apply(made, name="own", targets=True), T.Resize((40, 60))])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        (
            [T.Apply(larger, same_size=False), T.Resize((40, 60))],
            "targets cannot follow larger, because it changes sizes",
        ),
        (
            [T.Apply(same), T.RandomIoUCrop(), T.Resize((9, 9))],
            "because RandomIoUCrop after it needs boxes: use Apply(",
        ),
    ],
)
def test_targets_that_cannot_follow_are_refused(tmp_path: Path, transforms: list[Transform], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenes.loader(shard(tmp_path), preset=Recipe(transforms))
    assert message in str(caught.value)
    with pytest.raises(ConfigError):
        Compose(transforms)(FILES[0], {"boxes": np.array([[1, 2, 3, 4]])})


def test_a_call_moves_the_targets_that_it_was_given() -> None:
    def flip(image: Levels, targets: dict[str, Any]) -> tuple[Levels, dict[str, Any]]:
        assert targets["boxes"].dtype == np.float64
        return image[:, ::-1], {**targets, "boxes": flipped_boxes(targets["boxes"], image.shape[1])}

    target = {
        "boxes": np.array([[8.0, 6.0, 40.0, 30.0], [1, 1, 90, 60]]),
        "labels": torch.tensor([3, 4]),
        "image_id": 9,
    }
    own, expected = (
        Compose([T.RandomResizedCrop(24), each, JITTER])(FILES[0], dict(target), seed=2)
        for each in (T.Apply(flip, targets=True), T.RandomHorizontalFlip(1))
    )
    assert torch.equal(own[0], expected[0])
    assert torch.allclose(own[1]["boxes"], expected[1]["boxes"], atol=1e-4)
    assert torch.equal(own[1]["labels"], expected[1]["labels"])
    assert own[1]["image_id"] == 9


# Order.


# Bad images.


def of_a_scene(image: Levels) -> Levels:
    """Refuses the image that stands for a skipped one: scenes have a black edge."""
    assert image[0].max() == 0
    return image


def with_targets(image: Levels, targets: dict[str, Any]) -> tuple[Levels, dict[str, Any]]:
    return of_a_scene(image), {name: targets[name] for name in ("boxes", "points", "mask", "objects")} | targets


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("own", [T.Apply(of_a_scene), T.Apply(with_targets, targets=True)])
def test_it_does_not_see_a_sample_that_is_skipped(tmp_path: Path, own: T.Apply, processes: int) -> None:
    """The oracle is the run without it, which leaves out the same samples."""
    tar = shard(tmp_path, {3: {"png": b"no image"}, **{number: {"png": CUT} for number in (4, 5, 6, 7)}})
    options = {"on_error": BadImages(skip=True, max_share=0.5), "decoder": Decoder(2, processes=processes)}
    made, expected = (scene(tar, [T.Resize((40, 60)), *each, JITTER, NORMAL], **options) for each in ([own], []))
    assert set(made) == {0, 1, 2, 8, 9, 10, 11}
    for number, sample in made.items():
        for name in ("image", *COLUMNS, "points", "mask", "objects"):
            assert torch.equal(sample[name], expected[number][name]), (name, number)


# Errors.


def raising(image: Levels, rng: np.random.Generator) -> Levels:
    if rng.random() < 0.05:
        raise KeyError("oops")
    return image


@pytest.mark.parametrize("processes", [0, 2])
def test_an_error_ends_the_loop_and_names_the_sample_and_not_the_cursor(shards: list[Path], processes: int) -> None:
    with load(shards, [CROP, T.Apply(raising)], processes=processes, seed=3) as batches:
        rows: list[int] = []
        with pytest.raises(DataError) as caught:
            rows.extend(len(batch["image"]) for batch in batches)
        message = str(caught.value)
        assert "raising failed on '" in message
        assert ".tar: KeyError: 'oops'" in message
        assert 'raise KeyError("oops")' in message  # its own lines
        assert "own_function" not in message  # and none of ours
        assert batches.state_dict()["delivered"] == sum(rows)
        assert batches.stats().bad == {}  # a bug is no bad image
        with pytest.raises(DataError, match="oops"):  # the same batch comes again
            next(iter(batches))
    assert isinstance(caught.value.__cause__, KeyError) == (processes == 0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda image: None, "TypeError: it returned None: allowed is an array (height, width, 3) of uint8"),
        (lambda image: image / 255, "TypeError: it returned float64 of shape (24, 24, 3): allowed is an array"),
        (lambda image: image[..., 0], "TypeError: it returned uint8 of shape (24, 24): allowed is an array"),
        (lambda image: image[:9], "ValueError: it made 9 x 24 pixels of 24 x 24: keep the size, or declare others by"),
        (lambda image: {}[1], "KeyError: 1"),
        (lambda image: next(iter([])), "StopIteration"),  # which would end the loop as its end
    ],
)
def test_what_is_no_image_is_an_error(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        Compose([CROP, T.Apply(function, name="own")])(FILES)
    assert str(caught.value).startswith(f"own failed on image 0: {message}")


GENERATOR = np.random.default_rng(3)


def own_generator(image: Levels) -> Levels:
    return (image + GENERATOR.normal(0, 20, image.shape)).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("processes", [0, 1])
def test_code_that_draws_from_a_generator_of_its_own_is_found_at_the_first_image(
    shards: list[Path], processes: int
) -> None:
    message = "it made two different images of one, with the same random numbers"
    recipe = [CROP, T.Apply(own_generator)]
    with load(shards, recipe, processes=processes) as batches:
        for _ in range(2):  # also after an error: the check has not passed
            with pytest.raises(DataError, match=message):
                next(iter(batches))
    compose = Compose(recipe)
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            compose(FILES)


@pytest.mark.parametrize("processes", [0, 2])
def test_each_process_or_thread_checks_its_first_image(shards: list[Path], tmp_path: Path, processes: int) -> None:
    def noted(image: Levels) -> Levels:
        with (tmp_path / str(get_native_id())).open("ab") as file:
            file.write(hashlib.sha256(image.tobytes()).digest())
        return image

    with load(shards, [CROP, T.Apply(noted)], processes=processes) as batches:
        next(iter(batches))
    calls = [path.read_bytes() for path in tmp_path.iterdir()]
    assert len(calls) == 2 or not processes  # one thread may have done the work of two
    for digests in calls:
        images = [digests[first : first + 32] for first in range(0, len(digests), 32)]
        assert [images.count(image) for image in dict.fromkeys(images)] == [3] + [1] * (len(images) - 3)


def dying(image: Levels, rng: np.random.Generator) -> Levels:
    if rng.random() < 0.05:
        os.kill(os.getpid(), signal.SIGSEGV)
    return image


def leaving(image: Levels) -> Levels:
    raise SystemExit(3)


def hanging(image: Levels) -> Levels:
    time.sleep(1e6)
    return image


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (dying, "its process ended with SIGSEGV; what it wrote to stderr may say more"),
        (leaving, "its process ended with exit status 3"),
        (hanging, "it has not come back for 2 seconds"),
    ],
)
def test_a_process_that_ends_or_hangs_is_an_error(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], message: str
) -> None:
    monkeypatch.setattr(own_workers, "HANGS_SECONDS", 2)
    monkeypatch.setattr(own_workers, "LOOKS_SECONDS", 0.2)
    before = threads_and_files()
    with load(shards, [CROP, T.Apply(function)], processes=2, seed=3) as batches:
        with pytest.raises(LoaderError) as caught:
            list(batches)
        assert f"{function.__name__} failed on '" in str(caught.value)
        assert message in str(caught.value)
        with pytest.raises(LoaderError):  # new processes, and the same
            list(batches)
    gc.collect()
    assert left_behind(before) == {}


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGRTMIN + 5])  # the second one has no name
def test_a_process_that_ends_without_an_image_is_an_error(shards: list[Path], sent: int) -> None:
    others = active_children()
    with load(shards, [CROP, T.Apply(grain)], processes=3, batch_size=1) as batches:
        epoch = iter(batches)
        next(epoch)
        ours = [child.pid for child in active_children() if child not in others and child.pid is not None]
        os.kill(max(ours), sent)  # the third one, which has no image in batches of one
        with pytest.raises(LoaderError, match=r"grain failed on '\d+' in .*: its process ended with"):
            list(epoch)


class Unsendable:
    """A value whose pickling, or whose reading by the loader, does what a test says."""

    def __init__(self, reduced: Callable[[], Any]) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:  # noqa: ANN401
        return self.reduced()


def broken() -> None:
    raise ValueError("cannot be read")


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (lambda: 0, DataError, "it returned targets that its process cannot send: use arrays and numbers, or Decoder("),
        (Unsendable(lambda: (broken, ())), DataError, "it returned targets that its process cannot send"),
        (Unsendable(lambda: os.kill(os.getpid(), signal.SIGKILL)), LoaderError, "its process ended with SIGKILL"),
    ],
)
def test_targets_that_cannot_be_sent_are_an_error_of_their_sample(
    tmp_path: Path, value: object, error: type[Exception], message: str
) -> None:
    def own(image: Levels, targets: dict[str, Any]) -> tuple[Levels, dict[str, Any]]:
        # 11 is the last image of its process
        return image, {**targets, **({"more": value} if len(targets["boxes"]) == 3 else {})}

    with pytest.raises(error) as caught:
        scene(shard(tmp_path), [T.Apply(own, targets=True), T.Resize((40, 60))], decoder=Decoder(2, processes=2))
    assert re.match(rf"own failed on '(003|007|011)' in .*: {re.escape(message)}", str(caught.value))


def test_a_recipe_without_it_starts_no_process(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_workers, "ProcessWorkers", None)
    with load(shards, [CROP, NORMAL], processes=2) as batches:
        assert len(list(batches)) == len(batches)


def test_what_a_named_function_needs_is_said_when_the_loader_is_made(shards: list[Path]) -> None:
    with pytest.raises(Exception, match="the recipe applies 'film', and a file holds no code"):
        load(shards, [CROP, T.Apply(name="film")])


# The program around its processes.

forking: list[int] = []
"""The signal that arrives in the hooks of the next forks, where Python drops the error of its handler."""


def arrive() -> None:
    for number in forking:
        os.kill(os.getpid(), number)


os.register_at_fork(before=arrive, after_in_parent=arrive)


class ArrivedError(Exception):
    """Raised by the handler."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM, signal.SIGTERM])
def test_an_interrupt_while_its_processes_start_reaches_the_loop(shards: list[Path], number: int) -> None:
    def handle(*_: object) -> None:
        forking.clear()
        raise ArrivedError

    before, handler = threads_and_files(), signal.signal(number, handle)
    try:
        with load(shards, [CROP, T.Apply(grain)], processes=2) as batches:
            forking.append(number)
            with pytest.raises(ArrivedError):
                next(iter(batches))
            assert len(list(batches)) == len(batches)
    finally:
        forking.clear()
        signal.signal(number, handler)
    assert left_behind(before) == {}


def test_the_signals_of_its_processes_are_not_those_of_the_program(shards: list[Path]) -> None:
    expected = {signal.SIGINT: signal.SIG_IGN, signal.SIGUSR1: signal.SIG_IGN, signal.SIGTERM: signal.SIG_DFL}

    def white_if_expected(image: Levels) -> Levels:
        return np.full_like(image, 255 * (expected == {number: signal.getsignal(number) for number in expected}))

    before = {number: signal.signal(number, lambda *_: None) for number in expected}
    try:
        with load(shards, [CROP, T.Apply(white_if_expected)], processes=2, recipe={"dtype": "uint8"}) as batches:
            assert next(iter(batches))["image"].min() == 255
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_its_processes_do_not_fix_the_start_method_of_the_program(shards: list[Path]) -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type] # as if nobody had asked for it
    try:
        with load(shards, [CROP, T.Apply(grain)], processes=2) as batches:
            next(iter(batches))
        assert multiprocessing.get_start_method(allow_none=True) is None
    finally:
        multiprocessing.set_start_method(before, force=True)  # type: ignore[arg-type]
