"""Converts batches with targets to the formats of torchvision and DETR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

import torch

from gpuloader.base.values import is_integer
from gpuloader.errors import ConfigError, describe
from gpuloader.loading.delivery import on_cpu, to_device
from gpuloader.targets.boxes import Boxes
from gpuloader.targets.keypoints import Keypoints
from gpuloader.targets.target import Target


def to_tv_tensors(batch: Mapping[str, Any], fields: Mapping[str, object]) -> dict[str, Any]:
    """Converts the images and targets of a batch to torchvision's `tv_tensors`; needs torchvision.

    Args:
        batch: a batch of a loader with one view and these `fields`, without `pad_to`.
        fields: the argument `fields` of the loader.

    Returns:
        The batch: "image" is an `Image` (B, 3, H, W), or a list of `Image` (3, h, w); boxes are lists of
        `BoundingBoxes` ("XYXY"), points are lists of `KeyPoints`; masks are a `Mask` (B, H, W), or lists of `Mask`
        (h, w) or (n, H, W). The canvas of a padded image includes the padding. Other entries do not change.

    Example:
        >>> import torch
        >>> from gpuloader.targets import Boxes, to_tv_tensors
        >>> batch = {"image": torch.zeros(1, 3, 32, 48), "boxes": [torch.tensor([[4., 8., 20., 24.]])]}
        >>> to_tv_tensors(batch, {"boxes": Boxes("json:annotations")})["boxes"][0].canvas_size
        (32, 48)
    """
    from torchvision import tv_tensors

    def wrap(kind: Any, tensors: Any) -> Any:  # noqa: ANN401 - torchvision's types are not installed everywhere
        return [*map(kind, tensors)] if isinstance(tensors, list) else kind(tensors)

    canvases = [tuple(image.shape[-2:]) for image in batch["image"]]
    made = {**batch, "image": wrap(tv_tensors.Image, batch["image"])}
    for name, field in fields.items():
        if isinstance(field, (Boxes, Keypoints)):
            boxes = isinstance(field, Boxes)
            kind = partial(tv_tensors.BoundingBoxes, format="XYXY") if boxes else tv_tensors.KeyPoints
            made[name] = [kind(each, canvas_size=canvas) for each, canvas in zip(batch[name], canvases)]
        elif isinstance(field, Target):
            made[name] = wrap(tv_tensors.Mask, batch[name])
    return made


def to_detection(
    batch: Mapping[str, Any],
    *,
    boxes: str = "boxes",
    masks: str | None = None,
    points: str | None = None,
    image_id: str | None = None,
    first_label: int = 0,
    label_ids: Sequence[int | None] | None = None,
    crowds: bool = True,
) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Converts a batch to the images and targets that torchvision's detection models take.

    Args:
        batch: a batch of a loader with one view, and `Boxes` with `labels`, without `pad_to`.
        boxes, masks, points: the names of the fields; None if there is no such field. Masks and points must come from
            the same annotations as the boxes.
        image_id: the name of the field with the COCO ids of the pictures, such as
            `"image_id": Field("json:image_id")`, for COCO's evaluation. None uses the sample's number in the data.
        first_label: added to the labels. Use 1 if labels start at 0, because these models use 0 for the background.
        label_ids: entry i replaces label i, such as the "ids" that `gpuloader pack` writes to classes.json. None does
            not change labels.
        crowds: whether objects with "iscrowd" are targets. If False, "iscrowd" must be among the `keys` of the boxes.

    Raises:
        ConfigError: an option is invalid or does not match the batch, such as a label without an id; or `masks` names a
            class mask, which has no row for each box.

    Returns:
        B images (3, H, W), without padding, and B dictionaries: "boxes" (n, 4) float32, "labels" (n,) int64,
        "image_id" (1,) int64; with `masks` "masks" (n, H, W) uint8, with `points` "keypoints" (n, k, 3) float32; and
        "area" and "iscrowd" if they are `keys` of the boxes.

    Example:
        >>> import torch
        >>> from gpuloader.targets import to_detection
        >>> batch = {"image": torch.zeros(1, 3, 32, 48), "index": torch.tensor([7]), "image_id": [1031]}
        >>> batch |= {"boxes": [torch.ones(1, 4)], "boxes_number": [torch.tensor([0])]}
        >>> batch["boxes_labels"] = [torch.tensor([2])]
        >>> images, targets = to_detection(batch, image_id="image_id", label_ids=[1, 7, 18])
        >>> targets[0]
        {'boxes': tensor([[1., 1., 1., 1.]]), 'image_id': tensor([1031]), 'labels': tensor([18])}
    """
    if masks is not None and any(mask.ndim == 2 for mask in batch[masks]):
        raise ConfigError(
            f'masks={masks!r} is a mask of classes: name a field with a mask for each object, Mask("json:NAME")'
        )
    columns = {key: batch[f"{boxes}_{key}"] for key in ("labels", "area", "iscrowd") if f"{boxes}_{key}" in batch}
    if not crowds and "iscrowd" not in columns:
        raise ConfigError(f'crowds=False: the batch has no {boxes}_iscrowd: allowed with Boxes(..., keys=["iscrowd"])')
    if "labels" in columns:
        columns["labels"] = _number(columns["labels"], first_label, label_ids)
    ids = _ids_in(batch, image_id)
    ends = on_cpu(batch["size"]).tolist() if "pixel_mask" in batch else [(None, None)] * len(batch["image"])
    targets = []
    for row, number in enumerate(batch[f"{boxes}_number"]):
        target = {"boxes": batch[boxes][row], **{key: column[row] for key, column in columns.items()}}
        if masks is not None:
            target["masks"] = batch[masks][row][number, : ends[row][0], : ends[row][1]]
        if points is not None:
            seen = batch[f"{points}_visibility"][row][number]
            target["keypoints"] = torch.cat([batch[points][row][number], seen[..., None].float()], -1)
        if not crowds:
            stay = to_device(number.device, torch.nonzero(on_cpu(target["iscrowd"]) == 0)[:, 0])
            target = {name: value[stay] for name, value in target.items()}
        targets.append({**target, "image_id": ids[row : row + 1].to(number.device, non_blocking=True)})
    return [image[:, :height, :width] for image, (height, width) in zip(batch["image"], ends)], targets


