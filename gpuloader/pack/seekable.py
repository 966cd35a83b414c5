"""Rewrites JPEGs losslessly with restart intervals, so that the loader can cut out the part that it needs.

`jpegtran` of libjpeg-turbo does it, which keeps every coefficient and all metadata.
"""

from __future__ import annotations

import io
import math
import re
import subprocess
from functools import cache

import numpy as np
from PIL import Image

from gpuloader.errors import ConfigError
from gpuloader.images.jpeg import decoder_jpeg, ends_with_its_image

_PROGRAM = "jpegtran"
_HOW_TO_INSTALL = "apt install libjpeg-turbo-progs, or conda install libjpeg-turbo"
_VERSION = re.compile(r"libjpeg-turbo version (\S+)")

_WANTED_MCUS = 5  # of an interval: shorter ones make files larger, longer ones are cut less exactly


@cache
def find_version() -> str:
    """Finds the version of `jpegtran`, by which results differ."""
    try:
        done = subprocess.run([_PROGRAM, "-version"], check=False, stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        raise ConfigError(f"seekable: {_PROGRAM} cannot be run ({error.strerror}): {_HOW_TO_INSTALL}") from None
    said = done.stderr.decode(errors="replace")
    if not (version := _VERSION.search(said)):
        raise ConfigError(f"seekable: {_PROGRAM} says {said[:100]!r}, not libjpeg-turbo's: {_HOW_TO_INSTALL}")
    return version[1]


def make_seekable(jpeg: bytes, picture: Image.Image) -> bytes:
    """Returns the JPEG with restart intervals and optimal Huffman tables, or unchanged if it could lose data.

    It stays unchanged if `jpegtran` refuses it or warns about it, if it has bytes behind its end (a motion photo's film
    or another image), or if a loader would not decode the same pixels from the result. Progressive and arithmetic JPEGs
    become baseline JPEGs.

    Args:
        jpeg: the file.
        picture: its `decoder_jpeg`, decoded by Pillow.
    """
    if not ends_with_its_image(jpeg):
        return jpeg
    layers = picture.layer  # type: ignore[attr-defined]  # of Pillow's JPEGs
    factor = max(layer[1] for layer in layers) if len(layers) > 1 else 1  # the MCUs of one component are single blocks
    interval = choose_interval(picture.width, factor)
    command = [_PROGRAM, "-copy", "all", "-optimize", "-restart", f"{interval}B"]
    done = subprocess.run(command, check=False, input=jpeg, capture_output=True)
    if done.returncode or done.stderr:
        return jpeg
    file = decoder_jpeg(np.frombuffer(done.stdout, np.uint8))
    with Image.open(io.BytesIO(file), formats=("JPEG",)) as other:
        same = picture.mode == other.mode and np.array_equal(np.asarray(picture), np.asarray(other))
    return done.stdout if same else jpeg


def choose_interval(width: int, horizontal_factor: int) -> int:
    """Returns the MCUs of a restart interval: the divisor of a row's MCUs that is nearest to 5, but not 1.

    Args:
        width: of the image, in pixels.
        horizontal_factor: the largest of the components' sampling factors; 1 if there is one component.
    """
    in_row = math.ceil(width / (8 * horizontal_factor))
    divisors = (mcus for mcus in range(2, in_row + 1) if in_row % mcus == 0)
    return min(divisors, key=lambda mcus: abs(math.log(mcus / _WANTED_MCUS)), default=1)


def restart_option(picture: Image.Image) -> dict[str, int]:
    """Returns the option of Pillow that writes a picture, gray or RGB in 4:4:4, as a seekable JPEG."""
    return {"restart_marker_blocks": choose_interval(picture.width, horizontal_factor=1)}
