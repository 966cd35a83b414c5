"""What images a recipe may let to the decoder: the most pixels of one, and the formats."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

MAX_PIXELS = 100_000_000
DEFAULT_MAX_PIXELS = 50_000_000  # what cameras and phones commonly make

Format: TypeAlias = Literal["jpeg", "png", "webp", "tiff", "bmp", "pnm", "jpeg2000"]

FORMATS: tuple[Format, ...] = get_args(Format)
DEFAULT_FORMATS = FORMATS[:-1]  # JPEG 2000 is decoded in a process of its own, and only where it is asked for
