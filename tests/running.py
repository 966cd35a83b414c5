"""Helpers that run the graph alone, without shards or a loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from gpuloader.pipelines import build, gate
from gpuloader.plan import Draws
from gpuloader.recipe import Preset, load_preset


def preset_of(name: str, **overrides: Any) -> Preset:  # noqa: ANN401
    """A preset with some of its values replaced."""
    return load_preset(name, overrides)


def as_arrays(images: Sequence[bytes]) -> list[np.ndarray]:
    """Encoded images as the reader gives them."""
    return [np.frombuffer(image, np.uint8) for image in images]


def draw(preset: Preset, images: Sequence[bytes], epoch: int = 0) -> dict[str, np.ndarray]:
    """What the recipe draws for the images, as samples 0, 1, ..."""
    sizes = np.array([gate(image) for image in as_arrays(images)])
    return preset.arrays(Draws(0, epoch, np.arange(len(images))), sizes[:, 0], sizes[:, 1])


def run_graph(
    preset: Preset,
    images: Sequence[bytes],
    arrays: dict[str, np.ndarray] | None = None,
    device_id: int | None = None,
    num_threads: int = 2,
) -> torch.Tensor:
    """The graph's output for one batch, as float32 (n, 3, size, size) on the CPU."""
    arrays = draw(preset, images) if arrays is None else arrays
    batch = (as_arrays(images), *arrays.values())
    pipeline = build(
        preset,
        arrays,
        lambda: batch,
        batch_size=len(images),
        num_threads=num_threads,
        device_id=device_id,
        prefetch=1,
    )
    output = next(DALIGenericIterator(pipeline, ["image"], prepare_first_batch=False))[0]["image"]
    assert output.dtype == getattr(torch, preset.dtype)
    if preset.layout == "channels_last":
        output = output.permute(0, 3, 1, 2)
    return output.float().cpu().clone()
