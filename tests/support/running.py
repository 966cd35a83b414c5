"""Helpers that run the graph alone, without shards or a loader."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from gpuloader.images.gate import admit
from gpuloader.pipelines import graph_pipeline, recipe_pipeline
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams, Recipe


def as_arrays(images: Sequence[bytes]) -> list[np.ndarray]:
    """Encoded images as the reader gives them."""
    return [np.frombuffer(image, np.uint8) for image in images]


def draw(
    preset: Recipe, images: Sequence[bytes], epoch: int = 0, first: int = 0, boxes: Sequence[np.ndarray] = ()
) -> AugmentParams:
    """What the recipe draws for the images, as samples `first`, `first` + 1, ..., by the boxes of each."""
    sizes = np.array([admit(image)[1] for image in as_arrays(images)])
    return preset.draw(Draws(0, epoch, first + np.arange(len(images))), sizes, boxes=boxes)


def run_graph(
    preset: Recipe,
    images: Sequence[bytes],
    params: AugmentParams | None = None,
    device_id: int | None = None,
    num_threads: int = 2,
) -> torch.Tensor:
    """The graph's output for one batch, as float32 (n, 3, height, width) on the CPU."""
    [images] = run_views(preset, images, params, device_id, num_threads)
    return images


def run_views(
    preset: Recipe,
    images: Sequence[bytes],
    params: AugmentParams | None = None,
    device_id: int | None = None,
    num_threads: int = 2,
    region: bool = True,
) -> list[torch.Tensor]:
    """The same for each view of the recipe."""
    batch = ([admit(image)[0] for image in as_arrays(images)], params or draw(preset, images))
    pipeline = recipe_pipeline(
        preset=preset,
        source=lambda: batch,
        batch_size=len(images),
        num_threads=num_threads,
        device_id=device_id,
        prefetch_queue_depth=1,
        region=region,
    )
    names = [str(view.number) for view in preset.each_view]
    [outputs] = next(DALIGenericIterator(pipeline, names, prepare_first_batch=False))
    assert all(output.dtype == getattr(torch, preset.dtype) for output in outputs.values())
    order = (0, 3, 1, 2) if preset.layout == "channels_last" else (0, 1, 2, 3)
    return [outputs[name].permute(order).float().cpu().clone() for name in names]


def built_pipelines(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Returns a list that gets each pipeline that a loader, a Stage or a Compose builds from now on: a weak one."""
    built: list[weakref.ref[Any]] = []

    def build(*given: Any, **options: Any) -> Any:  # noqa: ANN401
        pipeline = graph_pipeline(*given, **options)
        built.append(weakref.ref(pipeline))
        return pipeline

    monkeypatch.setattr("gpuloader.chain.decode.graph_pipeline", build)
    return built
