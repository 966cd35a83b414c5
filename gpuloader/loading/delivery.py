"""Makes the batch of the training loop from a decoded batch: mixes it, copies it to the device, names its entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from typing_extensions import TypedDict, TypeVar

from gpuloader.base.torch import changes_of
from gpuloader.errors import ConfigError, DataError
from gpuloader.loading.blending import mix_images, soft_labels
from gpuloader.loading.fields import Ragged
from gpuloader.loading.reader import STAGED_BYTES, EncodedBatch
from gpuloader.loading.run import Run
from gpuloader.recipe import Recipe, ViewParams

Images: TypeAlias = torch.Tensor | Any
"""(B, 3, h, w), or with `batch: list` a list of B (3, h, w); a list of these if the recipe has several views. The type
does not show lists."""
Labels: TypeAlias = torch.Tensor | Any
"""(B,) int64, or (B, num_classes) float32 if the recipe mixes; None without labels."""


class Batch(TypedDict):
    """The batch of `output="dict"`, see `GPULoader`; with `fields` it is a `dict[str, Any]` with more keys.

    Example:
        >>> from gpuloader import Batch, GPULoader
        >>> def mean_label(batch: Batch) -> float:
        ...     return batch["label"][batch["valid"]].float().mean().item()
        >>> with GPULoader("shards/", 40, "cpu", preset="cifar10_eval", output="dict") as loader:
        ...     [mean_label(batch) for batch in loader]
        [4.5]
    """

    image: Images
    label: Labels
    index: torch.Tensor
    valid: torch.Tensor
    key: list[str]
    # Only with images of different sizes, with targets, or with buckets; type checkers cannot know which.
    original_size: torch.Tensor
    size: torch.Tensor | Any
    pixel_mask: torch.Tensor | Any
    crop: torch.Tensor
    target_size: torch.Tensor


B_co = TypeVar("B_co", covariant=True, default=Any)
"""A loader's batch: `tuple[Images, Labels]`, `Batch`, `dict[str, Any]` or what a function returns, by `output`."""


def deliver(run: Run, batch: EncodedBatch, views: list[Any]) -> Any:  # noqa: ANN401 - depends on `output`
    """Makes the batch of the training loop from an encoded batch, and the images of each view from the graph.

    Raises:
        DataError: torch cannot convert an array of a field.
        ConfigError: the function `output` returned None, which would end the loop.
    """
    recipe, on_device = run.recipe, partial(_on_device, run.device)
    views = channels_first(recipe, views)
    labels = None if batch.labels is None else on_device(batch.labels)
    if recipe.mix is not None and batch.mixing is not None:
        mix_images(views[0], batch.mixing)
        if labels is not None:
            weight = on_device(batch.mixing.weight)
            labels = soft_labels(labels, weight, recipe.mix.num_classes, recipe.mix.label_smoothing)
    views = round_to_dtype(recipe, views)
    images = by_view(views)
    values: dict[str, Callable[[], Any]] = {
        "image": lambda: images,
        "label": lambda: labels,
        "index": lambda: on_device(batch.ids),
        "valid": lambda: on_device(batch.valid),
        "key": lambda: [run.shards.index.key(int(sample)) for sample in batch.ids],
        "original_size": lambda: on_device(batch.delivered.views[0].placements[0].shape.copy()),
        "size": lambda: by_view([_deliver_size(run.device, view) for view in batch.delivered.views]),
        "crop": lambda: by_view([on_device(view.crop()) for view in batch.delivered.views]),
        "pixel_mask": lambda: by_view([_pixel_mask(run.device, view) for view in batch.delivered.views]),
    }
    values["target_size"] = values["size"]
    for name, field in run.fields.items():
        if field.is_target:
            for part, of_views in batch.fields[name].items():
                entry = f"{name}_{part}" if part else name
                values[entry] = partial(_deliver_target, run.device, entry, of_views, field.is_widened)
        else:
            values[name] = partial(_deliver_field, run.device, name, batch.fields.get(name, []))
    made = run.make({name: values[entry]() for entry, name in run.names.items()})
    if made is None:
        raise ConfigError("output: the function returned None: return the batch, which may be anything else")
    return made


