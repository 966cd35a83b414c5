"""Loads the images to verify and the expected images, and compares them.

Expected are the images that one thread of the CPU makes of the same samples, from whole images. The CPU must deliver
them bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch

from gpuloader.chain.settings import Decoder
from gpuloader.loading.loader import GPULoader
from gpuloader.loading.options import BadImages
from gpuloader.loading.selection import Sources
from gpuloader.loading.world import World

IMAGES = 32
BATCH_SIZE = 16
_BUSY_SIDE = 4096
_BUSY_STEPS = 20
_REPLACE = BadImages(replace=True, max_share=1.0)
ALONE = World(0, 1)  # whatever a launcher says of ranks
_REFERENCE = Decoder(num_threads=1, region=False)
PLAIN: Mapping[str, Any] = {"imagenet_train": {"Normalize": None}}

# The mean difference in levels that is allowed on a GPU. Decoders differ by 1 or 2, and operations can widen that; an
# image that was not decoded, or that is another one, differs by 60.
_MOST_LEVELS = 1.5
_MOST_LEVELS_OF_AN_IMAGE = 10.0
WIDER = 3.0
NARROWER = 0.4  # of one operation on images that are decoded equally

Images: TypeAlias = dict[str, list[torch.Tensor]]
"""The views of each sample by its key, on the CPU, without replaced samples."""

Bad: TypeAlias = dict[int, str]
"""The causes for replaced samples."""

Outcome: TypeAlias = tuple[str, str, bool]
"""What was found, what is allowed ("" for no limit), and whether what was found is allowed."""

Comparisons: TypeAlias = Iterator[tuple[str, Callable[[], Outcome]]]
"""The name of each row, and the function that computes the row."""


class Subject(NamedTuple):
    """What is verified: the first samples of some shards, their number, and a GPU, or None for the CPU."""

    tar: Sources
    samples: int
    device_id: int | None


def compare_loads(subject: Subject, tar: Sources, factor: float, **options: Any) -> Outcome:  # noqa: ANN401
    """Loads the images to verify and the expected images, and compares them as `compare` does."""
    (ours, _), (theirs, _) = load_both(tar, subject.device_id, **options)
    return compare(subject, ours, theirs, factor)


def load_both(tar: Sources, device_id: int | None, **options: Any) -> list[tuple[Images, Bad]]:  # noqa: ANN401
    """Loads the images to verify, and the expected images."""
    return [load(tar, device_id, **options), load(tar, None, decoder=_REFERENCE, **options)]


def load(
    tar: Sources,
    device_id: int | None,
    batch_size: int = BATCH_SIZE,
    *,
    delivered: int = 0,
    stream: bool = False,
    busy: bool = False,
    entries: Sequence[str] = ("image",),
    **options: Any,  # noqa: ANN401
) -> tuple[Images, Bad]:
    """Returns the images of an epoch, or other entries, where they are on the device, and the causes for bad ones."""
    common = {"shuffle": "none", "last_batch": "partial", "label_from": None, "on_error": _REPLACE, "world": ALONE}
    parts: list[tuple[list[str], torch.Tensor, list[list[torch.Tensor]]]] = []
    with GPULoader(tar, batch_size, device_id, **{"output": "dict", **common, **options}) as loader:
        device, on_gpu = loader.device, loader.device.type == "cuda"
        work = torch.rand((_BUSY_SIDE, _BUSY_SIDE), device=device) if busy and on_gpu else None
        loader.load_state_dict({**loader.state_dict(), "delivered": delivered})
        with torch.cuda.stream(torch.cuda.Stream(device)) if stream and on_gpu else nullcontext():  # type: ignore[no-untyped-call]
            for batch in loader:
                if work is not None:
                    for _ in range(_BUSY_STEPS):
                        torch.matmul(work, work)
                # On a busy GPU the copy is queued, so the batch is freed before it runs.
                views = batch["image"] if len(loader.preset.each_view) > 1 else [batch[name] for name in entries]
                copies = [[image.clone() for image in images] for images in views]
                parts.append((batch["key"], batch["valid"], copies))
                del batch
            if on_gpu:
                torch.cuda.synchronize(device)
    images = {
        key: [view[row].cpu() for view in views]
        for keys, valid, views in parts
        for row, (key, is_valid) in enumerate(zip(keys, valid.tolist(), strict=True))
        if is_valid and all(view[row].device == device for view in views)
    }
    return images, dict(loader.stats().bad)


def compare(subject: Subject, ours: Images, theirs: Images, factor: float) -> Outcome:
    """Returns how far the images of the same samples differ; `factor` scales what is allowed on a GPU."""
    if ours.keys() != theirs.keys() or not ours:
        missing = ", ".join(sorted(ours.keys() ^ theirs.keys())[:5]) or "all"
        return f"other samples: {missing}", "the CPU's samples", False
    levels = {
        key: [
            (one.float() - other.float()).abs().flatten() * (1 if one.dtype == torch.uint8 else 255)
            for one, other in zip(ours[key], theirs[key], strict=True)
        ]
        for key in ours
    }
    means = {key: torch.cat(views).mean().item() for key, views in levels.items()}
    mean, worst = sum(means.values()) / len(means), max(means.values())
    largest = max(view.max().item() for views in levels.values() for view in views)
    found = f"mean {mean:.3g}, an image {worst:.3g}, largest {largest:.3g}"
    if subject.device_id is None:
        return found, "0", largest == 0
    most, most_of_an_image = factor * _MOST_LEVELS, factor * _MOST_LEVELS_OF_AN_IMAGE
    return found, f"mean {most:g}, an image {most_of_an_image:g}", mean <= most and worst <= most_of_an_image
