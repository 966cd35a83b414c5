"""The images that a recipe may allow: the most pixels, and the formats."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

MAX_PIXELS = 100_000_000
DEFAULT_MAX_PIXELS = 50_000_000  # the most that cameras and phones commonly make

Format: TypeAlias = Literal["jpeg", "png", "webp", "tiff", "bmp", "pnm", "jpeg2000"]

FORMATS: tuple[Format, ...] = get_args(Format)
DEFAULT_FORMATS = FORMATS[:3]  # DALI decodes these; Pillow the others, in a separate process, if a recipe asks for them
