"""Every operation of a recipe: how far it is from torchvision's, and what it looks like.

`scripts/operations` writes docs/operations/differences.json, a picture of each, and the page's generated part.
"""

from __future__ import annotations

import io
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from gpu_graph import run_gpu_graph  # noqa: E402
from making import encoded  # noqa: E402
from reference import placed_by_torchvision, run_program  # noqa: E402
from running import draw, run_views  # noqa: E402

from gpuloader import Compose  # noqa: E402
from gpuloader import transforms as T  # noqa: E402, N812
from gpuloader.demo.pictures import draw as draw_picture  # noqa: E402
from gpuloader.loading.blending import mix_images  # noqa: E402
from gpuloader.recipe import AugmentParams, Mixing, Recipe, explain  # noqa: E402
from gpuloader.recipe.model import PixelTransform, Transform  # noqa: E402
from gpuloader.recipe.part import as_plain_values  # noqa: E402
from gpuloader.recipe.placement import GeometricTransform  # noqa: E402
from gpuloader.recipe.program import chain  # noqa: E402

PAGE, FOLDER = ROOT / "docs/operations.md", ROOT / "docs/operations"
BEGIN, END = "<!-- written by scripts/operations -->\n", "<!-- end -->\n"
SIDE, COLUMNS, GAP, LINE = 224, 3, 12, 16
BOXES = np.array([[20.0, 30, 120, 140], [130, 120, 210, 215]])
RESIZES = (
    *(T.Resize, T.RandomResizedCrop, T.SmartResize, T.ResizeToSequence),
    *(T.ScaleJitter, T.RandomShortestSize, T.RandomResize, T.RandomSizeCrop),
)

