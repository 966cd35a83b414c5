"""torch's DataLoader with torchvision's transforms; the variant is the decoder.

    pil          Pillow, transforms on its images; Pillow always antialiases
    simplejpeg   libjpeg-turbo through simplejpeg, transforms on tensors; its own decode_jpeg needs CUDA's libraries
    torchcodec   libjpeg-turbo through TorchCodec, transforms on tensors; it needs torch's build for CUDA, but no GPU

Workers hand over uint8 batches, and the loop normalises: a quarter of the bytes go through shared memory.
"""

from __future__ import annotations

import io
import json
import sys
import types
from collections.abc import Callable, Iterator

import numpy as np
import torch
from peers import AUGMENTED, TARGETS
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from systems import tars
from systems.common import (
    DETECT_SIZE,
    MEAN,
    RESIZE,
    SEGMENT_CROP,
    SEGMENT_FILL,
    SEGMENT_SIZES,
    SIZE,
    STD,
    ZOOM_OUT_FILL,
    Images,
    Loader,
    Task,
    main,
    normalise,
)

try:
    import torchvision
except RuntimeError:  # its compiled operators need CUDA's libraries; its transforms are plain Python and do not
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    _operators = torch.library.Library("torchvision", "DEF")
    _operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
    import torchvision  # noqa: F401

from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2


def make(task: Task) -> Loader:
    """One worker process to a core, kept over the epochs."""
    prefetch = task.prefetch or 2
    kind = FolderPictures if task.shards[0].is_dir() else WITH_TARGETS.get(task.recipe, Pictures)
    loader = DataLoader(
        kind(task),
        batch_size=task.batch,
        shuffle=task.train,
        num_workers=task.threads,
        prefetch_factor=prefetch,
        persistent_workers=True,
        pin_memory=task.device == "cuda",
        collate_fn={"resnet50_v2": _mixed, "detect": _joined}.get(task.recipe),
    )

    def epoch(number: int) -> Iterator[Images]:
        for batch in loader:
            images = _received(batch) if task.recipe in TARGETS else batch
            yield images.to(task.device) if images.is_floating_point() else normalise(images, task.device)

    settings = {"num_workers": task.threads, "prefetch_factor": prefetch, "hand-over": "uint8, normalised by the batch"}
    return Loader(epoch, settings, ("torch", "torchvision", "pillow", "simplejpeg", "torchcodec"))


def _mixed(samples: list[torch.Tensor]) -> torch.Tensor:
    """A batch with MixUp or CutMix, in the worker, as torchvision's reference does."""
    mix = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=1000), v2.CutMix(alpha=1.0, num_classes=1000)])
    images, _ = mix(torch.stack(samples), torch.zeros(len(samples), dtype=torch.int64))
    return images


class Pictures(Dataset[torch.Tensor]):
    """The shards' images, decoded and transformed as a task says: uint8 (3, SIZE, SIZE) each."""

    def __init__(self, task: Task) -> None:
        self._images = tars.Images(task.shards)
        self._decode = DECODE[task.variant]
        self._transform = v2.Compose(_transforms(task))

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.transform(self._images[number])

    def transform(self, encoded: bytes) -> torch.Tensor:
        """An image of encoded bytes."""
        return self._transform(self._decode(encoded)).contiguous()


class BoxedPictures(Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """The shards' images with their boxes, xyxy, and labels."""

    def __init__(self, task: Task) -> None:
        self._images = tars.Images(task.shards)
        self._annotations = tars.Images(task.shards, (".json",))
        self._transform = v2.Compose(
            [
                v2.RandomZoomOut(list(ZOOM_OUT_FILL)),
                v2.RandomIoUCrop(),
                v2.RandomHorizontalFlip(),
                v2.Resize(DETECT_SIZE),
                v2.SanitizeBoundingBoxes(),
                v2.PILToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        image = _decode_pil(self._images[number])
        annotations = json.loads(self._annotations[number])["annotations"]
        boxes = torch.tensor([each["bbox"] for each in annotations]).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(image.height, image.width)),
            "labels": torch.tensor([each["category_id"] for each in annotations]),
        }
        image, target = self._transform(image, target)
        return image, target["boxes"], target["labels"]


class MaskedPictures(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The shards' images with their masks: both uint8."""

    def __init__(self, task: Task) -> None:
        self._images = tars.Images(task.shards)
        self._masks = tars.Images(task.shards, (".mask.png",))
        fill = {tv_tensors.Mask: SEGMENT_FILL, "others": 0}
        self._transform = v2.Compose(
            [
                v2.RandomResize(*SEGMENT_SIZES),
                v2.RandomHorizontalFlip(),
                v2.RandomCrop(SEGMENT_CROP, pad_if_needed=True, fill=fill),
                v2.PILToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = _decode_pil(self._images[number])
        mask = tv_tensors.Mask(np.array(Image.open(io.BytesIO(self._masks[number]))))
        image, mask = self._transform(image, mask)
        return image, mask.as_subclass(torch.Tensor)


WITH_TARGETS = {"detect": BoxedPictures, "segment": MaskedPictures}


def _joined(samples: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    """A batch with all boxes in one tensor, and how many each image has: so few tensors go through shared memory."""
    images, boxes, labels = zip(*samples, strict=True)
    return torch.stack(images), torch.cat(boxes), torch.cat(labels), torch.tensor([len(each) for each in labels])


def _received(batch: list[torch.Tensor]) -> torch.Tensor:
    """The images; before, boxes by image, or masks as losses take them, as the training loop has them."""
    images, *targets = batch
    if len(targets) == 1:
        targets[0].long()
    else:
        boxes, labels, counts = targets
        boxes.split(counts.tolist()), labels.split(counts.tolist())
    return images


class FolderPictures(ImageFolder):  # type: ignore[misc]
    """The images of a folder, as `ImageFolder` decodes them with Pillow, without their classes."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.shards[0], v2.Compose(_transforms(task)))

    def __getitem__(self, number: int) -> torch.Tensor:
        image, _ = super().__getitem__(number)
        return image


def _transforms(task: Task) -> list[torch.nn.Module]:
    """Those of torchvision's reference training scripts, on Pillow's images or on tensors of levels."""
    to_tensor = [v2.PILToTensor()] if task.variant == "pil" else []
    if task.recipe in AUGMENTED:
        size, policy = (176, v2.TrivialAugmentWide()) if task.recipe == "resnet50_v2" else (SIZE, v2.RandAugment())
        crop = [v2.RandomResizedCrop(size, antialias=task.antialias), v2.RandomHorizontalFlip()]
        finish = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        erasing = [v2.RandomErasing(0.1)] if task.recipe == "resnet50_v2" else []
        return [*crop, policy, *to_tensor, *finish, *erasing]
    if task.train:
        return [v2.RandomResizedCrop(SIZE, antialias=task.antialias), v2.RandomHorizontalFlip(), *to_tensor]
    return [v2.Resize(RESIZE, antialias=task.antialias), v2.CenterCrop(SIZE), *to_tensor]


def _decode_pil(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def _decode_simplejpeg(data: bytes) -> torch.Tensor:
    import simplejpeg

    return torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)


def _decode_torchcodec(data: bytes) -> torch.Tensor:
    from torchcodec.decoders import decode_jpeg

    return decode_jpeg(data, mode="RGB")


DECODE: dict[str, Callable[[bytes], Image.Image | torch.Tensor]] = {
    "pil": _decode_pil,
    "simplejpeg": _decode_simplejpeg,
    "torchcodec": _decode_torchcodec,
}

if __name__ == "__main__":
    main(make, tuple(DECODE))
