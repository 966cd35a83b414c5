"""JPEGs decoded by a GPU for torch: batches of whole images, then torchvision's transforms on the GPU, one by one.

decode_jpeg  torchvision.io.decode_jpeg(device="cuda")
torchcodec   torchcodec.decoders.decode_jpeg(device="cuda")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torchvision.transforms import v2

from systems import tars
from systems.common import MEAN, RESIZE, SIZE, STD, Images, Loader, Task, main


def make(task: Task) -> Loader:
    """A thread reads and decodes the next batch while this one is looked at."""
    encoded = tars.Images(task.shards)
    decode = _decoder(task.variant)
    if task.train:
        transform = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=task.antialias), v2.RandomHorizontalFlip()])
    else:
        transform = v2.Compose([v2.Resize(RESIZE, antialias=task.antialias), v2.CenterCrop(SIZE)])
    mean, std = (255 * torch.tensor(values, device=task.device).view(3, 1, 1) for values in (MEAN, STD))

    def batch(numbers: torch.Tensor) -> torch.Tensor:
        data = [torch.frombuffer(bytearray(encoded[number]), dtype=torch.uint8) for number in numbers.tolist()]
        return torch.stack([transform(image) for image in decode(data)]).float().sub_(mean).div_(std)

    def epoch(number: int) -> Iterator[Images]:
        order = torch.randperm(len(encoded)) if task.train else torch.arange(len(encoded))
        with ThreadPoolExecutor(1) as ahead:
            yield from ahead.map(batch, order.split(task.batch))

    return Loader(epoch, {"decoding threads": 1}, ("torch", "torchvision", "torchcodec"))


def _decoder(variant: str) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    if variant == "torchcodec":
        from torchcodec.decoders import decode_jpeg as decode

        return lambda data: decode(data, device="cuda")
    from torchvision.io import ImageReadMode, decode_jpeg

    return lambda data: decode_jpeg(data, ImageReadMode.RGB, device="cuda")


if __name__ == "__main__":
    main(make, ("decode_jpeg", "torchcodec"))