EXAMPLES: dict[str, Sequence[Transform]] = {
    "Resize": [T.Resize((side, SIDE), "bicubic") for side in (32, 112, 168, 300)]
    + [T.Resize((160, SIDE), "bicubic", pad=114)],
    "RandomResizedCrop": [T.RandomResizedCrop(SIDE, (scale, scale)) for scale in (0.08, 0.2, 0.4, 0.7, 1.0)],
    "CenterCrop": [T.CenterCrop(side) for side in (64, 112, 168, 224, 280)],
    "RandomCrop": [T.RandomCrop(SIDE, padding) for padding in (0, 16, 32, 64, 96)],
    "Pad": [T.Pad(40, (90, 140, 200), mode) for mode in ("constant", "edge", "reflect", "symmetric")]
    + [T.Pad((0, 40), 255)],
    "RandomHorizontalFlip": [T.RandomHorizontalFlip(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)],
    "RandomVerticalFlip": [T.RandomVerticalFlip(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)],
    "CornerCrop": [T.CornerCrop(112, corner) for corner in ("top left", "top right", "bottom left", "bottom right")]
    + [T.CenterCrop(112)],
    "SmartResize": [T.SmartResize(28, 1, pixels) for pixels in (2_000, 4_000, 10_000, 20_000)]
    + [T.SmartResize(28, 80_000)],
    "ResizeToSequence": [T.ResizeToSequence(16, patches) for patches in (4, 16, 64, 196, 400)],
    "ScaleJitter": [T.ScaleJitter((SIDE, SIDE), (scale, scale)) for scale in (0.1, 0.4, 0.8, 1.4, 2.0)],
    "RandomShortestSize": [T.RandomShortestSize(side) for side in (32, 64, 112, 168)]
    + [T.RandomShortestSize((64, 112, 168), max_size=140)],
    "RandomResize": [T.RandomResize(least, 2 * least) for least in (16, 32, 64, 112, 168)],
    "RandomSizeCrop": [T.RandomSizeCrop(96, 160, (side,), 1.0) for side in (112, 168, 224, 300)]
    + [T.RandomSizeCrop(96, 160, (112, 168, 224, 300))],
    "RandomZoomOut": [T.RandomZoomOut((124, 116, 104), (side, side), 1.0) for side in (1.2, 1.5, 2.0, 3.0, 4.0)],
    "RandomIoUCrop": [T.RandomIoUCrop(sampler_options=(overlap,)) for overlap in (0.0, 0.1, 0.3, 0.5, 0.7)],
    "FixedSizeCrop": [T.FixedSizeCrop(side, (124, 116, 104)) for side in (64, 112, 168, 224, 280)],
    "PadIfSmaller": [T.PadIfSmaller(side, (124, 116, 104)) for side in (224, 240, 256, 280)]
    + [T.PadIfSmaller((224, 280), (124, 116, 104))],
    "RandomRotation": [T.RandomRotation((angle, angle), "bilinear") for angle in (5, 15, 30, 60, 120)],
    "RandomAffine": [
        T.RandomAffine(0, (0.2, 0.2), interpolation="bilinear"),
        T.RandomAffine(0, scale=(0.6, 0.6), interpolation="bilinear"),
        T.RandomAffine(0, shear=(20, 20), interpolation="bilinear"),
        T.RandomAffine(20, (0.1, 0.1), (0.7, 1.3), 10, "bilinear"),
        T.RandomAffine(20, (0.1, 0.1), (0.7, 1.3), 10, "bilinear", (124, 116, 104)),
    ],
    "RandomPerspective": [T.RandomPerspective(distortion, 1.0) for distortion in (0.1, 0.25, 0.5, 0.75, 1.0)],
    "ColorJitter": [
        T.ColorJitter(brightness=0.5),
        T.ColorJitter(contrast=0.5),
        T.ColorJitter(saturation=(0.0, 2.0)),
        T.ColorJitter(hue=0.5),
        T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    ],
    "RandomPhotometricDistort": [T.RandomPhotometricDistort(p=p) for p in (0.2, 0.5, 0.8, 1.0)]
    + [T.RandomPhotometricDistort((0.6, 1.4), (0.3, 1.7), (0.0, 2.0), (-0.3, 0.3), 1.0)],
    "Grayscale": [T.Grayscale()] * 5,
    "RandomGrayscale": [T.RandomGrayscale(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)],
    "GaussianBlur": [T.GaussianBlur(23, sigma) for sigma in (0.5, 1.0, 2.0, 4.0, 8.0)],
    "RandomSolarize": [T.RandomSolarize(threshold, 1.0) for threshold in (224, 192, 128, 64, 0)],
    "RandomPosterize": [T.RandomPosterize(bits, 1.0) for bits in (7, 5, 3, 2, 1)],
    "RandomEqualize": [T.RandomEqualize(1.0)] * 5,
    "RandomAutocontrast": [T.RandomAutocontrast(1.0)] * 5,
    "RandomAdjustSharpness": [T.RandomAdjustSharpness(factor, 1.0) for factor in (0.0, 0.5, 2.0, 4.0, 8.0)],
    "RandomInvert": [T.RandomInvert(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)],
    "AutoAugment": [T.AutoAugment(policy) for policy in ("imagenet", "cifar10", "svhn", "imagenet", "cifar10")],
    "RandAugment": [T.RandAugment(2, magnitude) for magnitude in (1, 5, 9, 15, 30)],
    "TrivialAugmentWide": [T.TrivialAugmentWide()] * 5,
    "AugMix": [T.AugMix(severity) for severity in (1, 3, 5, 8, 10)],
    "RandomApply": [T.RandomApply((T.GaussianBlur(23, 4.0),), p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)],
    "RandomChoice": [T.RandomChoice((T.RandomSolarize(128, 1.0), T.Grayscale(), T.RandomInvert(1.0)))] * 5,
    "TimmRandAugment": [T.TimmRandAugment(magnitude, interpolation="bilinear") for magnitude in (1, 3, 5, 7, 9)],
    "TimmAutoAugment": [
        T.TimmAutoAugment(policy, interpolation="bilinear") for policy in ("v0", "v0r", "original", "originalr", "v0")
    ],
    "ThreeAugment": [T.ThreeAugment(strength) for strength in (0.0, 0.2, 0.3, 0.5, 0.8)],
    "RandomErasing": [T.RandomErasing(1.0, (share, share), value=0.5) for share in (0.02, 0.1, 0.2, 0.33)]
    + [T.RandomErasing(1.0, value="random")],
}
"""Five strengths of every operation that changes what one sees."""


def main() -> None:
    """Measures, draws, and rewrites the page's generated part."""
    torch.set_num_threads(1)  # for images as small as these its threads cost more than they do
    FOLDER.mkdir(exist_ok=True)
    measured = {name: measure(examples) for name, examples in EXAMPLES.items()}
    (FOLDER / "differences.json").write_text(json.dumps(measured, indent=1) + "\n")
    for name, examples in EXAMPLES.items():
        picture(examples).save(FOLDER / f"{name}.jpg", quality=80)
        sys.stderr.write(f"{name}: {measured[name]}\n")
    mixed().save(FOLDER / "Mix.jpg", quality=80)
    PAGE.write_text(replaced(PAGE.read_text(), page(measured)))


