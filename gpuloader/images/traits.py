"""Facts about an image, a bit each: whether it is seekable, and what RGB of 8 bits does not keep of it."""

from __future__ import annotations

from collections.abc import Mapping

SEEKABLE, DEEP, ALPHA, PROFILE, ANIMATED = 1, 2, 4, 8, 16

IN_HEADERS = {"above_8_bits": DEEP, "alpha": ALPHA, "profile": PROFILE, "frames": ANIMATED}
"""What headers announce, by the names of the counts."""

IN_PIXELS = {"above_8_bits": DEEP, "alpha_below_255": ALPHA, "profile_not_srgb": PROFILE, "frames": ANIMATED}
"""What `pack` finds in pixels and profiles."""

_TEXTS = {
    "above_8_bits": "of more than 8 bits (the high 8 are kept)",
    "alpha": "with an alpha channel (dropped)",
    "alpha_below_255": "with alpha below 255 (dropped)",
    "profile": "with a colour profile (ignored)",
    "profile_not_srgb": "with a colour profile other than sRGB (ignored)",
    "frames": "with several frames (the first is used)",
}


def describe_reduced(counts: Mapping[str, int]) -> str:
    """Returns what loaders do with the counted pictures; "" if there are none."""
    return ", ".join(f"{count:,} {_TEXTS[name]}" for name, count in counts.items() if count)
