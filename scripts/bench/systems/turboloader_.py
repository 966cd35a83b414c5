"""turboloader, by the path that its documentation calls the fastest for tars."""

from __future__ import annotations

from collections.abc import Iterator

import turboloader

from systems.common import SIZE, Images, Loader, Task, main
from systems.tars import one_tar


def make(task: Task) -> Loader:
    """It reads one tar, so the shards are made into one. Its threads are as many as the cores; it cannot be told.

    `pin_memory` fills a ring of torch tensors again and again, pinned or not; fresh arrays took 5% more CPU time.
    For evaluation it has no crop: the whole image is squashed to the output's size, which is less work than the recipe.
    """
    if task.variant == "tbl":
        return _make_tbl(task)
    prefetch = task.prefetch or 2
    loader = turboloader.DataLoader(
        str(one_tar(task.shards, task.work)),
        batch_size=task.batch,
        image_size=SIZE,
        output_format="pytorch",
        transform=turboloader.ImageNetNormalize(),
        shuffle=task.train,
        train_aug=task.train,
        antialias=task.antialias,
        prefetch_batches=prefetch,
        pin_memory=True,
    )

    def epoch(number: int) -> Iterator[Images]:
        loader.set_epoch(number)
        for images, _ in loader:
            yield images

    return Loader(epoch, {"prefetch_batches": prefetch, "pin_memory": True}, ("turboloader", "torch", "numpy"))


def _make_tbl(task: Task) -> Loader:
    """Its own format of decoded images, by its loader for that: one thread beside the loop."""
    assert task.decoded_size is not None
    tar = one_tar(task.shards, task.work, task.decoded_size)
    path = tar.with_suffix(".tbl")
    if not path.exists():
        turboloader.preprocess_to_tbl(str(tar), str(path), task.decoded_size)
    prefetch = task.prefetch or 2
    loader = turboloader.TblRawImageLoader(
        str(path),
        batch_size=task.batch,
        image_size=SIZE,
        train_aug=task.train,
        hflip_prob=0.5 if task.train else 0.0,
        prefetch_batches=prefetch,
    )

    def epoch(number: int) -> Iterator[Images]:
        loader.set_epoch(number)
        for images, _ in loader:
            yield images

    return Loader(epoch, {"prefetch_batches": prefetch}, ("turboloader", "torch", "numpy"))


if __name__ == "__main__":
    main(make, variants=("", "tbl"))
