"""Makes the batch of the training loop from a decoded batch: mixes it, copies it to the device, names its entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from typing_extensions import TypedDict, TypeVar

from gpuloader.base.torch import changes_of
from gpuloader.chain.batch import Batch as ChainBatch
from gpuloader.errors import ConfigError, DataError
from gpuloader.loading.blending import mix_images, soft_labels
from gpuloader.loading.collating import STAGED_BYTES
from gpuloader.loading.fields import Ragged
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


def deliver(run: Run, batch: ChainBatch) -> Any:  # noqa: ANN401 - depends on `output`
    """Makes the batch of the training loop from a decoded batch, without the rows that do not stay.

    Raises:
        DataError: torch cannot convert an array of a field.
        ConfigError: the function `output` returned None, which would end the loop.
    """
    if not batch.stays.all():
        batch = batch.take(np.flatnonzero(batch.stays))
    entries = dict(zip(("image", "label"), images_and_labels(run, batch)))
    entries |= {name: _ENTRIES[name](run, batch) for name in run.names if name in _ENTRIES}
    for name, field in run.fields.items():
        if field.is_target:
            for part, of_views in batch.step.fields[name].items():
                if (entry := f"{name}_{part}" if part else name) in run.names:
                    entries[entry] = _deliver_target(run.device, entry, of_views, field.is_widened)
        elif name in run.names:
            entries[name] = _deliver_field(run.device, name, batch.step.fields.get(name, []))
    made = run.make({name: entries[entry] for entry, name in run.names.items()})
    if made is None:
        raise ConfigError("output: the function returned None: return the batch, which may be anything else")
    return made


def images_and_labels(run: Run, batch: ChainBatch) -> tuple[Any, torch.Tensor | None]:
    """Returns the images, and the labels if there are any, mixed if the recipe mixes."""
    recipe, mixing = run.recipe, batch.step.mixing
    views = channels_first(recipe, list(batch.views))
    labels = None if batch.labels is None else _on_device(run.device, batch.labels)
    if recipe.mix is not None and mixing is not None:
        mix_images(views[0], mixing)
        if labels is not None:
            weight = _on_device(run.device, mixing.weight)
            labels = soft_labels(labels, weight, recipe.mix.num_classes, recipe.mix.label_smoothing)
    return by_view(round_to_dtype(recipe, views)), labels


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


def _deliver_sizes(run: Run, batch: ChainBatch) -> Any:  # noqa: ANN401 - a tensor, or one for each view
    return by_view([_deliver_size(run.device, view) for view in batch.delivered.views])


_ENTRIES: Mapping[str, Callable[[Run, ChainBatch], Any]] = {
    "index": lambda run, batch: _on_device(run.device, batch.ids),
    "valid": lambda run, batch: _on_device(run.device, batch.valid),
    "key": lambda run, batch: [run.shards.index.key(sample) for sample in batch.ids.tolist()],
    "original_size": lambda run, batch: _on_device(run.device, batch.delivered.views[0].placements[0].shape.copy()),
    "size": _deliver_sizes,
    "target_size": _deliver_sizes,
    "crop": lambda run, batch: by_view([_on_device(run.device, view.crop()) for view in batch.delivered.views]),
    "pixel_mask": lambda run, batch: by_view([_pixel_mask(run.device, view) for view in batch.delivered.views]),
}
"""The entries beside images, labels and fields, by name."""

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