def recipe(transform: Transform | None) -> Recipe:
    """The transform alone on an image of one size, in levels; values of 0 to 1 where it needs them."""
    fixed = T.Resize((SIDE, SIDE))
    if transform is None:
        return Recipe((fixed,), dtype="uint8")
    if isinstance(transform, PixelTransform):
        return Recipe((fixed, transform), dtype="uint8")
    if isinstance(transform, GeometricTransform):
        before = isinstance(transform, RESIZES) or transform.output_shape(None)
        most = max(getattr(transform, "side_range", [1]))
        behind = () if transform.output_shape((SIDE, SIDE)) else (T.CenterCrop(int(SIDE * most)),)
        return Recipe((*(() if before else (fixed,)), transform, *behind), dtype="uint8")
    return Recipe((fixed, transform))


def pictures(seeds: Sequence[int], height: int = SIDE, width: int = SIDE) -> list[bytes]:
    """Drawn pictures of one size, without loss, and noise."""
    images = [Image.fromarray(draw_picture(seed % 10, np.random.default_rng(seed))) for seed in seeds]
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    resized = [image.resize((width, height)) for image in images]
    return [encoded(image, "PNG") for image in [*resized, Image.fromarray(noise)]]


GRAPHS = {"cpu": run_views, "gpu_operators": run_gpu_graph}


def measure(
    examples: Sequence[Transform],
    repeat: int = 4,
    graphs: Sequence[str] = ("cpu", "gpu_operators"),
) -> Any:  # noqa: ANN401
    """The largest and the mean difference to torchvision's in levels, of the CPU's graph and the GPU's operators.

    The images are drawn pictures and noise.
    """
    resizes = isinstance(examples[0], RESIZES)
    images = (pictures(range(3), 240, 320) if resizes else pictures(range(3))) * repeat
    found: dict[str, list[NDArray[np.float64]]] = {graph: [] for graph in graphs}
    for transform in examples:
        preset = recipe(transform)
        params = draw(preset, images, boxes=[BOXES] * len(images))
        for graph in graphs:
            run = GRAPHS[graph]
            [ours] = run(preset, images, params)
            theirs = _by_torchvision(transform, images, params, run)
            levels = 1 if preset.dtype == "uint8" else 255
            found[graph].append(levels * (ours.numpy() - theirs.numpy()).ravel())
    differences = {graph: np.abs(np.concatenate(parts)) for graph, parts in found.items()}
    return {
        graph: [round(float(np.nanmax(each)), 2), round(float(np.nanmean(each)), 4)]
        for graph, each in differences.items()
    }


def _by_torchvision(transform: Transform, images: list[bytes], params: AugmentParams, run: Any) -> torch.Tensor:  # noqa: ANN401
    if isinstance(transform, GeometricTransform):
        return torch.stack([placed_by_torchvision(transform, image, params, row) for row, image in enumerate(images)])
    [view] = params.views
    without = replace(params, views=(replace(view, program=chain([], len(images)), erased=None),))
    if isinstance(transform, PixelTransform):
        [levels] = run(recipe(None), images, without)
        return torch.stack([run_program(view.program, row, image.byte()).float() for row, image in enumerate(levels)])
    [levels] = run(Recipe(recipe(None).transforms), images, without)
    value = getattr(transform, "value")  # noqa: B009 - of RandomErasing; noise has no counterpart
    for image, (top, left, height, width, *_) in zip(levels, view.erased.tolist()):
        image[:, top : top + height, left : left + width] = np.nan if value == "random" else value
    return levels


def picture(examples: Sequence[Transform]) -> Image.Image:
    """A drawn picture, and what becomes of it at each strength; what looks the same by the same name is shown once."""
    presets = [recipe(transform) for transform in examples]
    done = [operations(transform, number) for number, transform in enumerate(examples, start=1)]
    captions = [_in_yaml(transform) for transform in examples]
    if len(set(done)) > 1:
        captions = [f"{caption}\ndrawn: {drawn}" for caption, drawn in zip(captions, done)]
    boxes = [BOXES] if isinstance(examples[0], T.RandomIoUCrop) else []
    images = [shown(preset, number, boxes) for number, preset in enumerate(presets, start=1)]
    same = {(caption, image.numpy().tobytes()): (caption, image) for caption, image in zip(captions, images)}
    return sheet([("the image", shown(recipe(None), 0, boxes)), *same.values()])


