"""What the gate and DALI make of mutated images: each batch is decoded twice, and must come to the same."""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np
from making import encoded
from numpy.typing import NDArray
from PIL import Image

from fuzzing.material import IMAGES, material
from gpuloader import Compose
from gpuloader.errors import DataError
from gpuloader.images.gate import admit
from gpuloader.images.limits import DEFAULT_MAX_PIXELS, RefusalError
from gpuloader.recipe.model import Transform
from gpuloader.transforms import CenterCrop, Resize

_SIZE = 32
_PERTURB = -6  # mallopt(3), M_PERTURB: which byte fills what malloc gives and free gets
REPLACED = "replaced"
_BAD = re.compile(r"image (\d+) cannot be decoded")

Decode: TypeAlias = Callable[[list[bytes]], Iterable[NDArray[Any]]]
"""Decodes images; raises a `DataError` that names bad ones by their places."""


class SplitError(Exception):
    """Pixels or verdicts differ between two batches; the message says which."""


def composed(transforms: Sequence[Transform]) -> Decode:
    """Decodes as `Compose` does, each batch after one of another colour, whose pixels are in DALI's memory then."""
    recipe, shade = Compose(transforms, dtype="uint8"), encoded(Image.new("RGB", (_SIZE, _SIZE), (2, 60, 9)), "PNG")

    def decode(images: list[bytes]) -> NDArray[Any]:
        recipe([shade] * len(images), device_id="cpu")
        pixels: NDArray[Any] = np.asarray(recipe(images, device_id="cpu"))
        return pixels

    return decode


class Decoder:
    """The gate, and two recipes, which take turns: whole images, and windows of them.

    Args:
        ways: by recipe, two ways to decode; each gets other bytes in new memory.
    """

    def __init__(self, ways: Sequence[tuple[Decode, Decode]] = ()) -> None:
        resize = Resize((_SIZE, _SIZE))
        recipes = [resize], [CenterCrop((9, 14)), resize]
        self._ways = ways or [(composed(recipe), composed(recipe)) for recipe in recipes]

    def warm_up(self) -> None:
        """Loads what the first batches would load."""
        for kind in IMAGES:
            for turn in range(len(self._ways)):
                self.examine(dict(enumerate(material(kind)[:4])), turn)

    def examine(self, mutants: Mapping[int, bytes], turn: int = 0) -> Counter[str]:
        """Counts outcomes: all is decoded in one batch, then backwards in two; what is bad there, alone, too.

        Raises:
            SplitError: an image came to something else.
        """
        images = {number: image for number, image in mutants.items() if _is_admitted(image)}
        once, again = self._ways[turn]
        with filled(0x11):
            found = _decode(once, images)
            others = [_decode(once, {number: images[number]}) for number in found if found[number] == REPLACED]
        backwards = list(images)[::-1]
        with filled(0xEE):
            for part in (backwards[: len(images) // 2], backwards[len(images) // 2 :]):
                others.append(_decode(again, {number: images[number] for number in part}))
        pairs = [(number, found[number], outcome) for other in others for number, outcome in other.items()]
        if differing := [f"{number}: {one}, {other}" for number, one, other in pairs if one != other]:
            raise SplitError(f"other pixels or verdicts in other batches ({'; '.join(differing[:5])})")
        replaced = sum(outcome == REPLACED for outcome in found.values())
        return Counter(refused=len(mutants) - len(images), replaced=replaced, accepted=len(images) - replaced)


def _is_admitted(image: bytes) -> bool:
    with suppress(RefusalError):
        admit(np.frombuffer(image, np.uint8), DEFAULT_MAX_PIXELS)
        return True
    return False


def _decode(decode: Decode, images: Mapping[int, bytes]) -> dict[int, str]:
    """Number -> `REPLACED`, or a digest of the pixels."""
    left = list(images)
    while left:
        try:
            pixels = decode([images[number] for number in left])
        except DataError as error:  # it does not name all, if there are many
            bad = {left[int(place)] for place in _BAD.findall(str(error))}
            if not bad:
                raise RuntimeError(f"no image is named as bad: {error}") from None
            left = [number for number in left if number not in bad]
        else:
            digests = (hashlib.blake2b(np.ascontiguousarray(image), digest_size=8).hexdigest() for image in pixels)
            return dict.fromkeys(images, REPLACED) | dict(zip(left, digests, strict=True))
    return dict.fromkeys(images, REPLACED)


@contextmanager
def filled(byte: int) -> Iterator[None]:
    """Within, what malloc gives is full of the byte: an image of memory that no decoder wrote has other pixels then."""
    set_option = ctypes.CDLL(None).mallopt
    set_option(_PERTURB, byte)
    try:
        yield
    finally:
        set_option(_PERTURB, 0)
