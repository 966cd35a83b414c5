"""turboloader's DataLoader: batches are lists of samples, with whole images as arrays in main memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from numpy.typing import NDArray

from gpuloader.errors import BadImageError, ConfigError, LabelError
from gpuloader.helpers.read_ahead import Call, ReadAhead
from gpuloader.helpers.values import is_integer
from gpuloader.loading.loader import GPULoader, run_of
from gpuloader.loading.reader import EncodedBatch, Reader
from gpuloader.loading.selection import Sources
from gpuloader.loading.world import World
from gpuloader.pipelines import UndecodableError, WholeDecoder
from gpuloader.plan import Cursor
from gpuloader.shards import Arena, Wanted

_log = logging.getLogger("gpuloader")


class Sample(dict[str, Any]):
    """A sample.

    image   (height, width, 3), RGB: uint8, whole, as stored; in a `Pipeline`, the result of its `TransformConfig`
    label   its number, if the data has labels
    index   its number in the data
    key     WebDataset's `__key__`
    """

    def get_image(self) -> NDArray[Any]:
        image: NDArray[Any] = self["image"]
        return image

    def __missing__(self, name: str) -> NoReturn:
        if name == "label":
            raise LabelError(
                f"{self['key']!r} has no label: the tar has neither KEY.cls nor folders; `tar -C folder .` keeps them. "
                f"Make it again with labels, or use sample.get('label', 0) if you need none"
            )
        raise ConfigError(f"a sample has no {name!r}: it has {', '.join(self)}")


def make_samples(
    images: Iterable[NDArray[Any]], numbers: Iterable[int], keys: Iterable[str], labels: Sequence[int] | None
) -> list[Sample]:
    """Makes the samples of a batch; without a label if the data has none."""
    samples = [
        Sample(image=image, index=number, key=key) for image, number, key in zip(images, numbers, keys, strict=True)
    ]
    if labels is not None:
        for sample, label in zip(samples, labels, strict=True):
            sample["label"] = label
    return samples


def threads_of(num_workers: int | None) -> int | None:
    """Returns the decoder's number of threads; None for this process's share of the cores."""
    check_at_least(0, "num_workers", num_workers or 0)
    return num_workers or None


def check_at_least(least: int, name: str, value: object) -> None:
    """Checks that it is an integer of at least this."""
    if not is_integer(value, least):
        raise ConfigError(f"{name}={value!r}: allowed is an integer of at least {least}")


class DataLoader:
    """Batches of samples: lists of `Sample`. Each loop over it is the next epoch, in a new order.

    Order, labels, sharing between ranks and errors are `GPULoader`'s. Labels come from `.cls`, otherwise from the
    folders, numbered by name; if there are neither, there are no labels.

    Args:
        data_path: tars, as `GPULoader` takes them.
        batch_size: samples of this rank in a step.
        num_workers: threads that decode; None or 0 for this process's share of the cores.
        shuffle: whether an epoch's order is drawn over all of the data.
        enable_distributed: whether ranks share the data; otherwise each has all of it. It needs torch.distributed to be
            initialised before, or torchrun.
        drop_last: whether a short last batch is left out. Otherwise several ranks split it evenly.

    Raises:
        GPULoaderError: one of `gpuloader.errors`; its message says what to do. Also raised in the loop.
    """

    def __init__(
        self,
        data_path: Sources,
        batch_size: int = 32,
        num_workers: int | None = None,
        shuffle: bool = False,
        *,
        enable_distributed: bool = False,
        drop_last: bool = False,
    ) -> None:
        # The recipe is used only for what it says about bad images, because whole images need no size.
        self._loader = GPULoader(
            data_path,
            batch_size,
            "cpu",
            preset="raw_uint8",
            shuffle=bool(shuffle),
            last_batch="drop" if drop_last else "partial",
            label_from="auto",
            decoder={"num_threads": threads_of(num_workers)},
            world=None if enable_distributed else World(0, 1),
        )
        if enable_distributed and self._loader.world.world_size == 1:
            _log.warning(
                "enable_distributed=True, but this process is rank 0 of 1, so it has all of the data: if there are "
                "others, call torch.distributed.init_process_group before making the DataLoader, or use torchrun"
            )
        self._epoch = 0

    def __len__(self) -> int:
        """Counts the batches of an epoch, the same on every rank."""
        return len(self._loader)

    def __iter__(self) -> Iterator[list[Sample]]:
        iter(self._loader)  # begins nothing; raises in a forked process, which would deliver all samples again
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._batches(epoch)

    def _batches(self, epoch: int) -> Iterator[list[Sample]]:
        """Yields the batches of an epoch; one is made ahead."""
        # The thread reads and decodes a batch while the loop works on the one before. A loop that is left closes this
        # generator: the batch in progress is finished and dropped, and one that waits is never read.
        yield from ReadAhead(self._calls(epoch), 1, "gpuloader-whole-images")

    def _calls(self, epoch: int) -> Iterator[Call[list[Sample]]]:
        plan = run_of(self._loader).plan
        decoder = WholeDecoder(plan.batch_size, run_of(self._loader).num_threads, None)
        cursor = Cursor(epoch)
        while plan.steps_left(cursor):
            yield partial(self._read, cursor, decoder)
            cursor = plan.after(cursor)

    def _read(self, cursor: Cursor, decoder: WholeDecoder, wanted: Wanted) -> list[Sample]:
        run = run_of(self._loader)
        batch = Reader(run).read(cursor, Arena(), wanted)
        numbers = batch.ids.tolist()
        labels = None if batch.labels is None else batch.labels.tolist()
        return make_samples(self._decoded(batch, decoder), numbers, map(run.shards.index.key, numbers), labels)

    def _decoded(self, batch: EncodedBatch, decoder: WholeDecoder) -> list[NDArray[Any]]:
        run = run_of(self._loader)
        if run.decoded or not len(batch.ids):
            return list(batch.images)
        try:
            return decoder.decode(batch.images)
        except UndecodableError as error:
            row, cause = min(decoder.failures(batch.images, str(error)).items())
            raise BadImageError(*run.shards.locate(int(batch.ids[row])), cause) from None
