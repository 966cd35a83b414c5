"""A step that is read and decoded in parts is the step that is decoded at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from features import parts_of
from making import damaged_jpeg, jpeg, write_samples, write_shard

from gpuloader import BadImages, GPULoader
from gpuloader import transforms as T
from gpuloader.chain.join import Join
from gpuloader.loading.parts import Parts, cut
from gpuloader.recipe import Recipe, load_preset
from gpuloader.shards import ShardSet

SAMPLES, BATCH = 14, 7
CutBy = Callable[[int], None]


@pytest.fixture
def cut_by() -> Iterator[CutBy]:
    """`cut_by(2)`: from then on loaders cut steps into parts of two rows."""
    with ExitStack() as changed:
        yield lambda rows: changed.enter_context(parts_of(rows))


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    samples = [
        {"__key__": f"{number:02d}", "jpg": jpeg(40 + number, 60, seed=number), "cls": b"%d" % number}
        for number in range(SAMPLES)
    ]
    return write_shard(tmp_path / "a.tar", samples)


def as_plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return list(map(as_plain, value)) if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_padding_is_that_of_the_whole_step(shard: Path, layout: str, cut_by: CutBy) -> None:
    recipe, found = Recipe([T.Resize(24, max_size=40)], batch={"pad": 8}, layout=layout), []
    for rows in (BATCH, 2, 1):
        cut_by(rows)
        with GPULoader(shard, BATCH, None, preset=recipe, output="dict") as loader:
            found.append([{entry: as_plain(value) for entry, value in batch.items()} for batch in loader])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("row_bytes", "most_bytes", "least_rows", "most_rows", "expected"),
    [
        ([], 10, 1, 9, []),
        ([4, 4, 4], 12, 1, 9, [3]),
        ([4, 4, 4], 11, 1, 9, [2, 1]),
        ([40, 4, 4], 11, 1, 9, [1, 2]),  # one that is too large alone
        ([40, 40, 40], 11, 2, 9, [2, 1]),  # no thread waits, though there are too many bytes
        ([4, 4, 4, 4, 4], 12, 2, 9, [2, 3]),  # a multiple of the least rows, but the last part takes what fits
        ([1, 1, 1, 1], 11, 1, 2, [2, 2]),
        ([0, 0, 0], 11, 1, 9, [3]),
    ],
)
def test_a_part_has_as_many_rows_as_fit(
    row_bytes: list[int], most_bytes: int, least_rows: int, most_rows: int, expected: list[int]
) -> None:
    parts = cut(np.array(row_bytes, np.int64), most_bytes, least_rows, most_rows)
    assert [part.stop - part.start for part in parts] == expected
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(len(row_bytes)))


@pytest.mark.parametrize(
    ("device", "preset", "pixels", "threads", "expected"),
    [
        ("cpu", "imagenet_train", (375, 500), 2, [256]),  # ordinary photographs: no copy of the tensor
        ("cpu", "raw_uint8", (375, 500), 2, [256]),  # of any dtype
        ("cpu", "imagenet_train", (890, 890), 2, [256]),
        ("cpu", "imagenet_train", (900, 900), 2, [66] * 3 + [58]),  # 16 pixels and more for each that is delivered
        ("cpu", "imagenet_train", (2736, 3648), 2, [6] * 42 + [4]),
        ("cpu", "dino", (2736, 3648), 2, [6] * 42 + [4]),
        ("cpu", "yolo", (2736, 3648), 2, [4] * 64),  # its tensors count, and are larger
        ("cpu", "yolo", (1368, 1824), 2, [16] * 16),
        ("cpu", "yolo", (900, 900), 2, [256]),
        ("cpu", "imagenet_train", (2736, 3648), 4, [4] * 64),  # no thread waits for the others
        ("cpu", "imagenet_train", (2736, 3648), 8, [8] * 32),
        ("cuda", "imagenet_train", (2736, 3648), 8, [32] * 8),
    ],
)
def test_the_parts_of_a_batch_of_256(
    tmp_path: Path, device: str, preset: str, pixels: tuple[int, int], threads: int, expected: list[int]
) -> None:
    shards = ShardSet.open(write_samples(tmp_path, 1, shards=1, sizes=[pixels]))
    parts = Parts.on(device, shards, load_preset(preset), 256, threads)
    of_step = parts.of_step(np.zeros(256, np.int64), np.zeros(256, np.int64))
    assert [part.stop - part.start for part in of_step] == expected
    assert parts.typical(256) == of_step


def with_bad(folder: Path, bad: set[int]) -> Path:
    """Only the decoder finds that they are bad."""
    images = {number: damaged_jpeg() if number in bad else jpeg(64, 64, seed=number) for number in range(SAMPLES)}
    samples = [{"__key__": f"{number:02d}", "jpg": image, "cls": b"%d" % number} for number, image in images.items()]
    return write_shard(folder / "bad.tar", samples)


@pytest.mark.parametrize(("bad", "skip"), [({1, 4, 6}, False), ({0, 1}, True)])
def test_images_that_cannot_be_decoded_are_replaced_or_left_out_in_any_part(
    tmp_path: Path, bad: set[int], skip: bool, cut_by: CutBy
) -> None:
    tar, found = with_bad(tmp_path, bad), []
    options: dict[str, Any] = {"on_error": BadImages(replace=not skip, skip=skip, max_share=1)}
    for rows in (BATCH, 2, 1):
        cut_by(rows)
        with GPULoader(
            tar, BATCH, None, preset=Recipe([T.Resize([64, 64])]), shuffle="none", output="dict", **options
        ) as loader:
            batches = [{entry: as_plain(value) for entry, value in batch.items()} for batch in loader]
            found.append((batches, loader.stats().bad))
    assert found[0] == found[1] == found[2]
    assert set(found[0][1]) == bad
    assert len(found[0][0][0]["index"]) == (BATCH - len(bad) if skip else BATCH)
    assert not bad & set(found[0][0][0]["index"])


def test_an_interrupt_between_parts_loses_no_row(shard: Path, cut_by: CutBy, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_by(2)
    options: dict[str, Any] = {"preset": Recipe([T.Resize([8, 8]), T.Normalize([0] * 3, [1] * 3)]), "shuffle": "none"}
    with GPULoader(shard, BATCH, None, **options) as loader:
        whole = [labels.tolist() for _, labels in loader]
    added, calls = Join._placed, 0  # which copies the images of a part

    def interrupted(*arguments: Any) -> Any:  # noqa: ANN401
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return added(*arguments)

    monkeypatch.setattr(Join, "_placed", interrupted)
    with GPULoader(shard, BATCH, None, **options) as loader:
        epoch = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(epoch)
        assert [labels.tolist() for _, labels in epoch] == whole
