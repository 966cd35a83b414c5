"""Shows samples of shards before and after a recipe: `Gallery`, and `show`, which draws some into a picture.

A sample is shown with the random parameters that a training with this seed uses in an epoch. On the CPU, it is the same
tensor that `GPULoader` delivers, bit for bit. On a GPU, the decoder may treat one image differently from a batch. MixUp
and CutMix are not applied, because they need two samples.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gpuloader import __version__
from gpuloader.base.text import counted, printable
from gpuloader.base.values import is_integer
from gpuloader.chain.batch import Batch
from gpuloader.chain.given import prepare_images
from gpuloader.chain.link import Wanted
from gpuloader.compose import NO_TARGETS, Compose, chain_of
from gpuloader.errors import BadImageError, ConfigError, DataError
from gpuloader.images.limits import MAX_PIXELS, RefusalError
from gpuloader.images.mipmaps import of_mipmap
from gpuloader.loading.argument_types import AnyFields, AnyLabels, AnyPreset
from gpuloader.loading.arguments import resolve_device, resolve_fields, resolve_label_from
from gpuloader.loading.delivery import channels_first, round_to_dtype
from gpuloader.loading.drawing import Choose
from gpuloader.loading.explaining import explain_decoding, explain_views
from gpuloader.loading.opening import Open
from gpuloader.loading.options import LabelFrom
from gpuloader.loading.own_targets import OwnTargets
from gpuloader.loading.reading import Read
from gpuloader.loading.run import Run
from gpuloader.loading.selection import Sources, resolve_sources
from gpuloader.loading.world import World
from gpuloader.plan import Cursor, Draws, Plan, PlannedBatch, all_samples, check_epoch, check_seed, make_order
from gpuloader.recipe import ExplainedView, Recipe
from gpuloader.recipe.placement import MAX_SIDE
from gpuloader.recipe.recipe import Orientation
from gpuloader.shards import ShardSet, make_labels, needs_labels, read_names
from gpuloader.targets.boxes import Boxes
from gpuloader.targets.masks import Mask
from gpuloader.targets.target import Target, check_recipe_moves
from gpuloader.tools.outputs import PICTURES, check_output
from gpuloader.tools.overlay import CROWD, Overlay, find_targets, overlays_of
from gpuloader.tools.sheet import COLOURS, Box, Picture, Sheet, as_picture, fitting_tile
from gpuloader.transforms import Resize

__all__ = ["Gallery", "show"]

Device: TypeAlias = "int | Literal['auto'] | None"
_MOST_IMAGES = 1000
_CROPS = "boxes of crops"  # the name of the field that only crops depend on


@dataclass(frozen=True)
class SampleInfo:
    """A sample and its place in the shards.

    Attributes:
        id: its number in the data.
        key: WebDataset's `__key__`.
        label: the number of its class; None without labels.
        class_name: the name of the class, if it is known.
        shard: the path of the shard.
        offset: the byte of the shard at which the image begins.
    """

    id: int
    key: str
    label: int | None
    class_name: str | None
    shard: str
    offset: int


@dataclass(frozen=True)
class ShowResult:
    """The result of `show`.

    Attributes:
        picture: the path of the file.
        mix_left_out: whether training would mix the images shown with others.
        targets_left_out: name -> why this target cannot follow the recipe.
        samples: those shown, in order.
        bad: id -> cause, for samples that cannot be decoded in at least one epoch, or whose targets cannot be parsed.
    """

    picture: Path
    mix_left_out: bool
    targets_left_out: Mapping[str, str]
    samples: tuple[SampleInfo, ...]
    bad: Mapping[int, str]

    def _repr_html_(self) -> str:
        """Returns HTML for notebooks that shows the current content of the file."""
        kind = "png" if self.picture.suffix.lower() == ".png" else "jpeg"
        content = b64encode(self.picture.read_bytes()).decode()
        keys = escape(", ".join(printable(sample.key) for sample in self.samples))
        return f'<img style="max-width: 100%" alt="{keys}" src="data:image/{kind};base64,{content}">'


class Gallery:
    """Samples of shards, as stored and as a recipe transforms them. Threads may share it.

    Args:
        tar: the shards, as `GPULoader` takes them.
        label_from: where labels are, as `GPULoader` takes it. Classes are named by their folders, or by classes.json
            beside the shards.
        device_id: where images are decoded and transformed, as `GPULoader` takes it.
        fields: as `GPULoader` takes them; their targets are drawn. None draws what `gpuloader pack` writes: masks, and
            annotations in COCO's form. It marks crowds, and drops them from what the recipe's crops depend on. Labels
            are optional if samples have targets, or if the data has neither `.cls` nor folders.

    Attributes:
        device_id: a GPU's number, or None.
        has_targets: whether samples have targets to draw.
        class_names: label -> name, if names are known.

    Raises:
        GPULoaderError: there are no shards, no labels or no such device, or two classes.json name a label differently.
    """

    def __init__(
        self,
        tar: Sources,
        *,
        label_from: AnyLabels = "default",
        device_id: Device = "auto",
        fields: AnyFields | None = None,
    ) -> None:
        self.device_id = resolve_device(device_id, World(0, 1))
        labelling = resolve_label_from(label_from)
        named = None if fields is None else resolve_fields(fields, "dict")
        self._shards = ShardSet.open(resolve_sources(tar)[0], progress=True)
        self._plan = Plan(all_samples(len(self)), batch_size=1)
        self._targets = (
            None if named is None else {name: each for name, each in named.items() if isinstance(each, Target)}
        )
        self.has_targets = bool(self._targets_of(0))
        if labelling == LabelFrom() and not needs_labels(self._shards, self.has_targets):
            labelling = LabelFrom(None)
        self._labels = make_labels(self._shards, labelling.place, labelling.classes, order=labelling.order)
        self.class_names: Mapping[int, str] = (
            read_names(self._shards.shards) if self._labels is None else self._labels.names
        )

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def device(self) -> str:
        """The name of the device, such as "cpu" or "cuda:0"."""
        return "cpu" if self.device_id is None else f"cuda:{self.device_id}"

    def labels(self) -> NDArray[np.int64] | None:
        """Returns the labels of all samples, (N,); None without labels."""
        return None if self._labels is None else self._labels.of(np.arange(len(self)))

    def sample(self, sample: int) -> SampleInfo:
        """Returns the sample with this number.

        Raises:
            ConfigError: there is no such sample.
        """
        if not isinstance(sample, (int, np.integer)) or not 0 <= sample < len(self):
            raise ConfigError(f"sample {sample!r}: allowed is an id from 0 to {len(self) - 1}")
        label = None if self._labels is None else int(self._labels.of(np.array([sample]))[0])
        name = None if label is None else self.class_names.get(label)
        where = self._shards.locate(sample)
        return SampleInfo(int(sample), where.key, label, name, where.shard, where.offset)

    def find(self, text: str, exact: bool = False) -> NDArray[np.int64]:
        """Returns the ids of the samples whose key contains this text, or equals it if `exact`."""
        wanted = text.encode("utf-8", "surrogateescape")
        if not wanted:
            return np.arange(0 if exact else len(self))
        ends, keys = self._shards.index.column("key_end"), self._shards.index.column("key_bytes").tobytes()
        found = re.finditer(b"(?=%b)" % re.escape(wanted), keys)  # also where it overlaps itself
        start = np.array([each.start() for each in found], np.int64)
        rows = np.searchsorted(ends, start, side="right")
        match = start + len(wanted) <= ends[rows]
        if exact:
            match &= (start == np.append(0, ends)[rows]) & (start + len(wanted) == ends[rows])
        return np.unique(rows[match])

    def drawn(self, count: int, seed: int) -> list[int]:
        """Returns the ids of `count` samples: the first ones of a training that shuffles with this seed."""
        return make_order("full", len(self), check_seed(seed), 0)(np.arange(min(count, len(self)))).tolist()

    def whole(self, sample: int, side: int, orientation: Orientation = "off", copy: int = 0) -> Compose:
        """Returns a recipe that shows a sample's whole image, downsized if its longer side exceeds `side` pixels.

        Args:
            orientation: as in a recipe; "apply" shows the picture upright.
            copy: the shorter side of the copy that is decoded, 0 for the picture; as for the other methods.

        Raises:
            BadImageError: the image's size cannot be read.
        """
        height, width = self.size(sample, orientation, copy)
        scale = min(1.0, side / max(height, width))
        return _resized(max(1, round(scale * height)), max(1, round(scale * width)), orientation)

    def tensors(
        self, compose: Compose, sample: int, seed: int, epoch: int, copy: int | None = None
    ) -> list[torch.Tensor]:
        """Returns the tensor of each view, (3, h, w), that a loader with this recipe and seed delivers in this epoch.

        Args:
            copy: None decodes the copy that the loader takes.

        Raises:
            BadImageError: the image cannot be decoded.
        """
        run = self._run(compose, sample)
        batch = self._decode(run, compose, self._open(run, sample, seed, epoch, copy))
        return round_to_dtype(compose, channels_first(compose, [view[0] for view in batch.views]))

    def copy_side(self, recipe: Recipe, sample: int, seed: int, epoch: int) -> int:
        """Returns the shorter side of the smaller copy that a loader decodes in this epoch, 0 for the picture."""
        return int(_choose(Run(self._plan, self._shards, recipe), sample, seed, epoch)[1].sides[0])

    def versions(self, compose: Compose, sample: int, seed: int, epoch: int, copy: int | None = None) -> list[Picture]:
        """Returns `tensors` as pictures, without the recipe's normalisation."""
        tensors = self.tensors(compose, sample, seed, epoch, copy)
        return [as_picture(tensor, view.normalize) for tensor, view in zip(tensors, compose.each_view, strict=True)]

    def targets(self, compose: Recipe, sample: int, seed: int, epoch: int, copy: int | None = None) -> list[Overlay]:
        """Returns the targets of a sample in each view of `tensors`, without those that cannot follow the recipe.

        Raises:
            BadImageError: the image's size cannot be read, or a target cannot be parsed.
        """
        run = self._run(compose, sample, drawn=True)
        batch = self._open(run, sample, seed, epoch, copy)
        if OwnTargets(run).fields:
            batch = self._decode(run, compose if isinstance(compose, Compose) else Compose.load(compose), batch)
        return overlays_of(run, batch, 0, self.class_names, self._drawn(compose, sample))

    def targets_left_out(self, compose: Recipe, sample: int) -> dict[str, str]:
        """Returns why targets of a sample cannot follow the recipe, by name; MixUp and CutMix are ignored."""
        left_out = {}
        for name, field in self._targets_of(sample).items():
            try:
                check_recipe_moves(compose, repeats=isinstance(field, Mask))
            except ConfigError as error:
                left_out[name] = str(error)
        return left_out

    def explain(self, preset: Recipe, sample: int, seed: int, epoch: int) -> tuple[ExplainedView, ...]:
        """Returns the steps of each view of `tensors`; the first is "oversampling" if not all of a picture is decoded.

        Raises:
            BadImageError: the image's size cannot be read.
        """
        run = self._run(preset, sample)
        [views] = explain_views(run, self._prepared(run, sample, seed, epoch))
        return views

    def decoded(self, recipe: Recipe, sample: int, seed: int, epoch: int) -> dict[str, str]:
        """Returns what a loader decodes in this epoch, unless it is all of the picture.

        It has the extension of a smaller copy as "file", and the size at which a JPEG is decoded as "scale": "1/2".

        Raises:
            BadImageError: the image's size cannot be read.
        """
        return explain_decoding(self._prepared(self._run(recipe, sample), sample, seed, epoch), 0)

    def _prepared(self, run: Run, sample: int, seed: int, epoch: int) -> Batch:
        batch = self._open(run, sample, seed, epoch)
        return prepare_images(batch, run.recipe.oversampling_on(self.device_id), 1)

    def size(self, sample: int, orientation: Orientation = "off", copy: int = 0) -> tuple[int, int]:
        """Returns (height, width) of a sample's picture in pixels; "apply" counts the upright picture.

        Raises:
            BadImageError: the size cannot be read.
        """
        run = Run(self._plan, self._shards, _resized(1, 1, orientation))
        opened = self._open(run, sample, 0, 0, copy).params.views[0].placements[0]
        height, width = opened.shape[0].tolist()
        return height, width

    def _targets_of(self, sample: int) -> Mapping[str, Target]:
        if self._targets is not None:
            return self._targets
        content = None
        with suppress(RefusalError):
            content = self._shards.read_component(sample, "json")
        return find_targets(self._extensions_of(sample), content)

    def _extensions_of(self, sample: int) -> list[str]:
        return [name for name, *_ in self._shards.index.components(sample)]

    def _drawn(self, recipe: Recipe, sample: int) -> dict[str, Target]:
        left_out = self.targets_left_out(recipe, sample)
        return {name: field for name, field in self._targets_of(sample).items() if name not in left_out}

    def _run(self, recipe: Recipe, sample: int, drawn: bool = False) -> Run:
        """Returns a run over the sample's targets: those that the recipe needs, or also those that are drawn."""
        takes = recipe.own_code is not None and recipe.own_code.takes_targets
        fields = self._drawn(recipe, sample) if drawn or takes else {}
        targets = self._targets_of(sample).items() if recipe.by_boxes else ()
        boxes = [(name, field) for name, field in targets if isinstance(field, Boxes)]
        crops = {name if takes else _CROPS: self._for_crops(field) for name, field in boxes[:1]}
        return Run(self._plan, self._shards, recipe, fields={**crops, **fields, **crops})  # the first boxes decide

    def _for_crops(self, boxes: Boxes) -> Boxes:
        """Returns boxes without crowds, as a training leaves them out, unless they are named."""
        return replace(boxes, leave_out=CROWD) if self._targets is None and CROWD in boxes.keys else boxes

    def _open(self, run: Run, sample: int, seed: int, epoch: int, copy: int | None = None) -> Batch:
        """Opens a sample as a loader does; raises BadImageError if it is bad."""
        planned, chosen = _choose(run, sample, seed, epoch)
        if copy is not None:
            chosen = replace(chosen, sides=np.array([copy]))
        required = {field.extension for field in run.fields.values() if field.required}
        if lacking := required.difference(self._extensions_of(sample)):
            raise self._bad(chosen, f"it has no .{min(lacking)} component")
        with closing(Open(run, set(), wanted := Wanted(), Read(run, wanted))) as head:
            return head.open(planned, chosen)

    def _decode(self, run: Run, compose: Compose, batch: Batch) -> Batch:
        targets = OwnTargets(run)
        try:
            return chain_of(compose).run(batch, self.device_id, targets if targets.fields else NO_TARGETS)
        except DataError as error:
            cause = of_mipmap(int(batch.sides[0]), str(error).partition(": ")[2])
            raise self._bad(batch, cause) from None

    def _bad(self, batch: Batch, cause: str) -> BadImageError:
        return BadImageError(*self._shards.locate(int(batch.ids[0]), int(batch.sides[0])), cause)


