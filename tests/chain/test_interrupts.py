"""An interrupt of the loop's thread comes at once, and the next call goes on where the loop was."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from lifecycles import delivered, loader, records
from numpy.typing import NDArray

import gpuloader
from gpuloader import BadImages, Compose, Decoder, GPULoader
from gpuloader import transforms as T
from gpuloader.base.worker_threads import WorkerThreads

OURS = str(Path(gpuloader.__file__).parent)


def grain(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    return image ^ rng.integers(0, 8, image.shape, np.uint8)


CROP = T.RandomResizedCrop(24)
KINDS = pytest.mark.parametrize(
    "settings",
    [
        {"preset": Compose([CROP])},
        {"preset": Compose([CROP, T.Apply(grain)]), "decoder": Decoder(1, processes=1)},
        {"preset": Compose([CROP, T.Apply(grain)]), "decoder": Decoder(1, processes=0)},
    ],
    ids=["plain", "own code in a process", "own code in a thread"],
)


def load(shards: list[Path], **settings: Any) -> GPULoader:  # noqa: ANN401
    return loader(shards, 4, **{"decoder": Decoder(1), "on_error": BadImages(replace=True), **settings})


@KINDS
def test_an_interrupt_while_the_loop_waits_comes_before_the_batches_in_flight(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with load(shards, **settings) as batches:
        whole = delivered(batches)
        batches.seek(0)
        epoch = iter(batches)
        received = records(next(epoch)) + records(next(epoch))
        with monkeypatch.context() as patch:
            patch.setattr(WorkerThreads, "get", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(epoch)
        assert received + delivered(epoch) == whole


class InterruptAtLine:
    """Raises KeyboardInterrupt at the n-th line of the library that this thread runs.

    Not as a batch is returned: Python handles no signal between the last call and that. And not in a finalizer, where
    Python keeps an interrupt to itself.
    """

    def __init__(self, lines: int) -> None:
        self.left, self.where = lines, ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> InterruptAtLine | None:
        file = frame.f_code.co_filename
        if not file.startswith(OURS) or frame.f_code.co_name in ("__next__", "__del__"):
            return None
        if event == "line" and not getline(file, frame.f_lineno).strip().startswith("return"):
            self.left -= 1
            if self.left == 0:
                self.where = f"{Path(file).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self


@pytest.fixture
def seeded() -> Iterator[random.Random]:
    yield random.Random(7)
    sys.settrace(None)


@pytest.mark.slow(kept=1)
@KINDS
def test_an_interrupt_at_any_line_of_the_loop_loses_and_doubles_no_batch(
    shards: list[Path], seeded: random.Random, settings: dict[str, Any]
) -> None:
    with load(shards, **settings) as batches:
        whole = [records(batch) for batch in batches]
        places: set[str] = set()
        for _ in range(3):
            received = list[list[str]]()
            batches.seek(0)
            epoch = iter(batches)
            for _ in range(20):
                interrupt = InterruptAtLine(seeded.randint(1, 600))
                trace = sys.gettrace()
                sys.settrace(interrupt)
                try:
                    received.append(records(next(epoch)))
                except KeyboardInterrupt:
                    places.add(interrupt.where)
                finally:
                    sys.settrace(trace)
            received += [records(batch) for batch in epoch]
            assert received == whole
        assert len(places) > 10
