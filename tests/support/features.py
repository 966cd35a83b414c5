"""The rows of tests/loading/test_laws.py: what a loader can have, one feature at a time and in pairs."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_graph import GPU, gpu_graph
from making import encoded, picture, saved, unpack, write_shard
from numpy.typing import NDArray
from PIL import Image
from scenes import FIELDS
from serving import Server

from gpuloader import Cache, Decoder, GPULoader, OneOf, World
from gpuloader import transforms as T
from gpuloader.loading.parts import Parts
from gpuloader.loading.parts import cut as cut_rows
from gpuloader.recipe import Recipe

COUNT = 20
LARGE = 4
SEED = 264
"""With it, UNDECODABLE is drawn to replace CUT before it is known to be bad."""
BATCH = 4
EPOCHS = 2
CUT, UNDECODABLE = 5, 12
"""The samples whose pictures are bad, where some are: the gate refuses the one, only the decoder the other."""

BACK = [
    getattr(Image.Transpose, name)
    for name in (
        "FLIP_LEFT_RIGHT",
        "ROTATE_180",
        "FLIP_TOP_BOTTOM",
        "TRANSPOSE",
        "ROTATE_90",
        "TRANSVERSE",
        "ROTATE_270",
    )
]
"""What undoes the orientations 2 to 8 of EXIF."""

Levels = NDArray[np.uint8]
Components = dict[str, bytes]
Samples = Sequence[dict[str, bytes | str]]


# --- the data


def drawn(number: int) -> Image.Image:
    """The picture of a sample: lying, standing, or neither."""
    return picture(*((72, 96), (96, 72), (80, 80), (60, 110))[number % 4], seed=number)


def as_jpeg(number: int, **options: Any) -> Components:  # noqa: ANN401
    return {"jpg": encoded(drawn(number), "JPEG", quality=90, **options)}


def seekable(number: int) -> Components:
    return as_jpeg(number, restart_marker_blocks=2)


def decoded(number: int) -> Components:
    return {"npy": saved(drawn(number))}


def with_copies(number: int) -> Components:
    image = drawn(number)
    copy = image.resize([side * 48 // min(image.size) for side in image.size])
    return {**as_jpeg(number), "mip48": encoded(copy, "JPEG", quality=90)}


def large(number: int) -> Components:
    image = drawn(number)
    image = image.resize([LARGE * side for side in image.size], Image.Resampling.BICUBIC)
    return {"jpg": encoded(image, "JPEG", quality=90)}


def turned(number: int) -> Components:
    """Stored as a camera does that is held in one of eight ways."""
    exif, way = Image.Exif(), number % 8
    exif[0x0112] = 1 + way
    stored = drawn(number)
    if way:
        stored = stored.transpose(BACK[way - 1])
    return {"jpg": encoded(stored, "JPEG", quality=90, exif=exif)}


def spoil(number: int, file: bytes) -> bytes:
    """Cuts the file, or makes it one that the gate lets pass and the decoder does not."""
    if number == CUT:
        return file[:-30]
    table = file.index(b"\xff\xc4")  # of Huffman codes, which becomes impossible
    return file[: table + 5] + bytes([255] * 16) + file[table + 21 :]


def objects_of(number: int) -> list[dict[str, Any]]:
    """Up to three, each with a box, an outline and two points."""
    found = []
    for label in range(number % 4):
        x, y, w, h = 3 + 18 * label, 4 + number, 12, 30
        box = {"bbox": [x, y, w, h], "category_id": label, "iscrowd": 0, "area": w * h}
        outline = [x, y, x + w, y, x + w, y + h, x, y + h]
        found.append({**box, "keypoints": [x, y, 2, x + w - 1, y + h - 1, 1], "segmentation": [outline]})
    return found


def mask_of(number: int, scale: int) -> bytes:
    """The classes of its objects, 0 for none of them."""
    width, height = drawn(number).size
    mask = np.zeros((height, width), np.uint8)
    for each in objects_of(number):
        x, y, w, h = each["bbox"]
        mask[y : y + h, x : x + w] = 1 + each["category_id"]
    return encoded(Image.fromarray(mask.repeat(scale, 0).repeat(scale, 1)), "PNG")


def captions_of(number: int) -> list[str]:
    return [f"{number} {letter}" for letter in "abc"]


Opened = AbstractContextManager[tuple[Any, dict[str, Any]]]
"""A loader's `tar`, and arguments that belong to it."""