def _choose(run: Run, sample: int, seed: int, epoch: int) -> tuple[PlannedBatch, Batch]:
    """Begins the batch of a sample, with the draws that it has in a training."""
    ids = np.array([sample])
    draws = Draws(check_seed(seed), check_epoch(epoch), ids)
    planned = PlannedBatch(Cursor(epoch), ids, np.zeros(1, np.int64), draws)
    return planned, Choose(run)(planned)


def _resized(height: int, width: int, orientation: Orientation) -> Compose:
    return Compose((Resize((height, width)),), dtype="uint8", max_pixels=MAX_PIXELS, orientation=orientation)


def show(
    tar: Sources,
    picture: str | Path,
    *,
    preset: AnyPreset = "imagenet_train",
    overrides: Mapping[str, Any] | None = None,
    samples: int | Sequence[int | str] = 8,
    versions: int = 4,
    columns: int | None = None,
    seed: int = 0,
    label_from: AnyLabels = "default",
    device_id: Device = "auto",
    fields: AnyFields | None = None,
) -> ShowResult:
    """Draws samples beside what training gets from them in several epochs, with their targets.

    A sample that cannot be decoded or parsed is drawn as a box with the cause. The first six versions of a sample have
    coloured frames; the original shows their windows in the same colours.

    Args:
        tar: the shards, as `GPULoader` takes them.
        picture: a file to write, .png or .jpg.
        preset, overrides: the recipe, as `GPULoader` takes it.
        samples: how many samples, chosen at random by the seed; or which ones: ids, and keys as strings.
        versions: how many versions of each sample, for epochs 0, 1 and so on; each has all views of the recipe.
        columns: images in a row, including the original; by default all of a sample, up to 11.
        seed: the seed of the training.
        label_from, device_id, fields: as `Gallery` takes them.

    Raises:
        GPULoaderError: one of `gpuloader.errors`; its message says what to do.
    """
    picture = Path(picture)
    _check(picture, samples, versions, columns)
    compose = Compose.load(preset, **(overrides or {}))
    gallery = Gallery(tar, label_from=label_from, device_id=device_id, fields=fields)
    ids = _ids_of(gallery, samples, seed)
    views = len(compose.each_view)
    in_row = (columns or min(11, 1 + versions * views)) - 1
    sides = [side for epoch in range(versions) for shape in compose.at(epoch).shapes for side in shape or (MAX_SIDE,)]
    tile = fitting_tile(sides)
    rows = -(-versions * views // in_row)  # of each sample
    facts = f"{len(ids)} of {counted(len(gallery), 'sample')}, {gallery.device}, gpuloader {__version__}"
    sheet = Sheet(tile, in_row + 1, len(ids) * rows, _heading(preset, overrides, compose, versions, seed, facts))
    chosen = [gallery.sample(sample) for sample in ids]
    bad: dict[int, str] = {}
    left_out: dict[str, str] = {}
    for number, sample in enumerate(chosen):
        (original, targets), *made = _pictures(gallery, compose, sample.id, seed, versions, tile)
        windows: list[Box] = []
        if causes := [picture for picture in (original, *(each for each, _ in made)) if isinstance(picture, str)]:
            bad[sample.id] = causes[0]
        else:
            windows = _windows(gallery, compose, sample.id, seed, versions)
            left_out |= gallery.targets_left_out(compose, sample.id)
        texts = [printable(sample.key), _name_label(sample)]
        sheet.put(number * rows, 0, original, texts, windows, overlay=targets)
        for place, (version, its_targets) in enumerate(made):
            epoch, view = divmod(place, views)
            row, column = divmod(place, in_row)
            shown = {} if isinstance(version, str) else gallery.decoded(compose, sample.id, seed, epoch)
            decoded = "".join(f", {each}" for each in shown.values())
            caption = f"epoch {epoch}, view {view}{decoded}" if views > 1 else f"epoch {epoch}{decoded}"
            frame = COLOURS[place] if place < len(windows) else None
            sheet.put(number * rows + row, 1 + column, version, [caption], frame=frame, overlay=its_targets)
    sheet.image.save(picture, quality=90)  # of JPEG
    return ShowResult(picture, compose.mix is not None, left_out, tuple(chosen), bad)


def _check(picture: Path, samples: int | Sequence[int | str], versions: int, columns: int | None) -> None:
    """Checks the samples to draw, and the file."""
    check_output(picture, PICTURES)
    for name, number, least in (("versions", versions, 1), ("columns", 2 if columns is None else columns, 2)):
        if not is_integer(number, least, _MOST_IMAGES + 1):
            raise ConfigError(f"{name}={number!r}: allowed is an integer from {least} to {_MOST_IMAGES}")
    if isinstance(samples, (str, bool)) or not samples or (isinstance(samples, int) and samples < 0):
        raise ConfigError(f"samples={samples!r}: allowed is a number above 0, or a list of ids and keys")


def _ids_of(gallery: Gallery, samples: int | Sequence[int | str], seed: int) -> list[int]:
    if isinstance(samples, int):
        return gallery.drawn(samples, seed)
    ids: list[int] = []
    for sample in samples:
        found = gallery.find(sample, exact=True).tolist() if isinstance(sample, str) else [sample]
        if not found:
            raise ConfigError(f"no sample of these shards has the key {sample!r}")
        ids += found
    return ids


def _pictures(
    gallery: Gallery, compose: Compose, sample: int, seed: int, versions: int, side: int
) -> Iterator[tuple[Picture | str, Overlay | None]]:
    """Yields the original, then each view of each version, with its targets; for one that is bad, the cause.

    A bad original is drawn from the copy that the first version takes.
    """
    originals: list[tuple[Picture | str, Overlay | None]] = []
    for copy in dict.fromkeys((0, gallery.copy_side(compose, sample, seed, 0))):
        try:
            whole = gallery.whole(sample, side, compose.orientation, copy)
            made = gallery.versions(whole, sample, 0, 0, copy), gallery.targets(whole, sample, 0, 0, copy)
            originals = list(zip(*made, strict=True))
            break
        except BadImageError as error:
            originals = originals or [(error.cause, None)]
    yield from originals
    for epoch in range(versions):
        try:
            made = gallery.versions(compose, sample, seed, epoch), gallery.targets(compose, sample, seed, epoch)
            yield from zip(*made, strict=True)
        except BadImageError as error:
            yield from [(error.cause, None)] * len(compose.each_view)


def _windows(gallery: Gallery, compose: Compose, sample: int, seed: int, versions: int) -> list[Box]:
    """Returns left, top, right, bottom of the windows of the first versions, as shares of the image's sides."""
    height, width = gallery.size(sample, compose.orientation, gallery.copy_side(compose, sample, seed, 0))
    views = (view for epoch in range(versions) for view in gallery.explain(compose, sample, seed, epoch))
    windows = (view.window for view in islice(views, len(COLOURS)))
    return [(left / width, top / height, right / width, bottom / height) for top, left, bottom, right in windows]


def _name_label(sample: SampleInfo) -> str:
    return "" if sample.label is None else f"class {sample.label} {printable(sample.class_name or '')}".rstrip()


def _heading(
    preset: AnyPreset, overrides: Mapping[str, Any] | None, compose: Compose, versions: int, seed: int, facts: str
) -> list[str]:
    name = str(preset) if isinstance(preset, (str, Path)) else "a recipe"
    title = f"{name} with {json.dumps(overrides, default=str)}" if overrides else name
    epochs = "epoch 0" if versions == 1 else f"epochs 0 to {versions - 1}"
    levels = " (normalising undone)" if any(view.normalize for view in compose.each_view) else ""
    lines = [
        title,
        f"seed {seed}, {epochs}, {facts}",
        f"originals with the windows shown, then what training gets{levels}",
    ]
    return [*lines, "not mixed: the recipe's MixUp and CutMix are left out"] if compose.mix is not None else lines
