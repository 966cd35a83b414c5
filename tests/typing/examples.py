"""What mypy and pyright make of loaders and their batches. They read this file; nothing runs it.

A line that must be an error says so by `ignore`: the checkers complain of one that is not needed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from PIL import Image
from torch import Tensor
from typing_extensions import assert_type

from gpuloader import Batch, Boxes, Compose, Decoder, GPULoader, MixedLoader, Stage
from gpuloader.collators import as_text
from gpuloader.loading.delivery import Images, Labels
from gpuloader.targets import to_detection
from gpuloader.trainers.datamodule import TrainerLoaders
from gpuloader.transforms import (
    CenterCrop,
    ColorJitter,
    Grayscale,
    Mix,
    Normalize,
    Pad,
    RandomApply,
    RandomChoice,
    RandomErasing,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    View,
)

BOXES = Boxes("json:annotations", labels="category_id")


def tuples() -> None:
    for images, labels in GPULoader("a.tar", 8):
        assert_type(images, Tensor | Any)  # a list where the recipe has several views
        assert_type(labels, Tensor | Any)  # None without labels
    assert_type(next(iter(GPULoader("a.tar", 8, None, output="tuple", seed=1))), tuple[Images, Labels])
    with GPULoader("a.tar", 8, label_from=None) as loader:
        assert_type(next(iter(loader)), tuple[Images, Labels])


def dictionaries() -> None:
    for batch in GPULoader("a.tar", 8, output="dict"):
        assert_type(batch, Batch)
        assert_type(batch["image"], Tensor | Any)
        assert_type(batch["index"], Tensor)
        assert_type(batch["key"], list[str])
        batch["json"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
    for with_fields in GPULoader("a.tar", 8, output="dict", fields={"txt": as_text}):
        assert_type(with_fields, dict[str, Any])
    for by_default in GPULoader("a.tar", 8, fields=["txt"]):
        assert_type(by_default, dict[str, Any])
    for as_in_yaml in GPULoader("a.tar", 8, fields={"boxes": {"Boxes": "json:boxes"}}, output=None):
        assert_type(as_in_yaml, dict[str, Any])
    assert_type(next(iter(GPULoader("a.tar", 8, output=None))), tuple[Images, Labels])
    assert_type(next(iter(GPULoader("a.tar", 8, fields=()))), tuple[Images, Labels])
    for renamed in GPULoader("a.tar", 8, output={"image": "pixel_values"}):
        assert_type(renamed, dict[str, Any])


def named() -> None:
    for index, image, label in GPULoader("a.tar", 8, output=("index", "image", "label")):
        assert_type(image, Any)
        del index, label
    assert_type(next(iter(GPULoader("a.tar", 8, output=["image", "txt"], fields=["txt"]))), tuple[Any, ...])


def made() -> None:
    def shape(batch: dict[str, Any]) -> tuple[int, int]:
        return len(batch["image"]), len(batch["txt"])

    assert_type(next(iter(GPULoader("a.tar", 8, output=shape, fields=["txt"]))), tuple[int, int])
    for images, targets in GPULoader("a.tar", 8, output=partial(to_detection, first_label=1), fields={"boxes": BOXES}):
        assert_type(images, list[Tensor])
        assert_type(targets, list[dict[str, Tensor]])
    for _, mixed in MixedLoader({"a": GPULoader("a.tar", 8, output=shape)}):
        assert_type(mixed, tuple[int, int])
    GPULoader("a.tar", 8, output=len([]))  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def unknown_outputs(configured: dict[str, Any], either: Literal["tuple", "dict"]) -> None:
    for batch in GPULoader("a.tar", **configured):
        assert_type(batch, Any)
    for batch in GPULoader("a.tar", 8, output=either):
        assert_type(batch, Any)


def annotated(loader: GPULoader[Batch]) -> None:
    for batch in loader:
        assert_type(batch, Batch)


def passed_on() -> None:
    annotated(GPULoader("a.tar", 8, output="dict"))


def mixed() -> None:
    for name, batch in MixedLoader({"a": GPULoader("a.tar", 8, output="dict")}):
        assert_type(name, str)
        assert_type(batch, Batch)
    loaders = {"a": GPULoader("a.tar", 8), "b": GPULoader("b.tar", 8, output="dict")}
    for _, either in MixedLoader(loaders):
        assert_type(either, tuple[Images, Labels] | Batch)  # type: ignore[assert-type]  # mypy says Any
    for _, either in MixedLoader[tuple[Images, Labels] | Batch](loaders):
        assert_type(either, tuple[Images, Labels] | Batch)


def any_loader(loader: GPULoader) -> None:
    for batch in loader:
        assert_type(batch, Any)


def stages(configured: dict[str, Any]) -> None:
    TrainerLoaders("a.tar", val="b.tar", batch_size=8, preset="deit", output="dict", fields=["json"])
    TrainerLoaders(batch_size=8, **configured)
    TrainerLoaders(batch_size=8, eval_loader={"batch_size": 16, "decoder": {"num_threads": 2}, "output": "dict"})
    TrainerLoaders(batch_size=8, eval_loader={"seed": "first"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    TrainerLoaders(batch_size=8, world=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def arguments(configured: dict[str, Any]) -> None:
    GPULoader("a.tar", 8, preset="deit", shuffle=True, decoder=Decoder(prefetch=1), world={"rank": 0, "world_size": 2})
    GPULoader("a.tar", 8, preset="my/recipe.yaml", on_error="replace")
    GPULoader("a.tar", 8, preset="imagenet_eval", on_error="skip", last_batch="equal")
    GPULoader("a.tar", **configured)
    GPULoader("a.tar", 8)[0]  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
    assert_type(Compose.load("imagenet_eval", dtype="float16"), Compose)


def recipes(picture: bytes) -> None:
    compose = Compose([RandomResizedCrop(128), ColorJitter(0.4), Normalize([0.5] * 3, [0.5] * 3)])
    Compose([Resize([192, 256]), RandomRotation([-10, 10], fill=[1, 2, 3]), RandomErasing(value=[0, 0, 1])])
    Compose([Resize((192, 256)), RandomApply([ColorJitter(hue=[0, 0.1])]), RandomChoice([Grayscale()], p=[1])])
    Compose([RandomResizedCrop({0: 96, 30: 128}, scale=[0.2, 1]), Pad([1, 2, 3, 4])], layout="nchw")
    Compose(views=[View([CenterCrop(96)], count=2), View([CenterCrop(96)])], mix=Mix(10, mixup_alpha=0.2))
    mixed = Compose([CenterCrop(96)], mix={"num_classes": 10, "mixup_alpha": 0.2})
    assert_type(mixed.mix, Mix | None)
    Compose([], batch="list")
    assert_type(compose(picture), Tensor | Any)  # a list if the recipe has several views
    assert_type(compose(picture, {"boxes": [[0, 0, 8, 8]]}), tuple[Tensor | Any, Any])
    compose([picture, picture])
    compose([picture, picture], [{"labels": [3]}, {}], seed=1)
    compose(Image.new("RGB", (8, 8)))
    Compose.load({"transforms": ["CenterCrop"]}, dtype="float16")
    Stage({"imagenet_eval": {"Resize": {"size": 256}}}, decoder={"prefetch": 1})
    Compose([CenterCrop(96)], mix=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Resize("256")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Compose([128])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Compose([Resize(256)], transform=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