def in_shards(samples: Samples, folder: Path) -> list[Path]:
    return [write_shard(folder / f"{at}.tar", samples[at:end]) for at, end in ((0, 8), (8, COUNT))]


def in_a_tar(samples: Samples, folder: Path) -> Opened:
    return nullcontext((in_shards(samples, folder), {}))


def in_a_folder(samples: Samples, folder: Path) -> Opened:
    return nullcontext((unpack(in_shards(samples, folder), folder / "photos"), {}))


def in_sources(samples: Samples, folder: Path) -> Opened:
    tars = in_shards(samples, folder)
    return nullcontext(([{"tar": tar, "weight": weight} for tar, weight in zip(tars, (1, 2), strict=True)], {}))


@contextmanager
def in_a_store(samples: Samples, folder: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    tars = in_shards(samples, folder)
    with Server(folder) as server:
        yield [f"{server.url}/{tar.name}" for tar in tars], {"cache": Cache(folder / "cache")}


# --- the features


def grain(image: Levels, rng: np.random.Generator) -> Levels:
    """Own code that draws."""
    return (image + rng.normal(0, 20, image.shape)).clip(0, 255).astype(np.uint8)


def nothing(image: Levels) -> Levels:
    """Own code that changes nothing."""
    return image


@dataclass(frozen=True)
class Setup:
    """A loader's data, recipe and arguments.

    Attributes:
        data: where the samples are.
        crop, own: the transforms before those that views do not share.
        views: "" for one, "own" for views that share nothing, "shared" for those behind the crop.
        part_rows: the rows of each part that a step is read and decoded in; 0 for one part.
        in_steps: whether batches are planned as wholes: a run goes on with steps that divide them.
        ordered: whether the samples of a step come in the same order on any number of ranks.
        once: whether each sample comes exactly once in an epoch.
        count: how many samples come in an epoch; 0 if buckets end, and are padded, anywhere in it.
        alone: whether a Compose and a Stage, which know one image, can make the images.
        spoils: whether a picture that is bad is a sample all the same.
    """

    picture: Callable[[int], Components] = as_jpeg
    data: Callable[[Samples, Path], Opened] = in_a_tar
    crop: Sequence[Any] = (T.RandomResizedCrop((24, 20)), T.RandomHorizontalFlip())
    own: Sequence[Any] = ()
    views: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=lambda: {"last_batch": "partial"})
    device_id: int | None = None
    part_rows: int = 0
    in_steps: bool = False
    ordered: bool = True
    once: bool = True
    count: int = COUNT
    alone: bool = True
    spoils: bool = True

    @classmethod
    def of(cls, row: Sequence[str]) -> Setup:
        """That of some features."""
        setup = cls()
        for name in row:
            change = FEATURES[name][1]
            merged = {key: {**getattr(setup, key), **change[key]} for key in ("recipe", "options") if key in change}
            if sampling := change.get("options", {}).get("sampling"):
                merged["options"]["sampling"] = {**setup.options.get("sampling", {}), **sampling}
            setup = replace(setup, **{**change, **merged})
        pads_anywhere = setup.in_steps and not setup.once and setup.count == COUNT
        return replace(setup, count=0) if pads_anywhere else setup

    @property
    def preset(self) -> Recipe:
        changes, jitter = [*self.crop, *self.own], T.ColorJitter(0.4, 0.4, 0.4, 0.1)
        last = [T.Normalize([0.5] * 3, [0.25] * 3), T.RandomErasing(0.5)]
        if self.views == "own":
            views = [T.View([*changes, jitter, *last]), T.View([*changes, T.RandomInvert(), *last], 2)]
            return Recipe(views=views, **self.recipe)
        if self.views == "shared":
            return Recipe(changes, views=[T.View([jitter, *last]), T.View([T.RandomInvert(), *last])], **self.recipe)
        return Recipe([*changes, jitter, *last], **self.recipe)

    @property
    def worlds(self) -> list[tuple[int, int]]:
        """The numbers of ranks and batch sizes with which a run can go on that began with one rank and BATCH."""
        return [
            (ranks, batch_size)
            for ranks, batch_size in ((3, 3), (2, 2), (1, COUNT), (1, 2), (4, 1))
            if not (self.in_steps and BATCH % (ranks * batch_size))
            and not (self.mixes and batch_size % 2)
            and not (self.mixes and not self.ordered and ranks * batch_size != BATCH)
        ][:3]

    @property
    def mixes(self) -> bool:
        return "mix" in self.recipe

    @property
    def sized(self) -> bool:
        """Whether all images have one size."""
        return not (self.in_steps or "batch" in self.recipe)

    def stored(self, number: int) -> Any:  # noqa: ANN401
        """The picture of a sample for a Compose: a file, or what is decoded already."""
        [file, *_] = self.picture(number).values()
        return np.asarray(drawn(number)) if self.picture is decoded else file

    def samples(self, bad: bool = False) -> Samples:
        """Each with its number as key and as class; of those with bad pictures, two."""
        found: list[dict[str, bytes | str]] = []
        for number in range(COUNT):
            files = self.picture(number)
            if bad and number in (CUT, UNDECODABLE):
                files = {name: spoil(number, file) for name, file in files.items()}
            if "mask" in self.options.get("fields", {}):
                files["mask.png"] = mask_of(number, LARGE if self.picture is large else 1)
            facts = {"annotations": objects_of(number), "captions": captions_of(number)}
            found.append(
                {"__key__": f"{number:03d}", "cls": b"%d" % number, "json": json.dumps(facts).encode(), **files}
            )
        return found

    def on_device(self) -> AbstractContextManager[None]:
        """Inside of it there is the device."""
        return nullcontext() if self.device_id is None else gpu_graph()

    def loader(self, tar: Any, ranks: int = 1, batch_size: int = BATCH, rank: int = 0, **options: Any) -> GPULoader:  # noqa: ANN401
        given = {"preset": self.preset, "output": "dict", "seed": SEED, "decoder": Decoder(2, processes=0)}
        world = World(rank, ranks)
        return GPULoader(tar, batch_size, self.device_id, **{**given, **self.options, "world": world, **options})


