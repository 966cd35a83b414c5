"""What becomes of Pillow's pictures of any mode."""

from __future__ import annotations

from PIL import Image

ORIENTATION = 0x0112
"""The EXIF tag."""

# Pillow turns TIFFs by their orientation, but no other format; the library turns none.
TURNED_BACK = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How to turn back what an EXIF orientation turned."""


def as_8_bits(picture: Image.Image) -> Image.Image:
    """Converts a picture to 8-bit RGB or gray, without an alpha channel; of 16 bits, the high 8 are kept.

    Raises:
        ValueError: its mode has no levels of 8 or 16 bits, or Pillow does not convert it.
    """
    if picture.mode in ("RGB", "L"):
        return picture
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM")):
        return Image.frombytes("L", picture.size, picture.tobytes("raw", "I;16B")[::2])
    if picture.mode in ("I", "F"):
        raise ValueError(f"Pillow's mode {picture.mode} is not supported: allowed are 8 and 16 bits per sample")
    return picture.convert("L" if picture.mode in ("1", "LA", "La") else "RGB")