def leave_out(batch: EncodedBatch, views: list[Any]) -> tuple[EncodedBatch, list[Any]]:
    """Drops the invalid rows of a batch and its decoded images; its fields do not have them."""
    if batch.valid.all():
        return batch, views
    rows = np.flatnonzero(batch.valid)
    left = replace(
        batch,
        ids=batch.ids[rows],
        valid=batch.valid[rows],
        labels=None if batch.labels is None else batch.labels[rows],
        delivered=batch.delivered.take(rows),
    )
    return left, [
        [view[row] for row in rows] if isinstance(view, list) else view[_on_device(view.device, rows)] for view in views
    ]


def channels_first(recipe: Recipe, views: list[Any]) -> list[Any]:
    """Returns the images of the graph with channels before rows, as a view of the same memory."""
    return _changed(views, lambda images: images.movedim(-1, -3)) if recipe.layout == "channels_last" else views


def round_to_dtype(recipe: Recipe, views: list[Any]) -> list[Any]:
    """Returns the images of the graph in the recipe's dtype; only bfloat16 needs a conversion."""
    return _changed(views, lambda images: images.to(torch.bfloat16)) if recipe.dtype == "bfloat16" else views


def finish(recipe: Recipe, views: list[Any]) -> Any:  # noqa: ANN401
    """Returns the images of the graph as they are delivered, without mixing; a list for several views."""
    return by_view(round_to_dtype(recipe, channels_first(recipe, views)))


def _changed(images: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401
    """Applies a function to the tensors in nested lists."""
    return [_changed(each, change) for each in images] if isinstance(images, list) else change(images)


def _deliver_size(device: torch.device, view: ViewParams) -> torch.Tensor:
    size = torch.as_tensor(view.placement.shape.copy())
    return _with_original(to_device(device, size), size)


def _pixel_mask(device: torch.device, view: ViewParams) -> torch.Tensor:
    """Returns the mask of padded images, (b, H, W) bool: True on the picture."""
    assert view.shape is not None
    heights, widths = _on_device(device, view.placement.shape.T[..., None, None].copy())
    rows, columns = (torch.arange(side, device=device) for side in view.shape)
    return (rows[:, None] < heights) & (columns < widths)


def by_view(values: list[Any]) -> Any:  # noqa: ANN401
    """Returns the value of the only view, or the list of the values of several views."""
    return values[0] if len(values) == 1 else values


def _deliver_target(device: torch.device, name: str, of_views: list[Any], is_widened: bool) -> Any:  # noqa: ANN401
    views = [_deliver_field(device, name, value) for value in of_views]
    return by_view(_changed(views, torch.Tensor.long) if is_widened else views)


def _deliver_field(device: torch.device, name: str, value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, Mapping):
        return {part: _deliver_field(device, f"{name}[{part!r}]", its_value) for part, its_value in value.items()}
    if isinstance(value, torch.Tensor):
        return to_device(device, value)
    if isinstance(value, Ragged):
        original, counts = torch.as_tensor(value.values), value.counts.tolist()
        parts = torch.split(to_device(device, original), counts)
        if value.shapes is None:
            return [*map(_with_original, parts, torch.split(original, counts))]
        return [part.reshape(shape) for part, shape in zip(parts, value.shapes)]
    if not isinstance(value, np.ndarray):
        return value
    try:
        return _on_device(device, value)
    except (TypeError, ValueError) as error:
        raise DataError(f"the field {name}: torch cannot take {value.dtype} {value.shape}: {error}") from None


def _on_device(device: torch.device, array: np.ndarray[Any, Any] | torch.Tensor) -> torch.Tensor:
    return to_device(device, torch.as_tensor(array))


def to_device(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """Copies a tensor to a device without waiting for the copy."""
    # CUDA usually stages a small copy from pageable memory before it returns, but does not guarantee it. A large copy
    # might wait for the stream, and block training. So large tensors are pinned first; torch keeps pinned memory until
    # the copy is done.
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
    if device.type == "cuda" and plain and tensor.nbytes > STAGED_BYTES:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


_ORIGINAL = "_gpuloader_original"  # the attribute of a delivered tensor


def _with_original(tensor: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """Returns a delivered tensor, which keeps the values on the CPU that it was copied from, for `on_cpu`."""
    if tensor.device.type != "cpu":
        setattr(tensor, _ORIGINAL, (original, changes_of(tensor)))
    return tensor


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values of a tensor on the CPU; of sizes and small targets as delivered, without waiting for the GPU.

    It waits if the tensor has been changed in place since, or was delivered in `torch.inference_mode`.
    """
    original, changes = getattr(tensor, _ORIGINAL, (tensor, None))
    return original if changes is not None and changes == changes_of(tensor) else tensor.cpu()
