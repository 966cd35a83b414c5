"""A local shard that is overwritten in place and gets its old time back: the gate sees its images again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import evaluation
from making import jpeg, write_shard

from gpuloader import GPULoader
from gpuloader.errors import BadImageError
from gpuloader.loading.loader import run_of

COUNT = 12
SLOT = 4000  # bytes of each image: what follows a JPEG's end does not count


def images(seed: int, size: tuple[int, int] = (40, 60)) -> list[bytes]:
    return [jpeg(*size, seed=seed + i).ljust(SLOT, b"\0") for i in range(COUNT)]


def written(path: Path, images: list[bytes]) -> Path:
    return write_shard(path, [{"__key__": f"{i:02d}", "jpg": image, "cls": b"1"} for i, image in enumerate(images)])


def overwrite(shard: Path, new: list[bytes]) -> None:
    """Puts other images into a shard of the same names and sizes, and its old times back."""
    before = shard.stat()
    content = written(shard.with_suffix(".new"), new).read_bytes()
    assert len(content) == before.st_size
    with shard.open("r+b") as file:
        file.write(content)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))


def let_it_read_ahead(loader: GPULoader) -> None:
    """Waits until the reader rests: otherwise it may see a shard that is overwritten before its old times are back."""
    for _ in range(10_000):
        chain = loader._chain
        if chain is not None and chain.ahead.ready > run_of(loader).decoder.prefetch:
            return
        time.sleep(0.001)
    raise TimeoutError("the reader still reads after ten seconds")


def pixels(loader: GPULoader) -> torch.Tensor:
    return torch.cat([images for images, _ in loader])


def pass_what_was_read(loader: GPULoader) -> None:
    """Drops the epochs of which something was read ahead."""
    for _ in range(3):
        list(loader)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return written(tmp_path / "a.tar", images(0))


def test_other_images_are_decoded_by_their_own_sizes(tmp_path: Path, shard: Path) -> None:
    new = images(100, (60, 40))  # as large on the disk, but upright
    with evaluation(written(tmp_path / "b.tar", new), 4) as loader:
        expected = pixels(loader)
    with evaluation(shard, 4) as loader:
        first = pixels(loader)
        assert torch.equal(pixels(loader), first)
        let_it_read_ahead(loader)
        overwrite(shard, new)
        pass_what_was_read(loader)
        assert torch.equal(pixels(loader), expected)


def test_an_image_that_the_gate_refuses_gets_nowhere(shard: Path) -> None:
    hostile = images(0)
    hostile[7] = hostile[7].rstrip(b"\0")[:-300].ljust(SLOT, b"\0")  # it is cut, which the decoder takes for gray
    with evaluation(shard, 4) as loader:
        for _ in range(2):
            list(loader)
        let_it_read_ahead(loader)
        overwrite(shard, hostile)
        with pytest.raises(BadImageError, match="key    07") as caught:
            pass_what_was_read(loader)
        assert "a JPEG that is cut" in caught.value.cause
    with evaluation(written(shard.with_name("b.tar"), images(0)), 4, on_error="replace", output="dict") as loader:
        list(loader)
        let_it_read_ahead(loader)
        overwrite(shard.with_name("b.tar"), hostile)
        pass_what_was_read(loader)
        valid = torch.cat([batch["valid"] for batch in loader])
        assert valid.tolist() == [i != 7 for i in range(COUNT)]


@pytest.mark.parametrize(
    "change",
    [
        lambda shard: shard.chmod(0o600),
        lambda shard: shard.with_suffix(".link").hardlink_to(shard),
        lambda shard: shard.rename(shard.with_suffix(".moved")),
        Path.unlink,
        lambda shard: written(shard.with_suffix(".new"), images(9)).replace(shard),
    ],
    ids=["chmod", "link", "rename", "unlink", "another in its place"],
)
def test_a_shard_of_which_no_byte_changes_is_read_on(
    shard: Path, change: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    with evaluation(shard, 4) as loader:
        expected = pixels(loader)
        change(shard)
        for _ in range(3):
            assert torch.equal(pixels(loader), expected)
    assert caplog.text == ""


def test_a_shard_that_is_replaced_while_it_is_closed_is_seen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few descriptors, shards are opened by their names again and again."""
    monkeypatch.setattr("gpuloader.shards.readers._MOST_OPEN_FILES", 1)
    shards = [written(tmp_path / f"{name}.tar", images(seed)) for seed, name in enumerate("ab")]
    with evaluation(shards, 6) as loader:
        list(loader)
        list(loader)
        before = shards[0].stat()
        other = written(tmp_path / "c.tar", images(100, (60, 40)))
        with evaluation([other, shards[1]], 6) as loader_of_these:
            expected = pixels(loader_of_these)
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.replace(shards[0])
        pass_what_was_read(loader)
        assert torch.equal(pixels(loader), expected)


def test_what_was_accepted_of_one_read_does_not_hold_for_the_next(tmp_path: Path) -> None:
    """A shard changes between the reading of a batch and that of a replacement in it."""
    bad = images(0)
    bad[0] = b"no image".ljust(SLOT)
    shard = written(tmp_path / "a.tar", bad)
    new = [bad[0], *images(100, (60, 40))[1:]]
    with evaluation(shard, COUNT, on_error="replace", output="dict") as loader:
        draw = type(run_of(loader).shards).read_images
        run = run_of(loader)

        def reading(shards: Any, samples: Any, *rest: Any) -> Any:  # noqa: ANN401
            if len(samples) == 1 and run.shards.accepted.of(np.array([1])).any():
                overwrite(shard, new)
            return draw(shards, samples, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(run_of(loader).shards), "read_images", reading)
            list(loader)
        pass_what_was_read(loader)
        assert not run_of(loader).shards.accepted.of(np.arange(1, COUNT)).any()  # nor are sizes that the index lacks