RESIZED = [T.Resize(24, max_size=40), T.RandomHorizontalFlip()]
BUCKETS = [(24, 24), (16, 32), (32, 16)]
WEIGHTS = {label: 1 + label % 3 for label in range(COUNT)}

FEATURES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "tar": ("data", {}),
    "folder": ("data", {"data": in_a_folder}),
    "store": ("data", {"data": in_a_store}),
    "sources": ("data", {"data": in_sources, "once": False, "alone": False}),
    "seekable": ("picture", {"picture": seekable}),
    "decoded": ("picture", {"picture": decoded, "spoils": False}),
    "copies": ("picture", {"picture": with_copies, "recipe": {"oversampling": 1.0}, "alone": False}),
    "oversampling": ("picture", {"picture": large, "recipe": {"oversampling": 1.0}}),
    "turned": ("picture", {"picture": turned, "recipe": {"orientation": "apply"}}),
    "list": ("form", {"crop": RESIZED, "recipe": {"batch": "list"}}),
    "pad": (
        "form",
        {
            "crop": [T.Resize(24, max_size=40), T.RandomHorizontalFlip()],
            "recipe": {"batch": {"pad": 8}},
            "alone": False,
        },
    ),
    "mix": (
        "form",
        {
            "recipe": {"mix": T.Mix(COUNT, mixup_alpha=0.8, cutmix_alpha=1.0, per="sample")},
            "options": {"last_batch": "pad"},
            "alone": False,
        },
    ),
    "sizes by epoch": ("form", {"crop": [T.RandomResizedCrop({0: 16, 1: 24}), T.RandomHorizontalFlip()]}),
    "views": ("views", {"views": "own"}),
    "shared views": ("views", {"views": "shared"}),
    "buckets": (
        "order",
        {
            "in_steps": True,
            "alone": False,
            "options": {"sampling": {"buckets": {"sizes": BUCKETS, "quantum": BATCH}}, "last_batch": "pad"},
        },
    ),
    "groups": (
        "order",
        {"in_steps": True, "options": {"sampling": {"buckets": {"groups": 3, "quantum": BATCH}}, "last_batch": "pad"}},
    ),
    "weighted buckets": (
        "order",
        {
            "in_steps": True,
            "once": False,
            "count": 24,  # six bucket batches, without padding
            "alone": False,
            "options": {
                "sampling": {"buckets": {"sizes": BUCKETS, "quantum": BATCH}, "weights": WEIGHTS},
                "last_batch": "pad",
            },
        },
    ),
    "weights": ("order", {"options": {"sampling": {"weights": WEIGHTS}}, "once": False, "alone": False}),
    "shards": ("order", {"options": {"sampling": {"groups": 2}, "shuffle": "shards"}, "ordered": False}),
    "repeats": ("copies of samples", {"options": {"sampling": {"repeats": 2}}, "once": False, "alone": False}),
    "channels last": ("layout", {"recipe": {"layout": "channels_last"}}),
    "own code": ("own code", {"own": [T.Apply(grain)]}),
    "targets": ("fields", {"options": {"fields": FIELDS}}),
    "captions": ("fields", {"options": {"fields": {"caption": OneOf("json:captions")}}}),
    "parts": ("parts", {"part_rows": 3}),
    "the GPU's graph": ("device", {"device_id": GPU}),
}
"""What each is a feature of, of which a row has one at most, and what it changes."""