def to_coco(
    outputs: Sequence[Mapping[str, torch.Tensor]],
    batch: Mapping[str, Any],
    *,
    image_id: str | None = "image_id",
    first_label: int = 0,
    label_ids: Sequence[int | None] | None = None,
) -> list[dict[str, Any]]:
    """Converts the outputs of torchvision's detection models to results for pycocotools' `COCO.loadRes`.

    It is for recipes that only resize, such as `ssdlite_eval`. Samples that are not `valid` have no results.

    Args:
        outputs: for each sample "boxes" (n, 4) x1, y1, x2, y2 in pixels of the delivered image, "labels" (n,) int64,
            and "scores" (n,).
        batch: the dictionary of a loader with one view and a field of boxes.
        image_id, label_ids: as for `to_detection`; entry i of `label_ids` is the category id of label i.
        first_label: subtracted from the labels.

    Returns:
        A dictionary for each box: "image_id", "category_id", "bbox" [x, y, width, height] in pixels of the original
        picture, and "score".

    Raises:
        ConfigError: the outputs do not match the batch, or an option is invalid, such as a label without an id.

    Example:
        >>> import torch
        >>> from gpuloader.targets import to_coco
        >>> batch = {"original_size": torch.tensor([[64, 96]]), "size": torch.tensor([[32, 32]]), "image_id": [1031]}
        >>> output = {"boxes": torch.tensor([[4., 8., 20., 24.]]), "labels": torch.tensor([2])}
        >>> to_coco([{**output, "scores": torch.tensor([0.5])}], batch, first_label=1, label_ids=[7, 18])
        [{'image_id': 1031, 'category_id': 18, 'bbox': [12.0, 16.0, 48.0, 32.0], 'score': 0.5}]
    """
    if not {"original_size", "size"} <= batch.keys():
        raise ConfigError("the batch has no original_size and size: make the loader with a field of boxes")
    scales = (batch["original_size"] / batch["size"]).flip(1).repeat(1, 2).cpu()
    if len(outputs) != len(scales) or any({"boxes", "labels", "scores"} - output.keys() for output in outputs):
        found = describe([[*each] for each in outputs])
        raise ConfigError(f"outputs have {found}: allowed are {len(scales)}, each with boxes, labels and scores")
    numbers = _number([each["labels"] for each in outputs], -first_label if is_integer(first_label) else first_label)
    rows = zip(_ids_in(batch, image_id).tolist(), scales, outputs, _number(numbers, 0, label_ids))
    results = []
    for picture, scale, output, categories in compress(rows, batch.get("valid", torch.ones(len(scales))).tolist()):
        corners = output["boxes"].detach().float().cpu() * scale
        boxes = torch.cat([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).tolist()
        for box, category, score in zip(boxes, categories.tolist(), output["scores"].tolist()):
            results.append({"image_id": picture, "category_id": category, "bbox": box, "score": score})
    return results


def _number(
    labels: Sequence[torch.Tensor], first: int, label_ids: Sequence[int | None] | None = None
) -> list[torch.Tensor]:
    """Returns the labels of each sample after adding `first`, or after replacing them by `label_ids`."""
    if not is_integer(first):
        raise ConfigError(f"first_label={first!r}: allowed is an integer")
    if label_ids is None:
        return [of_sample + first for of_sample in labels]
    if first:
        raise ConfigError(f"first_label={first} and label_ids are both given: give one of them")
    if not isinstance(label_ids, Sequence) or not all(each is None or is_integer(each) for each in label_ids):
        raise ConfigError(f"label_ids={describe(label_ids)}: allowed is a list of integers, entry i for label i")
    known = {label: number for label, number in enumerate(label_ids) if number is not None}
    found = {label for of_sample in labels for label in on_cpu(of_sample).tolist()}
    if lacking := sorted(found - known.keys()):
        raise ConfigError(f"label_ids has no id for the labels {lacking[:10]}: give one for each label, counted from 0")
    table = torch.tensor([known.get(label, 0) for label in range(len(label_ids))], dtype=torch.int64)
    return [to_device(of_sample.device, table)[of_sample] for of_sample in labels]


def _ids_in(batch: Mapping[str, Any], name: str | None) -> torch.Tensor:
    """Returns the picture ids in the entry `name` of a batch, or the numbers of the samples, (B,) int64."""
    name = "index" if name is None else name
    if name not in batch:
        raise ConfigError(
            f"image_id={name!r}: the batch has {', '.join(batch)}: name the field with the pictures' ids, such as "
            f'fields={{"image_id": Field("json:image_id")}}'
        )
    ids = batch[name]
    if not isinstance(ids, torch.Tensor):
        if wrong := [each for each in ids if not is_integer(each, -(2**63), 2**63)]:
            raise ConfigError(f"image_id={name!r} has {describe(wrong[0])}: allowed are integers of 64 bits")
        return torch.tensor(ids, dtype=torch.int64)
    return ids


def to_detr(batch: Mapping[str, Any], *, boxes: str = "boxes") -> dict[str, Any]:
    """Returns what DETR and its relatives in transformers take, as keyword arguments.

    Facebook's own DETR takes the opposite mask, True on the padding: `NestedTensor(pixel_values, ~pixel_mask.bool())`.

    Args:
        batch: as for `to_detection`; images of different sizes are padded, by the recipe's `batch: {pad: 32}`.

    Raises:
        ConfigError: the images are a list.

    Returns:
        "pixel_values" (B, 3, H, W); "pixel_mask" (B, H, W) int64, 1 where the image is; and "labels", B dictionaries
        with "class_labels" (n,) int64 and "boxes" (n, 4) float32: centre and size as shares of the image without its
        padding, as DETR's authors train it.

    Example:
        >>> import torch
        >>> from gpuloader.targets import to_detr
        >>> batch = {"image": torch.zeros(1, 3, 32, 64), "boxes": [torch.tensor([[16., 8., 48., 24.]])]}
        >>> to_detr({**batch, "boxes_labels": [torch.tensor([3])]})["labels"][0]["boxes"]
        tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """
    images = batch["image"]
    if isinstance(images, list):
        raise ConfigError(
            "DETR takes a tensor of images, but the batch has a list: set the recipe's batch to {pad: 32}"
        )
    shape = to_device(images.device, torch.tensor(images.shape[-2:]))
    sizes = batch["size"] if "pixel_mask" in batch else shape.expand(len(images), 2)
    labels = []
    for corners, classes, size in zip(batch[boxes], batch[f"{boxes}_labels"], sizes):
        start, end, scale = corners[:, :2], corners[:, 2:], size.flip(0)
        labels.append(
            {"class_labels": classes, "boxes": torch.cat([(start + end) / 2 / scale, (end - start) / scale], 1)}
        )
    ones = torch.ones_like(images[:, 0], dtype=torch.int64)
    return {"pixel_values": images, "pixel_mask": batch.get("pixel_mask", ones).long(), "labels": labels}
