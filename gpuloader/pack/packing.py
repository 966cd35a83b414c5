"""`pack`: packs any source of labelled pictures into WebDataset shards."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from gpuloader.base.atomic_files import remove_leftovers, write_once
from gpuloader.base.progress import progress_bar
from gpuloader.base.text import counted
from gpuloader.base.values import as_python_integer
from gpuloader.errors import ConfigError, LabelError, NoSamplesError, StateError, describe
from gpuloader.images.traits import IN_PIXELS
from gpuloader.pack.assignment import assign
from gpuloader.pack.executors import run
from gpuloader.pack.options import VALIDATION, Options, parse_bytes, parse_classes, parse_mipmaps, parse_part
from gpuloader.pack.records import FoundNames, OpenedSource, unique_keys
from gpuloader.pack.shard_writer import LEFT_OUT, LeftOutPicture, ShardCounts, ShardTask, read_left_out, write_shard
from gpuloader.pack.sources import PictureSource, open_source
from gpuloader.shards.class_names import CLASSES_FILE, as_list, read_class_names
from gpuloader.shards.paths import user_path
from gpuloader.shards.remote.urls import remote_protocol, without_secrets

MANIFEST = "pack-{}.json"
_MANIFESTS = MANIFEST.format("*")
_COPYING = {
    "s3": "`aws s3 cp --recursive FOLDER s3://...`",
    "gs": "`gcloud storage cp --recursive FOLDER gs://...`",
    "hf": "`hf upload`",
}


@dataclass(frozen=True)
class PackResult:
    """The content of the destination after `pack`, from this call and earlier ones.

    Attributes:
        destination: the folder.
        shards: the finished shards, as paths below the folder.
        missing: the shards that other parts, or other calls, still have to write.
        written: how many of the finished shards this call wrote.
        samples: the samples in the finished shards.
        splits: the samples of each prefix, such as {"train": 546, "val": 54}.
        bytes: the bytes of the finished shards.
        left_out: the bad pictures, which are in no finished shard, and the bad objects of pictures that are.
        with_copies: how many pictures have smaller copies, in the shards that this call wrote.
        too_small: how many pictures in these shards are too small for the copies that `mipmaps` asks for.
        reduced: how many pictures in these shards have more than 8 bits (`above_8_bits`), a pixel with alpha below 255
            (`alpha_below_255`), an ICC profile whose description does not name sRGB (`profile_not_srgb`), or several
            `frames`: loaders deliver RGB of 8 bits.
        passed_over: how many files or members of the source belong to no sample, such as a README.
        classes: the classes' names, as in classes.json; None if labels are bare numbers.
    """

    destination: Path
    shards: tuple[str, ...]
    missing: tuple[str, ...]
    written: int
    samples: int
    splits: Mapping[str, int]
    bytes: int
    left_out: tuple[LeftOutPicture, ...]
    with_copies: int
    too_small: int
    reduced: Mapping[str, int]
    passed_over: int
    classes: tuple[str, ...] | None


@dataclass(frozen=True)
class Destination:
    """A folder, and the options of the pack that writes into it."""

    folder: Path
    options: Options

    @classmethod
    def at(cls, given: str | os.PathLike[str], options: Options, source: PictureSource) -> Destination:
        """Returns the destination of a path; raises ConfigError for a URL, or a folder in the source."""
        text = os.fspath(given)
        if (protocol := remote_protocol(text)) is not None:
            copying = _COPYING.get(protocol, "the store's own command")
            raise ConfigError(f"{without_secrets(text)}: give a local folder, and copy that with {copying}")
        destination = cls(user_path(given).absolute(), options)
        path = user_path(source).absolute() if isinstance(source, (str, os.PathLike)) else None
        for place in destination.places.values():
            if path is not None and (path == place or path in place.parents) and path.is_dir():
                raise ConfigError(f"the destination {place} is in the source {path}: give a folder outside of it")
        return destination

    @property
    def places(self) -> dict[str, Path]:
        """The folder of each prefix."""
        if not self.options.val_share:
            return {self.options.prefix: self.folder}
        return {prefix: self.folder / prefix for prefix in (self.options.prefix, VALIDATION)}

    def finished(self) -> dict[str, int]:
        """Returns the paths below the folder, and the sizes in bytes, of the finished shards."""
        found = (path for place in self.places.values() for path in sorted(place.glob("*.tar")) if path.is_file())
        return {str(path.relative_to(self.folder)): path.stat().st_size for path in found}

    def sharing_places(self) -> list[Path]:
        """Returns the folders with the same classes: its own, and those below it into which `val_share` packed."""
        manifests = sorted(self.folder.glob(f"*/{_MANIFESTS}"))
        return [*self.places.values(), *(each.parent for each in manifests if _read(each).get("val_share"))]

    def remove_leftovers(self) -> None:
        """Removes the files of workers that were killed."""
        for place in self.places.values():
            for folder in (place, place / LEFT_OUT):
                remove_leftovers(folder)

    def claim(self, source: OpenedSource, shards: Collection[str]) -> Mapping[str, int]:
        """Claims the folder's shards of these prefixes for this pack, or checks that it already has them.

        Returns the names and sizes of the finished shards.
        """
        folder, places = self.folder, self.places
        if self.options.val_share and (there := [*folder.glob("*.tar"), *folder.glob(_MANIFESTS)]):
            raise StateError(
                f"{folder} has {there[0].name} itself, but val_share packs into its folders {' and '.join(places)}: "
                f"give another folder, or move the shards and their pack-*.json"
            )
        for place in places.values():
            try:
                place.mkdir(parents=True, exist_ok=True)
            except (OSError, ValueError) as error:
                raise ConfigError(f"the destination {place} cannot be made ({error}): give another folder") from None
            for written in (*place.glob("*.tar"), *place.glob(_MANIFESTS), *place.glob(f"{LEFT_OUT}/*")):
                if not written.is_file():
                    raise StateError(f"{written} is not a regular file: remove it, or give another folder")
        finished = self.finished()  # before the manifests, because packs write those first
        manifests = [place / MANIFEST.format(prefix) for prefix, place in places.items()]
        content = {
            "version": 1,
            "source": source.fingerprint,
            "samples": len(source.records),
            "classes": source.classes and len(source.classes),
            **self.options.recorded(),
            "shards": len(shards),
        }
        text = json.dumps(content, indent=1).encode() + b"\n"
        for manifest in manifests:
            if manifest.exists():
                _check_same(manifest, manifest.read_bytes(), text)
        for place in self.sharing_places():
            _check_others(place, manifests, source)
        for tar in finished:
            manifest = (folder / tar).with_name(MANIFEST.format(_prefix(tar)))
            if not manifest.exists() or (manifest in manifests and tar not in shards):
                raise StateError(
                    f"{folder} has tars that no pack wrote, such as {tar}: move them, or give an empty folder"
                )
        if source.classes is not None:
            names, ids = list(source.classes), source.class_ids
            classes = names if ids is None else {"names": names, "ids": list(ids)}
            for place in places.values():
                existing = write_once(place / CLASSES_FILE, json.dumps(classes, indent=1).encode() + b"\n")
                same_names = as_list(read_class_names(place)) == source.classes
                if not same_names or (ids is not None and json.loads(existing) != classes):
                    raise StateError(
                        f"{place / CLASSES_FILE} has other {'ids of classes' if same_names else 'classes'} than the "
                        "source: give another folder; if another pack has just begun there, run this again"
                    )
        for manifest in manifests:
            _check_same(manifest, write_once(manifest, text), text)
        return finished


def pack(
    source: PictureSource,
    destination: str | os.PathLike[str],
    *,
    samples_per_shard: int | None = None,
    shard_bytes: int | str | None = None,
    seed: int = 0,
    shuffle: bool = True,
    val_share: float = 0.0,
    prefix: str = "train",
    max_size: int | None = None,
    quality: int | None = None,
    decoded: int | None = None,
    seekable: bool = False,
    mipmaps: str | Sequence[int] | None = None,
    classes: str | os.PathLike[str] | Sequence[str] | None = None,
    images: str | os.PathLike[str] | None = None,
    tars_are_classes: bool = False,
    workers: int | None = None,
    part: tuple[int, int] = (0, 1),
    ray: str | None = None,
    progress: bool = False,
) -> PackResult:
    """Packs labelled pictures into WebDataset shards: an image, `cls`, and `json` if there are further fields.

    Pictures with boxes or masks become an image with `json`, `mask.png` or both, and no `cls`.

    The same source and arguments give the same bytes, on any number of workers and machines. If a call is killed, the
    same call resumes it; finished shards are kept. Several packs may share a destination, each with its own prefix:
    all number their classes by the first one's classes.json.

    Args:
        source: class folders, a CSV or JSON Lines file, tars, a Hugging Face dataset on disk, torchvision:NAME:ROOT,
            or in Python a sequence of (image or path, label). With boxes or masks: a COCO FILE.json, a folder of Pascal
            VOC or its ImageSets/Main/LIST.txt or ImageSets/Segmentation/LIST.txt, or ROOT/images/SPLIT beside YOLO's
            ROOT/labels/SPLIT or beside ROOT/masks/SPLIT.
        destination: the folder for the shards; it is made if it is missing.
        samples_per_shard: 1000 unless `shard_bytes` is given.
        shard_bytes: most bytes of source pictures in a shard, such as 256MiB. Less than 1 MiB needs a unit, such as
            4096B.
        seed: decides the order, and which samples are held out for validation.
        shuffle: whether samples are shuffled; otherwise they keep the source's order.
        val_share: the share of the samples that is held out: it goes to the folder `val` of the destination, and the
            other samples go to the folder `prefix`.
        prefix: the beginning of the shards' names.
        max_size: pictures whose shorter side has more pixels are downsized to this and become JPEGs.
        quality: of the JPEGs that `max_size` and `mipmaps` make; 90 unless given.
        decoded: stores each picture as a uint8 (H, W, 3) RGB array in KEY.npy, downsized if its shorter side has more
            pixels than this.
        seekable: rewrites JPEGs losslessly with restart intervals, so that loaders decode only the part of an image
            that they need. It takes `jpegtran` of libjpeg-turbo. A JPEG that could lose data stays unchanged.
        mipmaps: the shorter sides in pixels, such as 1024,512, of smaller copies to store beside each picture. A
            picture has copies if its shorter side is at least 1.25 times the largest of these, after `max_size`.
        classes: names that number the labels, or a JSON file of them such as another pack's classes.json. By
            default the destination's classes.json, or, if there is none, the sorted names that occur; a COCO file's
            categories by id, and YOLO's classes as in data.yaml.
        images: the folder of a COCO file's pictures. By default, it is the file's own folder, or NAME beside that
            folder for instances_NAME.json.
        tars_are_classes: reads each CLASS.tar of a folder as the pictures of one class. A tar of such tars, such as
            ImageNet's, needs no option.
        workers: the number of processes; by default one per core.
        part: (i, n) writes the i-th of n parts of the shards, i from 0 on, for n machines on one file system.
        ray: the address (local, auto or host:port) of a Ray cluster, which then does the work. Its nodes must share the
            file system.
        progress: shows a bar on stderr.

    Raises:
        ConfigError: invalid arguments.
        PackError: the source is missing or cannot be read, or a worker died.
        LabelError: a sample has no label, or an unknown class; or a class has no pictures, without `classes`.
        NoSamplesError: there is no picture, or no good one.
        StateError: the destination has shards of another pack with the same prefix, shards that no pack wrote, or other
            classes; or with `val_share`, it has shards itself.
        DataError: its classes.json does not contain names of classes.
        OSError: such as a full disk.
    """
    options = Options(
        samples_per_shard=samples_per_shard,
        shard_bytes=parse_bytes(shard_bytes),
        seed=as_python_integer(seed),
        shuffle=shuffle,
        val_share=val_share,
        prefix=prefix,
        max_size=max_size,
        quality=quality,
        decoded=decoded,
        seekable=seekable,
        mipmaps=parse_mipmaps(mipmaps),
        part=parse_part(part),
        workers=workers,
        ray=ray,
        classes=parse_classes(classes),
        images=None if images is None else user_path(images),
        tars_are_classes=tars_are_classes,
    )
    to = Destination.at(destination, options, source)
    opened = _open(source, to, progress)
    keys = unique_keys(opened.records)
    shards = assign(keys, [record.size_bytes for record in opened.records], options)
    finished, (index, parts) = to.claim(opened, shards.keys()), options.part
    samples = [*zip(keys, opened.records, strict=True)]
    tasks = [
        ShardTask(to.folder / name, [samples[i] for i in numbers.tolist()], options, opened.fit)
        for name, numbers in islice(shards.items(), index, None, parts)
        if name not in finished
    ]
    written: list[ShardCounts] = []
    try:
        with progress_bar(progress and bool(tasks)) as bar:
            shown = bar.add_task("packing", total=sum(len(task.samples) for task in tasks))
            for counts in run(write_shard, tasks, workers, ray):
                bar.advance(shown, counts.records)
                written.append(counts)
    finally:
        to.remove_leftovers()
    return _result(to, opened, shards, written)


def _open(source: PictureSource, to: Destination, progress: bool) -> OpenedSource:
    """Opens the source, with labels numbered by `classes`, or otherwise as in the shards that are there already."""
    places, is_free = to.sharing_places(), to.options.classes is None
    folder = next((place for place in places if is_free and read_class_names(place)), None)
    found = None if folder is None else as_list(read_class_names(folder))
    options = to.options if found is None else replace(to.options, classes=FoundNames(found))
    try:
        return open_source(source, options, progress)
    except LabelError as error:
        if folder is None or found is None:
            raise
        raise LabelError(
            f"{error} (labels are numbered by {folder / CLASSES_FILE}, as in the other shards there)"
        ) from None


def _result(
    to: Destination, source: OpenedSource, shards: Mapping[str, Sized], written: Sequence[ShardCounts]
) -> PackResult:
    traits, with_mipmaps = b"".join(each.traits for each in written), sum(each.with_mipmaps for each in written)
    finished = to.finished()
    done = [name for name in shards if name in finished]
    left_out: list[LeftOutPicture] = []
    splits = dict.fromkeys(to.places, 0)
    for name in done:
        left_out += (bad := read_left_out(to.folder / name))
        splits[_prefix(name)] += len(shards[name]) - sum(not each.object for each in bad)
    samples = sum(splits.values())
    if samples == 0 and len(done) == len(shards):
        raise NoSamplesError(
            f"none of {counted(len(left_out), 'picture')} is good: {left_out[0].name}: {left_out[0].why}"
        )
    return PackResult(
        destination=to.folder,
        shards=tuple(done),
        missing=tuple(name for name in shards if name not in finished),
        written=len(written),
        samples=samples,
        splits=splits,
        bytes=sum(finished[name] for name in done),
        left_out=tuple(left_out),
        with_copies=with_mipmaps,
        too_small=len(traits) - with_mipmaps if to.options.mipmaps else 0,
        reduced={name: sum(each & bit > 0 for each in traits) for name, bit in IN_PIXELS.items()},
        passed_over=source.left_out_count,
        classes=source.classes,
    )


def _prefix(shard: str) -> str:
    return PurePath(shard).name.rpartition("-")[0]


def _check_same(manifest: Path, existing: bytes, text: bytes) -> None:
    if existing != text:
        old, new = _read(manifest), json.loads(text)
        differences = ", ".join(
            f"{name} was {describe(old.get(name))}, is {describe(new.get(name))}"
            for name in dict.fromkeys([*new, *old])
            if old.get(name) != new.get(name)
        )
        raise StateError(
            f"{manifest}: another pack began its shards ({differences}): to continue it, repeat its arguments and "
            "source; otherwise give another prefix or folder"
        )


def _check_others(folder: Path, manifests: Sequence[Path], source: OpenedSource) -> None:
    """Checks that labels have names in all packs of a folder, or in none: its classes.json is for all of them."""
    for manifest in sorted(set(folder.glob(_MANIFESTS)) - set(manifests)):
        named = _read(manifest).get("classes") is not None
        if named != (source.classes is not None):
            theirs, ours = ("names", "bare numbers") if named else ("bare numbers", "names")
            cure = f", or `--classes {folder / CLASSES_FILE}` if they are a table's" if named else ""
            raise StateError(
                f"{manifest} is of a pack whose labels are {theirs}, but here they are {ours}: give another folder"
                f"{cure}"
            )


def _read(manifest: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(manifest.read_bytes()))
    except (ValueError, TypeError, RecursionError):
        raise StateError(f"{manifest} was not written by a pack: give another folder") from None