def operations(transform: Transform, sample: int) -> str:
    """What is drawn for the drawn picture, by name."""
    [*_, view] = explain(recipe(transform), 0, 0, sample, SIDE, SIDE)
    steps = [step.operation or "nothing" for step in view.steps if step.transform == type(transform).__name__]
    return ", ".join(step for step in steps if not step.startswith("mix_"))


def shown(preset: Recipe, sample: int, boxes: Sequence[NDArray[np.float64]] = ()) -> torch.Tensor:
    """Levels (3, h, w) of the drawn picture under a recipe, with its boxes; several views lie side by side."""
    image = Image.open(io.BytesIO(pictures([4])[0]))
    for box in np.concatenate([np.zeros((0, 4)), *boxes]).tolist():
        ImageDraw.Draw(image).rectangle(box, outline="white", width=3)
    file = encoded(image, "PNG")
    images = torch.cat([view[0] for view in run_views(preset, [file], draw(preset, [file], 0, sample, boxes))], dim=2)
    return images.byte() if preset.dtype == "uint8" else (255 * images).clamp(0, 255).byte()


def mixed() -> Image.Image:
    """Two pictures, and the first mixed with the second: MixUp, then CutMix."""
    pair = torch.stack([shown(recipe(None), 0), Compose.load(recipe(None))(pictures([8])[0])]).float()  # type: ignore[list-item]
    ways = {
        "MixUp, share 0.8": (0.8, (0, 0, 0, 0)),
        "MixUp, share 0.5": (0.5, (0, 0, 0, 0)),
        "CutMix, share 0.75": (0.75, (20, 90, 132, 202)),
        "CutMix, share 0.5": (0.5, (60, 10, 218, 168)),
    }
    tiles = [("one image", pair[0]), ("another", pair[1])]
    for caption, (weight, box) in ways.items():
        images = pair.clone()
        mix_images(images, Mixing(np.float32([weight, 1]), np.int32([box, (0, 0, 0, 0)])))
        tiles.append((caption, images[0]))
    return sheet([(caption, tile.byte()) for caption, tile in tiles])


def sheet(tiles: Sequence[tuple[str, torch.Tensor]]) -> Image.Image:
    """Images, uint8 (3, h, w), in rows, each with its caption below; larger ones than a tile are made smaller."""
    captions = [[line for part in caption.split("\n") for line in textwrap.wrap(part, 34)] for caption, _ in tiles]
    height = SIDE + LINE * max(map(len, captions)) + GAP
    rows = -(-len(tiles) // COLUMNS)
    page = Image.new("RGB", (COLUMNS * (SIDE + GAP) - GAP, rows * height), "white")
    canvas, font = ImageDraw.Draw(page), ImageFont.load_default(13)
    for number, ((_, image), lines) in enumerate(zip(tiles, captions)):
        row, column = divmod(number, COLUMNS)
        left, top = column * (SIDE + GAP), row * height
        tile = Image.fromarray(image.permute(1, 2, 0).numpy())
        tile.thumbnail((SIDE, SIDE))
        page.paste(tile, (left + (SIDE - tile.width) // 2, top + (SIDE - tile.height) // 2))
        canvas.multiline_text((left, top + SIDE + 2), "\n".join(lines), "black", font, spacing=2)
    return page


def page(measured: dict[str, dict[str, list[float]]]) -> str:
    """The table of differences, without the transforms that have none, then the pictures."""
    lines = ["| transform | on the CPU | GPU operators |", "|---" * 3 + "|"]
    for name, found in measured.items():
        cells = [f"{largest:g} ({mean:.2g})" if largest else "0" for largest, mean in found.values()]
        if set(cells) != {"0"}:
            lines.append(f"| [`{name}`](#{name.lower()}) | {' | '.join(cells)} |")
    for name, shown in [*((name, type(examples[0])) for name, examples in EXAMPLES.items()), ("Mix", T.Mix)]:
        summary = (shown.__doc__ or "").partition("\n")[0]
        lines += ["", f"### {name}", "", summary, "", f"![{name}](operations/{name}.jpg)"]
    return "\n".join(lines) + "\n"


def _in_yaml(transform: Transform) -> str:
    text = yaml.safe_dump(
        as_plain_values(transform, brief=True), sort_keys=False, default_flow_style=True, width=10_000
    )
    return text.removesuffix("...\n").strip().removeprefix("{").removesuffix("}")


def replaced(text: str, generated: str) -> str:
    """The page with its generated part."""
    pattern = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    return pattern.sub(lambda _: generated, text)


if __name__ == "__main__":
    main()
