"""`pack`: packs any source of labelled pictures into WebDataset shards."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from gpuloader.base.atomic_files import remove_leftovers, write_once
from gpuloader.base.progress import progress_bar
from gpuloader.base.regular_file import read_regular
from gpuloader.base.text import counted
from gpuloader.base.values import as_python_integer, is_integer
from gpuloader.errors import ConfigError, LabelError, NoSamplesError, StateError, describe
from gpuloader.images.traits import IN_PIXELS
from gpuloader.pack.assignment import Layout, PlannedShard, assign, parse_bytes
from gpuloader.pack.executors import run
from gpuloader.pack.pictures import RenderOptions, parse_mipmaps
from gpuloader.pack.records import FoundNames, OpenedSource, unique_keys
from gpuloader.pack.seekable import find_version
from gpuloader.pack.shard_writer import LEFT_OUT, LeftOutPicture, ShardCounts, ShardTask, read_left_out, write_shard
from gpuloader.pack.sources import PictureSource, open_source
from gpuloader.shards.class_names import CLASSES_FILE, MOST_CLASSES_BYTES, as_list, listed_names, read_class_names
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
class _Packing:
    """What a call packs, how, and where; `shards` are those of all parts."""

    folder: Path
    layout: Layout
    rendering: RenderOptions
    source: OpenedSource
    shards: Sequence[PlannedShard]

    @property
    def places(self) -> dict[str, Path]:
        """The folder of each prefix."""
        return self.layout.places(self.folder)

    def finished(self) -> dict[str, int]:
        """Returns the paths below the folder, and the sizes in bytes, of the finished shards."""
        found = (path for place in self.places.values() for path in sorted(place.glob("*.tar")) if path.is_file())
        return {str(path.relative_to(self.folder)): path.stat().st_size for path in found}


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
    size_bytes = None if shard_bytes is None else parse_bytes(shard_bytes)
    sides = None if mipmaps is None else parse_mipmaps(mipmaps)
    for name, flag in (("shuffle", shuffle), ("seekable", seekable), ("tars_are_classes", tars_are_classes)):
        if not isinstance(flag, bool):
            raise ConfigError(f"{name}={flag!r}: allowed are True and False")
    layout = Layout(samples_per_shard, size_bytes, as_python_integer(seed), shuffle, val_share, prefix)
    rendering = RenderOptions(max_size, quality, decoded, find_version() if seekable else None, sides)
    index, parts = part if isinstance(part, (tuple, list)) and len(part) == 2 else (part, None)
    if not (is_integer(parts) and is_integer(index, 0, parts)):
        raise ConfigError(f"part={index}/{parts}: allowed is i/n with i from 0 to n - 1")
    if workers is not None and (not is_integer(workers, 1) or ray is not None):
        raise ConfigError(f"workers={workers!r}: allowed is an integer from 1 on; leave it out with ray")
    names, pictures = _class_names(classes), None if images is None else user_path(images)
    folder = _local(destination)
    places = [*layout.places(folder).values()]
    for place in places:
        _check_apart(source, place)
    given = {"images": pictures, "tars_are_classes": tars_are_classes}
    opened = _open(source, [*places, *_split_folders(folder)], names, progress, given)
    if opened.annotated and (max_size is not None or decoded is not None):
        raise ConfigError(
            "max_size and decoded change the sizes of pictures, but boxes and masks fit the sizes that they have: "
            "leave both out, and resize in the recipe"
        )
    keys = unique_keys(opened.records)
    shards = assign(keys, [record.size_bytes for record in opened.records], layout)
    packing = _Packing(folder, layout, rendering, opened, shards)
    finished = _claim(packing)
    tasks = [
        ShardTask(
            folder / shard.name,
            [keys[i] for i in shard.samples.tolist()],
            [opened.records[i] for i in shard.samples.tolist()],
            rendering,
        )
        for shard in shards[index::parts]
        if shard.name not in finished
    ]
    done: list[ShardCounts] = []
    try:
        with progress_bar(progress and bool(tasks)) as bar:
            shown = bar.add_task("packing", total=sum(len(task.keys) for task in tasks))
            for written in run(write_shard, tasks, workers, ray):
                bar.advance(shown, written.records)
                done.append(written)
    finally:
        for each in (*places, *(place / LEFT_OUT for place in places)):
            remove_leftovers(each)  # of workers that were killed
    return _result(packing, done)


def _local(destination: str | os.PathLike[str]) -> Path:
    """Returns the folder of a path; raises ConfigError for a URL."""
    given = os.fspath(destination)
    if (protocol := remote_protocol(given)) is not None:
        copying = _COPYING.get(protocol, "the store's own command")
        raise ConfigError(f"{without_secrets(given)}: give a local folder, and copy that with {copying}")
    return user_path(destination).absolute()


def _result(packing: _Packing, written: Sequence[ShardCounts]) -> PackResult:
    traits, with_mipmaps = b"".join(each.traits for each in written), sum(each.with_mipmaps for each in written)
    finished = packing.finished()
    done = [shard for shard in packing.shards if shard.name in finished]
    left_out: list[LeftOutPicture] = []
    splits = dict.fromkeys(packing.places, 0)
    for shard in done:
        left_out += (bad := read_left_out(packing.folder / shard.name))
        splits[_prefix(shard.name)] += len(shard.samples) - sum(not each.object for each in bad)
    samples = sum(splits.values())
    if samples == 0 and len(done) == len(packing.shards):
        raise NoSamplesError(
            f"none of {counted(len(left_out), 'picture')} is good: {left_out[0].name}: {left_out[0].why}"
        )
    return PackResult(
        destination=packing.folder,
        shards=tuple(shard.name for shard in done),
        missing=tuple(shard.name for shard in packing.shards if shard.name not in finished),
        written=len(written),
        samples=samples,
        splits=splits,
        bytes=sum(finished[shard.name] for shard in done),
        left_out=tuple(left_out),
        with_copies=with_mipmaps,
        too_small=len(traits) - with_mipmaps if packing.rendering.mipmaps else 0,
        reduced={name: sum(each & bit > 0 for each in traits) for name, bit in IN_PIXELS.items()},
        passed_over=packing.source.left_out_count,
        classes=packing.source.classes,
    )


def _open(
    source: PictureSource, places: Sequence[Path], classes: Sequence[str] | None, progress: bool, given: dict[str, Any]
) -> OpenedSource:
    """Opens the source, with labels numbered by `classes`, or otherwise as in the shards that are there already."""
    folder = next((place for place in places if classes is None and read_class_names(place)), None)
    found = None if folder is None else as_list(read_class_names(folder))
    try:
        return open_source(source, classes if found is None else FoundNames(found), progress, **given)
    except LabelError as error:
        if folder is None or found is None:
            raise
        raise LabelError(
            f"{error} (labels are numbered by {folder / CLASSES_FILE}, as in the other shards there)"
        ) from None


def _claim(packing: _Packing) -> Mapping[str, int]:
    """Claims the folder's shards of these prefixes for this pack, or checks that it already has them.

    Returns the names and sizes of the finished shards.
    """
    folder, source, places = packing.folder, packing.source, packing.places
    if packing.layout.val_share and (there := [*folder.glob("*.tar"), *folder.glob(_MANIFESTS)]):
        raise StateError(
            f"{folder} has {there[0].name} itself, but val_share packs into its folders {' and '.join(places)}: give "
            f"another folder, or move the shards and their pack-*.json"
        )
    for place in places.values():
        try:
            place.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the destination {place} cannot be made ({error}): give another folder") from None
        for written in (*place.glob("*.tar"), *place.glob(_MANIFESTS), *place.glob(f"{LEFT_OUT}/*")):
            if not written.is_file():
                raise StateError(f"{written} is not a regular file: remove it, or give another folder")
    finished = packing.finished()  # before the manifests, because packs write those first
    manifests = [place / MANIFEST.format(prefix) for prefix, place in places.items()]
    content = {
        "version": 1,
        "source": source.fingerprint,
        "samples": len(source.records),
        "classes": source.classes and len(source.classes),
        **asdict(packing.layout),
        **packing.rendering.recorded(),
        "shards": len(packing.shards),
    }
    text = json.dumps(content, indent=1).encode() + b"\n"
    for manifest in manifests:
        if manifest.exists():
            _check_same(manifest, manifest.read_bytes(), text)
    for place in (*places.values(), *_split_folders(folder)):
        _check_others(place, manifests, source)
    own = {shard.name for shard in packing.shards}
    for tar in finished:
        manifest = (folder / tar).with_name(MANIFEST.format(_prefix(tar)))
        if not manifest.exists() or (manifest in manifests and tar not in own):
            raise StateError(f"{folder} has tars that no pack wrote, such as {tar}: move them, or give an empty folder")
    if source.classes is not None:
        names, ids = list(source.classes), source.class_ids
        classes = names if ids is None else {"names": names, "ids": list(ids)}
        for place in places.values():
            existing = write_once(place / CLASSES_FILE, json.dumps(classes, indent=1).encode() + b"\n")
            same_names = as_list(read_class_names(place)) == source.classes
            if not same_names or (ids is not None and json.loads(existing) != classes):
                raise StateError(
                    f"{place / CLASSES_FILE} has other {'ids of classes' if same_names else 'classes'} than the source:"
                    " give another folder; if another pack has just begun there, run this again"
                )
    for manifest in manifests:
        _check_same(manifest, write_once(manifest, text), text)
    return finished


def _split_folders(folder: Path) -> list[Path]:
    """Returns the folders below a destination into which `val_share` packed; their classes are the destination's."""
    return [each.parent for each in sorted(folder.glob(f"*/{_MANIFESTS}")) if _read_manifest(each).get("val_share")]


