"""`Sheet`: a picture with rows of smaller pictures and texts; what `show` and `verify` draw."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from gpuloader.base.text import printable
from gpuloader.errors import ConfigError, kind_of
from gpuloader.tools.overlay import Overlay, draw_targets
from gpuloader.transforms import Normalize

Picture: TypeAlias = Image.Image
Box: TypeAlias = tuple[float, float, float, float]

MAX_PICTURE_PIXELS = 50_000_000

COLOURS = ("#d55e00", "#0072b2", "#f0c000", "#cc79a7", "#009e73", "#56b4e9")
"""Colours that the colour-blind can distinguish."""

_LEAST_TILE, _MOST_TILE = 128, 256
_GAP, _LINE, _TEXT, _TITLE = 10, 16, 12, 18
_INK, _PALE, _PAPER, _GROUND, _BAD = "#16181d", "#5f6672", "#ffffff", "#eceef1", "#b3261e"


def fitting_tile(sides: Iterable[int]) -> int:
    """Returns the side of tiles for pictures with these sides, in pixels."""
    return min(max([_LEAST_TILE, *sides]), _MOST_TILE)


def as_picture(tensor: torch.Tensor, normalize: Normalize | None = None) -> Picture:
    """Returns a tensor (3, h, w) as a picture of levels."""
    pixels = tensor.permute(1, 2, 0).cpu()
    if pixels.dtype == torch.uint8:
        return Image.fromarray(pixels.numpy())
    values = pixels.float().numpy()
    if normalize is not None:
        values = values * np.array(normalize.std, np.float32) + np.array(normalize.mean, np.float32)
    return Image.fromarray(np.rint(values * 255).clip(0, 255).astype(np.uint8))


class Sheet:
    """A picture with tiles in rows under a heading; each tile has two lines of text below it."""

    def __init__(self, tile: int, columns: int, rows: int, heading: Sequence[str]) -> None:
        self._tile = tile
        self._top = 2 * _GAP + _TITLE + (len(heading) - 1) * _LINE
        self._row = tile + 2 * _LINE + _GAP
        width, height = _GAP + columns * (tile + _GAP), self._top + rows * self._row
        if width * height > MAX_PICTURE_PIXELS or max(width, height) > 65_000:
            raise ConfigError(
                f"the picture would be {width:,} x {height:,} pixels: allowed are {MAX_PICTURE_PIXELS:,} in all and "
                f"65,000 on a side; show fewer samples or versions"
            )
        self.image = Image.new("RGB", (width, height), _PAPER)
        self._canvas = ImageDraw.Draw(self.image)
        self._font = ImageFont.load_default(_TEXT)
        room, title = width - 2 * _GAP, ImageFont.load_default(_TITLE)
        self._canvas.text((_GAP, _GAP // 2), _shorten(printable(heading[0]), title, room), _INK, title)
        for number, line in enumerate(heading[1:]):
            top = _GAP + _TITLE + number * _LINE
            self._canvas.text((_GAP, top), _shorten(line, self._font, room), _PALE, self._font)

    def put(
        self,
        row: int,
        column: int,
        picture: Picture | str,
        lines: Sequence[str],
        windows: Sequence[Box] = (),
        frame: str | None = None,
        overlay: Overlay | None = None,
    ) -> None:
        """Draws a tile: a picture with targets, windows and a frame, or the cause why there is none; then the text."""
        left, top = _GAP + column * (self._tile + _GAP), self._top + row * self._row
        if isinstance(picture, str):
            box = (left, top, left + self._tile - 1, top + self._tile - 1)
            self._canvas.rectangle(box, _GROUND, _BAD)
            wrapped = textwrap.wrap(f"{kind_of(picture)}: {picture}", self._tile // 7)
            text = "\n".join(wrapped[: self._tile // _LINE - 1])
            self._canvas.multiline_text((left + 8, top + 6), text, _BAD, self._font)
        else:
            fitted = self._fit(picture) if overlay is None else draw_targets(picture, overlay, self._fit)
            for window, colour in reversed([*zip(windows, COLOURS)]):
                _outline(fitted, window, colour)
            right, bottom = left + fitted.width - 1, top + self._tile - 1
            upper = bottom + 1 - fitted.height
            if frame is not None:
                self._canvas.rectangle((left - 3, upper - 3, right + 3, bottom + 3), frame)
            self.image.paste(fitted, (left, upper))
        for number, line in enumerate(lines):
            corner = (left, top + self._tile + 4 + number * _LINE)
            self._canvas.text(corner, _shorten(line, self._font, self._tile), (_INK, _PALE)[number], self._font)

    def _fit(self, picture: Picture) -> Picture:
        """Shrinks a picture that is larger than a tile, and enlarges a small one by an integer."""
        fitted = enlarge(picture, _LEAST_TILE)
        fitted.thumbnail((self._tile, self._tile))
        return fitted


def enlarge(picture: Picture, most: int) -> Picture:
    """Returns a copy of a picture, enlarged by the largest integer that keeps its sides within `most` pixels."""
    times = max(1, most // max(picture.size))
    return picture.resize((times * picture.width, times * picture.height), Image.Resampling.NEAREST)


def _outline(picture: Picture, window: Box, colour: str) -> None:
    """Draws the part of a window inside the picture: a line of two pixels in the colour, with a white border."""
    edge = picture.width - 1, picture.height - 1
    left, top = (min(max(0, round(share * (last + 1))), last) for share, last in zip(window[:2], edge))
    right, bottom = (min(round(share * (last + 1)) - 1, last) for share, last in zip(window[2:], edge))
    right, bottom = max(left, right), max(top, bottom)
    canvas = ImageDraw.Draw(picture)
    canvas.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_PAPER, width=4)
    canvas.rectangle((left, top, right, bottom), outline=colour, width=2)


def _shorten(text: str, font: Any, room: int) -> str:  # noqa: ANN401 - Pillow's two classes of fonts
    """Returns the text, without its middle if it is wider than `room`."""
    kept, short = len(text), text
    while font.getlength(short) > room and kept > 2:
        kept -= 1
        short = f"{text[: -(-kept // 2)]}…{text[len(text) - kept // 2 :]}"
    return short
