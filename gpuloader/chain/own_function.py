"""`OwnFunction`: calls own code on one image after another, and validates the results."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gpuloader.chain.own_albumentations import call_with_targets
from gpuloader.errors import describe
from gpuloader.images.limits import MAX_SIDE
from gpuloader.recipe.apply import Apply, is_albumentations, is_module, takes_rng

Levels: TypeAlias = NDArray[np.uint8]
Images: TypeAlias = Sequence[Levels]
"""A list of images, or an array (n, height, width, 3)."""
Targets: TypeAlias = Mapping[str, Any]
OwnOutput: TypeAlias = tuple[Levels, Targets]
_32_BITS = 0xFFFFFFFF
_HERE = str(Path(__file__).parent)


class Item(NamedTuple):
    """An image for own code.

    Attributes:
        image: uint8 (height, width, 3), which own code may change.
        function: the number of the function.
        key: two 64-bit integers, the key of its random numbers.
        targets: the targets, for a function that takes them.
        dropped: whether the image will not be delivered; then the function does not see it.
    """

    image: Levels
    function: int
    key: tuple[int, int]
    targets: Targets | None = None
    dropped: bool = False


@dataclass(frozen=True)
class Failure:
    """A failure of own code: it raised an exception, or did not return an image.

    Attributes:
        lines: the exception, and where it was raised.
        error: the exception, if own code ran in this process.
    """

    lines: Sequence[str]
    error: Exception | None = None


class OwnFunction:
    """A function, or a transform of albumentations or torchvision, that is called on images.

    It is called twice on the first image, and on later ones until a check has passed, to check that it is repeatable.

    Args:
        seeds: whether to seed the global random generators of the process, which other libraries may use.
    """

    def __init__(self, apply: Apply, *, seeds: bool) -> None:
        assert apply.function is not None
        self._apply = apply
        self._function: Callable[..., Any] = apply.function
        self._seeds = seeds
        self._is_checked = False
        self._takes_rng = takes_rng(apply.function, apply.targets)
        self._call = (
            self._albumentations
            if is_albumentations(apply.function)
            else self._module
            if is_module(apply.function)
            else self._plain
        )

    def run(self, item: Item) -> OwnOutput | Failure:
        """Returns the image and its targets, or the failure."""
        if item.dropped:
            return item.image, {}
        try:
            if not self._is_checked:
                self._check_repeats(item)
                self._is_checked = True
            made = self._made(item)
        except CancelledError:  # as itself, as SystemExit
            raise
        except Exception as error:  # noqa: BLE001 - the program's own, of any kind
            own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_HERE)]
            lines = [*traceback.format_exception_only(error), *traceback.format_list(own)]
            return Failure("".join(lines).splitlines(), error)
        return made

    def _made(self, item: Item) -> OwnOutput:
        if self._seeds:
            seed_all(item.key)
        size = item.image.shape
        image, targets = self._call(item.image, item)
        self._check(size, image)
        return np.ascontiguousarray(image), targets

    def _check_repeats(self, item: Item) -> None:
        """Calls the function twice, on copies; raises ValueError if the results differ."""
        first, again = [self._made(item._replace(image=item.image.copy()))[0] for _ in range(2)]
        if not np.array_equal(first, again):
            raise ValueError(
                "it made two different images of one, with the same random numbers, so no run could be repeated: "
                "draw from `rng` alone, and keep nothing from one image to the next"
            )

    def _plain(self, image: Levels, item: Item) -> tuple[Any, Targets]:
        rng = [np.random.Generator(np.random.Philox(key=np.array(item.key, np.uint64)))] if self._takes_rng else []
        if not self._apply.targets:
            return self._function(image, *rng), {}
        made = self._function(image, dict(item.targets or {}), *rng)
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping)):
            raise TypeError(f"it returned {describe(made)}: with targets=True, allowed is (image, targets)")
        return made

    def _albumentations(self, image: Levels, item: Item) -> tuple[Any, Targets]:
        self._function.set_random_seed(item.key[0] & _32_BITS)  # type: ignore[attr-defined]
        if not self._apply.targets:
            return self._function(image=image)["image"], {}
        return call_with_targets(self._function, image, item.targets or {})

    def _module(self, image: Levels, _: Item) -> tuple[Any, Targets]:
        made = self._function(torch.from_numpy(image).permute(2, 0, 1))
        if not (isinstance(made, torch.Tensor) and made.ndim == 3):
            raise TypeError(f"it returned {describe(made)}: allowed is a tensor (3, height, width) of uint8")
        return made.permute(1, 2, 0).numpy(), {}

    def _check(self, size: tuple[int, ...], made: object) -> None:
        if not (isinstance(made, np.ndarray) and made.dtype == np.uint8 and made.ndim == 3 and made.shape[2] == 3):
            found = f"{made.dtype} of shape {made.shape}" if isinstance(made, np.ndarray) else describe(made)
            raise TypeError(
                f"it returned {found}: allowed is an array (height, width, 3) of uint8; leave out what makes floats or "
                f"tensors, such as ToTensorV2, and put Normalize after Apply"
            )
        if self._apply.same_size and made.shape != size:
            raise ValueError(
                f"it made {made.shape[0]} x {made.shape[1]} pixels of {size[0]} x {size[1]}: keep the "
                f"size, or declare others by Apply(..., same_size=False)"
            )
        if not 1 <= min(made.shape) <= max(made.shape) <= MAX_SIDE:
            raise ValueError(f"it made {made.shape[0]} x {made.shape[1]} pixels: allowed are sides of 1 to {MAX_SIDE}")


def seed_all(key: tuple[int, int]) -> None:
    """Seeds the global random generators of the process."""
    random.seed(key[1])
    np.random.seed(key[1] & _32_BITS)
    torch.default_generator.manual_seed(key[1] & 0x7FFFFFFFFFFFFFFF)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restores the global random generators at the end of a `with` block."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def one_thread_each() -> None:
    """Limits the libraries of this process to one thread, because each core has a process."""
    torch.set_num_threads(1)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)
