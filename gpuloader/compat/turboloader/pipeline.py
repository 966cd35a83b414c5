"""turboloader's Pipeline: samples on demand, transformed as its configuration says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from gpuloader.compat.turboloader.data_loader import WHOLE, Sample, check_count, samples_of
from gpuloader.compat.turboloader.transforms import Compose, Normalize, Resize, Transform
from gpuloader.errors import ConfigError, LoaderError
from gpuloader.loading.loader import GPULoader
from gpuloader.loading.world import World

_MOST_IN_A_BATCH = 64


class ResizeMethod(Enum):
    """The filter by which a `TransformConfig` resizes."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


@dataclass(slots=True)
class TransformConfig:
    """The configuration of the transforms that a `Pipeline` applies to each image.

    Attributes:
        enable_resize: if False, images keep their sizes.
        enable_normalize: by `mean` and `std`, for values in [0, 1]; the result is float32.
        output_float: without normalising, values are float32 in [0, 1] instead of uint8 levels.
    """

    enable_resize: bool = False
    resize_width: int = 224
    resize_height: int = 224
    resize_method: ResizeMethod = ResizeMethod.BILINEAR
    enable_normalize: bool = False
    mean: Sequence[float] = (0.485, 0.456, 0.406)
    std: Sequence[float] = (0.229, 0.224, 0.225)
    output_float: bool = False

    @property
    def compose(self) -> Compose:
        """The configuration as transforms; with `enable_resize`, its `preset` works in a `GPULoader`."""
        transforms: list[Transform] = []
        if self.enable_resize:
            method = getattr(self.resize_method, "value", self.resize_method)
            transforms.append(Resize(self.resize_width, self.resize_height, method))
        if self.enable_normalize:
            transforms.append(Normalize(self.mean, self.std))
        elif self.output_float:
            transforms.append(Normalize((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))
        return Compose(transforms)


class Pipeline:
    """Samples on demand: `start()` begins the next epoch, `next_batch(n)` gives its next samples, `stop()` ends it.

    If images are resized, this happens on a GPU if there is one; otherwise they are whole, as from a `DataLoader`. Each
    process has all of the data.

    Args:
        tar_paths: as `GPULoader` takes them.
        num_workers: threads that decode; None or 0 for this process's share of the cores.
        queue_size: images that are decoded ahead, in batches of up to 64.
        shuffle: whether an epoch's order is drawn over all of the data.
        decode_jpeg: must be True: samples are images.
        enable_simd_transforms: no effect: SIMD instructions are always used.
        transform_config: what is done to each image; None leaves them unchanged.

    Raises:
        GPULoaderError: one of `gpuloader.errors`; its message says what to do. Also raised in `next_batch`.
    """

    def __init__(
        self,
        tar_paths: Sequence[str],
        num_workers: int | None = None,
        queue_size: int = 256,
        shuffle: bool = False,
        decode_jpeg: bool = True,
        enable_simd_transforms: bool = True,
        transform_config: TransformConfig | None = None,
    ) -> None:
        if not decode_jpeg:
            raise ConfigError("decode_jpeg=False: samples are images here; for the bytes in a tar, use webdataset")
        check_count("queue_size", queue_size)
        batch_size = min(queue_size, _MOST_IN_A_BATCH)
        self._transform = (transform_config or TransformConfig()).compose
        self._loader = GPULoader(
            tar_paths,
            batch_size,
            "auto" if self._transform.sized else "cpu",
            preset=self._transform.preset if self._transform.sized else WHOLE,
            shuffle=bool(shuffle),
            last_batch="partial",
            output="dict",
            label_from="auto",
            decoder={"num_threads": num_workers or None, "prefetch": min(64, queue_size // batch_size)},
            world=World(0, 1),
        )
        self._samples: Iterator[Sample] | None = None

    def start(self) -> None:
        """Begins the next epoch and drops the rest of the one before."""
        self._samples = self._epoch()

    def next_batch(self, batch_size: int) -> list[Sample]:
        """Returns the next samples: as many as asked for, fewer at the epoch's end, and after that none."""
        check_count("batch_size", batch_size)
        if self._samples is None:
            raise LoaderError(
                "next_batch() of a pipeline that is not running: call start() at the beginning of an epoch"
            )
        return list(islice(self._samples, batch_size))

    def stop(self) -> None:
        """Ends the epoch; `start` begins another."""
        self._samples = None

    def _epoch(self) -> Iterator[Sample]:
        for batch in self._loader:
            for sample in samples_of(batch):
                if not self._transform.sized:
                    sample["image"] = self._transform.apply(sample["image"])
                yield sample
