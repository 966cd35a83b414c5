"""What mypy and pyright make of loaders and their batches. They read this file; nothing runs it.

A line that must be an error says so by `ignore`: the checkers complain of one that is not needed.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import assert_type

from gpuloader import Batch, Compose, Decoder, GPULoader, MixedLoader
from gpuloader.collators import as_text
from gpuloader.loading.delivery import Images, Labels
from gpuloader.trainers.datamodule import TrainerLoaders


def tuples() -> None:
    for images, labels in GPULoader("a.tar", 8):
        assert_type(images, Tensor | Any)  # a list where the recipe has several views
        assert_type(labels, Tensor | Any)  # None without labels
    assert_type(GPULoader("a.tar", 8, None, output="tuple", seed=1), GPULoader[tuple[Images, Labels]])
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
    for renamed in GPULoader("a.tar", 8, output={"image": "pixel_values"}):
        assert_type(renamed, dict[str, Any])


def mixed() -> None:
    for name, batch in MixedLoader({"a": GPULoader("a.tar", 8, output="dict")}):
        assert_type(name, str)
        assert_type(batch, Batch)


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
    GPULoader("a.tar", **configured)
    GPULoader("a.tar", 8, num_workers=4)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    GPULoader("a.tar", 8, shuffle="fully")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    GPULoader("a.tar", 8, fields=["json"])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    assert_type(Compose.load("imagenet_eval", dtype="float16"), Compose)
