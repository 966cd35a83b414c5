"""Transforms targets in the format of torchvision's detection models, a dictionary for each image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gpuloader.chain.batch import Batch
from gpuloader.chain.own import OwnCodeTargets
from gpuloader.chain.target_rows import has_rows, take_rows
from gpuloader.errors import ConfigError, describe
from gpuloader.loading.delivery import to_device
from gpuloader.recipe import Recipe, Shape, ViewParams
from gpuloader.targets.annotations import ParsedBoxes, parse_boxes, parse_column, parse_points
from gpuloader.targets.boxes import Boxes
from gpuloader.targets.keypoints import Keypoints
from gpuloader.targets.masks import Mask
from gpuloader.targets.target import check_recipe_moves

_Made = TypeVar("_Made")


def check_targets(recipe: Recipe, targets: Any, count: int) -> Sequence[Mapping[str, Any]]:  # noqa: ANN401
    """Returns the targets of `count` images after checking that the recipe can transform them.

    Raises:
        ConfigError: `targets` is not a list of mappings, or the recipe blends warped images or repeats pixels.
    """
    if not isinstance(targets, list) or len(targets) != count or not all(isinstance(each, Mapping) for each in targets):
        raise ConfigError(f"targets: found {describe(targets)}: allowed is a dictionary for each of {count} images")
    for row, target in enumerate(targets):
        for name, value in target.items():
            if isinstance(value, torch.Tensor) and not _has_numbers(value):
                raise ConfigError(
                    f"target {row}: {describe(name)} is a tensor of {value.dtype}, {value.layout}, on {value.device}: "
                    f"allowed are dense tensors of integers, or of floats of 16 bits or more"
                )
    check_recipe_moves(recipe, repeats=not any({"boxes", "keypoints"} & each.keys() for each in targets))
    return targets


def boxes_of(targets: Sequence[Mapping[str, Any]]) -> list[NDArray[np.float64]]:
    """Returns the boxes of each image, (n, 4) in pixels.

    Raises:
        ConfigError: boxes are invalid, or `tv_tensors.BoundingBoxes` of another format than "XYXY".
    """
    return _for_each(targets, lambda _, target: _read_boxes(target).boxes)


class OwnDictionaries(OwnCodeTargets):
    """The targets of images in memory for own code, which takes and returns dictionaries of arrays."""

    def before(self, batch: Batch, view: int, row: int) -> dict[str, Any]:
        """Returns the targets of an image for own code; boxes are float64."""
        values = batch.values[row].items()
        given = {name: _array(value) if isinstance(value, torch.Tensor) else value for name, value in values}
        [moved] = _for_each([given], lambda _, target: _move_target(target, batch.params.views[view].take([row])))
        return {name: _array(value).astype(np.float64) if name == "boxes" else value for name, value in moved.items()}

    def boxes(self, made: Sequence[Mapping[str, Any]]) -> list[NDArray[np.float64]]:
        return boxes_of(made)


def move_targets(targets: Sequence[Mapping[str, Any]], view: ViewParams, device: torch.device) -> list[dict[str, Any]]:
    """Transforms the targets of the images to a view, see `Compose`; arrays become tensors on a device.

    Raises:
        ConfigError: an entry is invalid.
    """
    return _for_each(targets, lambda row, target: _as_tensors(_move_target(target, view.take([row])), device))


def _for_each(targets: Sequence[Mapping[str, Any]], function: Callable[[int, Mapping[str, Any]], _Made]) -> list[_Made]:
    made = []
    for row, target in enumerate(targets):
        try:
            made.append(function(row, target))
        except ValueError as error:
            raise ConfigError(f"target {row}: {error}") from None
    return made


def _read_boxes(target: Mapping[str, Any]) -> ParsedBoxes:
    """Returns the boxes of a target, and their areas if the target has them."""
    boxes = target.get("boxes", ())
    if (kind := getattr(getattr(boxes, "format", None), "value", "XYXY")) != "XYXY":
        raise ValueError(f'boxes of the format {kind}: allowed is "XYXY", convert them')
    parsed = parse_boxes(_array(boxes).tolist(), "xyxy")
    if not {"area", "boxes"} <= target.keys():
        return parsed
    areas = parse_column(_array(target["area"]).tolist(), len(parsed.boxes))
    return replace(parsed, columns={"area": areas.astype(np.float32)})


def _move_target(target: Mapping[str, Any], view: ViewParams) -> dict[str, Any]:
    """Transforms the target of one image to a view of this image alone; transformed entries are arrays."""
    height, width = view.placements[0].shape[0].tolist()
    moved = dict(target)
    if "masks" in target:
        masks = _of_size(_array(target["masks"]), (height, width), ndim=3)
        moved["masks"] = Mask("json:masks").entries(masks != 0, view)[""]
    if "mask" in target:
        mask = _of_size(_array(target["mask"]), (height, width), ndim=2)
        moved["mask"] = Mask("png").entries(mask, view)[""].astype(np.int64)
    if "keypoints" in target:
        moved["keypoints"] = _move_points(_array(target["keypoints"]), view)
    if "boxes" not in target:
        return moved
    annotated = _read_boxes(target)
    boxes = Boxes("json:boxes", keys=tuple(annotated.columns)).entries(annotated, view)
    kept, count = boxes["number"], len(annotated.boxes)
    for name in {"masks", "keypoints"} & moved.keys():
        if len(moved[name]) != count:
            raise ValueError(f"{name} has {len(moved[name])} rows beside {count} boxes: allowed is one for each box")
    rows = {name: take_rows(value, kept) for name, value in moved.items() if has_rows(name, value, count)}
    return {**moved, **rows, **{name: boxes[name] for name in annotated.columns}, "boxes": boxes[""]}


def _as_tensors(target: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    return {
        name: to_device(device, torch.as_tensor(value))
        if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")
        else value
        for name, value in target.items()
    }


def _move_points(given: NDArray[Any], view: ViewParams) -> NDArray[np.float32]:
    points, seen = parse_points(given.tolist())
    values = points.reshape(*given.shape[:2], 2), seen.reshape(given.shape[:2])
    moved = Keypoints("json:keypoints").entries(values, view)
    if given.shape[-1] == 2:
        return moved[""]
    return np.concatenate([moved[""], moved["visibility"][..., None].astype(np.float32)], -1)


def _has_numbers(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor can be converted to NumPy; bfloat16 is converted to float32."""
    tiny = tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1
    return tensor.layout == torch.strided and not tensor.is_meta and not tiny


def _array(value: Any) -> NDArray[Any]:  # noqa: ANN401
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def _of_size(masks: NDArray[Any], size: Shape, ndim: int) -> NDArray[Any]:
    if masks.ndim != ndim or masks.shape[-2:] != size or masks.dtype.kind not in "biu":
        raise ValueError(f"masks {masks.dtype} {masks.shape}: allowed are integers, as large as the image, {size}")
    return masks
