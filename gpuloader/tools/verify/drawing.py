"""Draws the images that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from gpuloader.helpers.text import printable
from gpuloader.tools.sheet import Picture, Sheet, as_picture, fitting_tile
from gpuloader.tools.verify.result import Difference


def draw(differences: Mapping[str, Difference], heading: Sequence[str]) -> Picture:
    """One row for each name: the CPU's image, the device's, and their difference, multiplied so that it is seen."""
    tile = fitting_tile(side for each in differences.values() for side in each.ours.shape[1:])
    sheet = Sheet(tile, 3, len(differences), heading)
    for row, (name, (key, ours, theirs)) in enumerate(differences.items()):
        expected, found = as_picture(theirs), as_picture(ours)
        levels = np.abs(np.asarray(expected, np.int16) - np.asarray(found, np.int16))
        times = 255 // max(1, int(levels.max()))
        sheet.put(row, 0, expected, [name, f"the CPU's {printable(key)}"])
        sheet.put(row, 1, found, ["the device's"])
        sheet.put(row, 2, Image.fromarray((times * levels).astype(np.uint8)), [f"difference, times {times}"])
    return sheet.image
