"""The picture of aspect-ratio buckets: `scripts/operations` writes docs/buckets.svg."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuloader import Buckets

PICTURE = Path(__file__).resolve().parents[1] / "docs/buckets.svg"
BUCKETS = Buckets(area=1024**2)
BINS = 40  # for each doubling of the ratio
WIDTH, BASE, OCTAVE = 520, 190, 225
COLORS = ("#d98b2b", "#2f7fb8")
HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 306" role="img">
<title>The aspect ratios of some pictures, and the bucket of each</title>
<style>
  text {{ font: 12px system-ui, sans-serif; fill: #4f8a81; text-anchor: middle }}
  .size {{ font-size: 11px; text-anchor: end }}
  .frame {{ fill: none; stroke-width: 1.5 }}
</style>
"""


def made_up_sizes() -> NDArray[np.int64]:
    """Heights and widths (n, 2) of pictures such as cameras and telephones make, most of them cropped a little."""
    rng = np.random.default_rng(0)
    ratios = rng.choice([3 / 2, 4 / 3, 16 / 9, 1, 3 / 4, 2 / 3, 9 / 16], 2000, p=[0.3, 0.2, 0.1, 0.1, 0.15, 0.1, 0.05])
    spread = rng.choice([0.03, 0.1, 0.25], 2000)  # in doublings
    ratios *= 2 ** (spread * rng.standard_normal(2000))
    widths = np.round(3000 * ratios[(ratios > 0.46) & (ratios < 2.17)]).astype(np.int64)
    return np.stack([np.full_like(widths, 3000), widths], 1)


def draw_buckets(sizes: NDArray[np.int64], buckets: Buckets) -> str:
    """A histogram of width / height; below it the shape of each bucket. Colours alternate from bucket to bucket."""
    numbers = buckets.assign(sizes)
    places = np.floor(BINS * np.log2(sizes[:, 1] / sizes[:, 0])).astype(int)
    counts = Counter(zip(places.tolist(), numbers.tolist(), strict=True))
    scale = 150 / max(Counter(places.tolist()).values())
    lines, tops = [], Counter[int]()
    for (place, number), count in sorted(counts.items()):
        tops[place] += count
        left, top = WIDTH / 2 + OCTAVE * place / BINS, BASE - scale * tops[place]
        lines.append(_rectangle(left, top, OCTAVE / BINS - 0.8, scale * count, f'fill="{COLORS[number % 2]}"'))
    for number, (height, width) in enumerate(buckets.shapes):
        x, tall, wide = WIDTH / 2 + OCTAVE * np.log2(width / height), height / 75, width / 75
        frame = f'class="frame" stroke="{COLORS[number % 2]}"'
        lines.append(_rectangle(x - wide / 2, BASE + 16 - tall / 2, wide, tall, frame))
        place = f"{x + 3:.1f} {BASE + 36}"
        lines.append(f'<text class="size" transform="translate({place}) rotate(-60)">{height} x {width}</text>')
    lines.append(f'<text x="{WIDTH / 2:.0f}" y="296">height x width of the buckets, by width / height</text>')
    lines.append(f'<text x="{WIDTH / 2:.0f}" y="20">pictures by width / height, in the colour of their bucket</text>')
    return HEAD + "\n".join(lines) + "\n</svg>\n"


def _rectangle(x: float, y: float, width: float, height: float, look: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {look}/>'


def write() -> None:
    """Draws the page's picture."""
    PICTURE.write_text(draw_buckets(made_up_sizes(), BUCKETS))
