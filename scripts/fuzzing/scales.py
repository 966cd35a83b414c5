"""Mutated JPEGs that are decoded at 1/2, 1/4 and 1/8: whole or refused, and the same in any memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from nvidia.nvimgcodec import CodeStream

from fuzzing.cuts import PARAMETERS, cpu_codec, guarded, same
from fuzzing.images import REPLACED, SplitError, filled
from gpuloader.images.gate import admit
from gpuloader.images.limits import RefusalError
from gpuloader.images.scaled import decode_scaled

_MOST_PIXELS = 1 << 20  # decoding the most that a header may say takes long, and shows nothing else

Pixels: TypeAlias = "NDArray[np.uint8] | None"
Decode: TypeAlias = Callable[[NDArray[np.uint8], int, int], Pixels]


class Scaler:
    """Decodes each mutant at all sizes, twice with other bytes in new memory, and once down to any row.

    Args:
        most_bytes: of a mutant.
        decode: what is tried.
    """

    def __init__(self, most_bytes: int, decode: Decode = decode_scaled) -> None:
        self._memory, self._decode_scaled, self._codec = guarded(most_bytes), decode, cpu_codec()

    def examine(self, mutants: Mapping[int, bytes]) -> Counter[str]:
        """Counts outcomes; a mutant is "replaced" if it is left to DALI at some size.

        Raises:
            SplitError: pixels differ.
        """
        return Counter(self._examine(data, random.Random(number)) for number, data in mutants.items())

    def _examine(self, data: bytes, rng: random.Random) -> str:
        try:
            admitted, (height, width) = admit(np.frombuffer(data, np.uint8), _MOST_PIXELS)
        except RefusalError:
            return "refused"
        [whole] = self._codec.decode([CodeStream(admitted)], params=PARAMETERS)
        if whole is not None:
            assert whole.shape[:2] == (height, width), f"DALI decodes {whole.shape[:2]} pixels, not {(height, width)}"
        found = [self._at(admitted, factor, height, width, rng) for factor in (2, 4, 8)]
        return REPLACED if any(image is None for image in found) else "accepted"

    def _at(self, admitted: NDArray[np.uint8], factor: int, height: int, width: int, rng: random.Random) -> Pixels:
        with filled(0x11):
            once = self._decode(admitted, factor, height, rng)
        with filled(0xEE):
            again = self._decode(admitted, factor, height, rng)
        if not same(once, again):
            raise SplitError(f"other pixels or verdicts at 1/{factor} in other memory")
        if once is None:
            return None
        assert once.shape == (-(-height // factor), -(-width // factor), 3), f"{once.shape} pixels at 1/{factor}"
        bottom = rng.randint(1, height)
        upper, rows = self._decode(admitted, factor, bottom, rng), bottom // factor
        if upper is not None and not np.array_equal(upper[:rows], once[:rows]):  # what it refuses is left to DALI
            raise SplitError(f"other pixels at 1/{factor} in the rows to {bottom}")
        return once

    def _decode(self, admitted: NDArray[np.uint8], factor: int, bottom: int, rng: random.Random) -> Pixels:
        """Decodes in memory that ends or begins where nothing may be read."""
        size = len(admitted)
        file = self._memory[-size:] if rng.random() < 0.7 else self._memory[:size]
        file[:] = admitted
        image = self._decode_scaled(file, factor, bottom)
        assert np.array_equal(file, admitted), f"it changes the file at 1/{factor}"
        return image