REFUSED = [
    *(("sources", order) for order in ("weights", "weighted buckets")),
    *((form, order) for form in ("list", "pad", "views") for order in ("buckets", "weighted buckets")),
    *(("mix", other) for other in ("views", "shared views", "targets")),
]
"""The pairs that a loader refuses."""
SINGLE = [(name,) for name in FEATURES]
PAIRS = [
    pair
    for pair in itertools.combinations(FEATURES, 2)
    if FEATURES[pair[0]][0] != FEATURES[pair[1]][0] and "tar" not in pair and pair not in REFUSED
]


def rows_where(holds: Callable[[Setup], bool]) -> pytest.MarkDecorator:
    """The rows of which a test is: the features, and their pairs, of which a fixed sample runs."""
    sampled = pytest.mark.slow(kept=20, of="pairs of features")
    single = [row for row in SINGLE if holds(Setup.of(row))]
    pairs = [pytest.param(row, marks=sampled) for row in PAIRS if holds(Setup.of(row))]
    return pytest.mark.parametrize("run", [*single, *pairs], indirect=True, scope="module", ids=" x ".join)


@contextmanager
def parts_of(rows: int) -> Iterator[None]:
    """Inside of it each step is read and decoded in parts of so many rows; 0: in those that it has."""
    with pytest.MonkeyPatch.context() as patch:
        if rows:
            patch.setattr(Parts, "of_step", lambda _, ids, *at: cut_rows(np.ones(len(ids)), rows, 1, rows))
        yield


# --- what is delivered

Row = tuple[int, bool, dict[str, int]]
"""A sample's number, whether it is no padding and no replacement, sizes of its images, and hashes of its entries."""
OF_THE_SAMPLE = ("label", "key", "original_size", "caption")
"""The entries that several views do not have each."""


def rows_of(batch: dict[str, Any], views: int) -> list[Row]:
    """What a batch has for each sample, without the padding that depends on the other samples."""
    found = []
    for row, (number, valid) in enumerate(zip(batch["index"].tolist(), batch["valid"].tolist(), strict=True)):
        hashes = {name: hash_of(batch[name][row]) for name in OF_THE_SAMPLE if batch.get(name) is not None}
        for view in range(views):
            names = batch.keys() - {"index", "valid", "pixel_mask", *OF_THE_SAMPLE}
            entries = {name: (batch[name] if views == 1 else batch[name][view])[row] for name in names}
            if "size" in entries:
                height, width = entries["size"].tolist()
                padded = entries.keys() & {"image", "mask", "objects"}
                entries |= {name: entries[name][..., :height, :width] for name in padded}
            hashes |= dict(zip((f"height {view}", f"width {view}"), entries["image"].shape[-2:], strict=True))
            hashes |= {f"{name} {view}": hash_of(value) for name, value in entries.items()}
        found.append((number, valid, hashes))
    return found


def hash_of(value: Any) -> int:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        return zlib.crc32(f"{value.dtype} {tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes())
    return zlib.crc32(repr(value).encode())


def form_of(batch: dict[str, Any], views: int, sized: bool) -> str:
    """The entries and their types, and their shapes if the images have one size, without the number of samples."""

    def of(value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, torch.Tensor):
            return value.dtype, value.shape[1:] if sized else value.ndim
        return type(value)

    of_views = batch.keys() - {"index", "valid", *OF_THE_SAMPLE} if views > 1 else ()
    return str(sorted((name, [*map(of, value)] if name in of_views else of(value)) for name, value in batch.items()))
