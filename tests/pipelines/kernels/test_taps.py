"""The weights with which pixels are summed are those of the whole image, whatever region of it the kernel gets.

So plain and seekable shards, and decoders of regions and of whole images, give the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from calling import call
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.pipelines.inputs import make_inputs
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams
from gpuloader.recipe.placement import Placement

FILTERS = ["nearest", "bilinear", "bicubic", "lanczos"]
PADDINGS = ["constant", "edge", "reflect", "symmetric"]
ROWS = 50
STEPS = ["resize", "crop", "pad", "flip"]
RESIZE = Compose([T.Resize((1, 1))])


@st.composite
def placements(draw: st.DrawFn) -> tuple[int, Placement]:
    """Of an image's columns some are shown: resized, cropped, padded, flipped. Its rows stay as they are."""
    width = draw(st.integers(1, 6000))
    at = Placement.whole(np.array([[ROWS, width]]))
    mode = draw(st.sampled_from(PADDINGS))
    filters: Any = draw(st.sampled_from(FILTERS)), draw(st.booleans())
    for step in ["resize", "crop", *draw(st.lists(st.sampled_from(STEPS), max_size=3)), "resize"]:
        columns = int(at.shape[0, 1])
        if step == "resize":
            at = at.resize(np.array([[ROWS, draw(st.integers(1, 2000))]]), *filters)
        elif step == "crop":
            before = draw(st.integers(0, (columns - 1) // 2))  # of the centre, the middle pixel's weights are 0 and 1
            after = before if draw(st.booleans()) else draw(st.integers(0, (columns - 1) // 2))
            at = at.crop(np.array([[0, before]]), np.array([[ROWS, columns - before - after]]))
        elif step == "pad" and not at.padded:
            before, after = (np.array([[0, draw(st.integers(0, 40))]]) for _ in range(2))
            at = at.pad(before, after, mode, (0.0, 0.0, 0.0))  # type: ignore[arg-type]
        elif step == "flip":
            at = at.flip(1, np.array([True]))
    return width, at


def taps(at: Placement, image: np.ndarray, region: np.ndarray) -> np.ndarray:
    """What the kernel makes of this region of the image, which holds all that is needed."""
    params = RESIZE.draw(Draws(0, 0, np.zeros(1, np.int64)), np.array([image.shape[:2]]))
    params = AugmentParams((replace(params.views[0], placements=(at,)),), region, params.origin)
    given = make_inputs(RESIZE.each_view, params, "cpu", "resize")
    [[top, left, bottom, right]] = region.tolist()
    levels = [*(1, 1, 1), *(0, 0, 0), *(0, 0, 0), *(0, 0, 0)]
    how = [*levels, at.antialias, PADDINGS.index(at.padding_mode), True, 0]
    inputs = [np.ascontiguousarray(image[top:bottom, left:right]), given["0/roi"][0], given["0/placed"][0]]
    return call("resample", np.empty((3, *at.shape[0]), np.float32), [*inputs, np.array(how, np.float32)])


@settings(max_examples=300, deadline=None)
@given(placements(), st.data())
def test_a_region_has_the_taps_of_the_whole_image(placed: tuple[int, Placement], data: st.DataObject) -> None:
    """Each row of the first channel is 1 in one of 50 columns, so its output is that column's weight for each pixel.

    Negative weights are cut off there. The other channels, noise of middle levels, show them, too.
    """
    width, at = placed
    image = np.random.default_rng(0).integers(100, 156, (ROWS, width, 3), dtype=np.uint8)
    image[:, :, 0] = np.arange(width) % ROWS == np.arange(ROWS)[:, None]
    [[_, first, _, behind]] = at.needed().tolist()
    region = np.array([[0, data.draw(st.integers(0, first)), ROWS, data.draw(st.integers(behind, width))]])
    whole = taps(at, image, np.array([[0, 0, ROWS, width]]))
    assert np.array_equal(taps(at, image, region), whole)