def _prefix(shard: str) -> str:
    return PurePath(shard).name.rpartition("-")[0]


def _check_same(manifest: Path, existing: bytes, text: bytes) -> None:
    if existing != text:
        old, new = _read_manifest(manifest), json.loads(text)
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
        named = _read_manifest(manifest).get("classes") is not None
        if named != (source.classes is not None):
            theirs, ours = ("names", "bare numbers") if named else ("bare numbers", "names")
            cure = f", or `--classes {folder / CLASSES_FILE}` if they are a table's" if named else ""
            raise StateError(
                f"{manifest} is of a pack whose labels are {theirs}, but here they are {ours}: give another folder"
                f"{cure}"
            )


def _read_manifest(manifest: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(manifest.read_bytes()))
    except (ValueError, TypeError, RecursionError):
        raise StateError(f"{manifest} was not written by a pack: give another folder") from None


def _check_apart(source: PictureSource, folder: Path) -> None:
    if isinstance(source, (str, os.PathLike)):
        path = user_path(source).absolute()
        if (path == folder or path in folder.parents) and path.is_dir():
            raise ConfigError(f"the destination {folder} is in the source {path}: give a folder outside of it")


def _class_names(classes: str | os.PathLike[str] | Sequence[str] | None) -> tuple[str, ...] | None:
    if classes is None:
        return None
    names: Any = classes
    if isinstance(classes, (str, os.PathLike)):
        try:
            names = listed_names(json.loads(read_regular(user_path(classes), MOST_CLASSES_BYTES)))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"classes={os.fspath(classes)!r} cannot be read: {error}: allowed is a JSON file with a list"
            ) from None
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"classes={classes!r}: allowed is a list of names, or a JSON file with one")
    if len(set(names)) < len(names):
        raise ConfigError(f"classes={classes!r}: a name occurs twice")
    return tuple(names)
