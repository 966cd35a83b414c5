"""`check`: decodes every image of some shards as training does, and reports the faults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from gpuloader.base.cores import available_cores
from gpuloader.base.progress import progress_bar
from gpuloader.base.text import counted
from gpuloader.base.worker_threads import WorkerThreads
from gpuloader.errors import BESIDE, TarError
from gpuloader.images.arrays import admit_array
from gpuloader.images.gate import admit
from gpuloader.images.limits import RefusalError
from gpuloader.images.mipmaps import extension_of, side_of
from gpuloader.loading.argument_types import AnyCache, AnyFields, AnyPreset
from gpuloader.loading.arguments import as_value_or_default, resolve_device, resolve_fields
from gpuloader.loading.options import Cache
from gpuloader.loading.parts import cut
from gpuloader.loading.selection import Sources, resolve_sources
from gpuloader.loading.world import World
from gpuloader.recipe import Shape, load_preset
from gpuloader.shards import (
    Arena,
    EncodedImage,
    Folder,
    Index,
    LocalShard,
    Shard,
    ShardSet,
    WantedCallback,
    open_index,
    open_set,
    read_names,
    scan_to_damage,
    write_quarantine,
)
from gpuloader.shards.remote import Entry, RemoteShard, ShardCache, open_remote
from gpuloader.tools.check_targets import find_faults
from gpuloader.tools.decoder_process import Causes, DecoderProcess
from gpuloader.tools.mipmaps import mipmap_bytes, read_mipmaps
from gpuloader.tools.outputs import check_output

__all__ = ["CheckResult", "Fault", "check_shards"]

_IMAGES_PER_THREAD = 16
_READ_BYTES = 64 << 20
_SCANNING_THREADS = 8
_MOST_LACKING = 20

_Wrong: TypeAlias = list[tuple[str, str]]
"""The faults of a sample's targets: their kinds and causes."""


@dataclass(frozen=True)
class Fault:
    """One fault of some shards.

    Attributes:
        kind: "bad": training would fail on the sample. Its image cannot be decoded, a field cannot be parsed, or the
            sample is cut off at the end of a cut shard. "bad copy": a smaller copy cannot be decoded, has another size
            than its name says, or is of another picture. "broken": the shard is a damaged tar. "left out": a member is
            in no sample. "lacks .EXTENSION": samples lack a component that other samples have; copies are ignored.
            "boxes outside", "unknown labels" or "another size": targets that cannot be right.
        shard: the path of the shard; for a bad sample of a folder, the picture's path.
        key: the key of the sample, or of the first sample that lacks a component; a member's name; "" for a broken
            shard.
        offset: the byte at which the image, copy, member or damage begins; 0 in a folder.
        cause: what is wrong, in words.
        samples: how many samples have this fault.
        sample: the sample's number in the checked shards, from 0 on; None if the fault is not of one sample.
    """

    kind: str
    shard: str
    key: str
    offset: int
    cause: str
    samples: int = 1
    sample: int | None = None


@dataclass(frozen=True)
class CheckResult:
    """The result of `check_shards`.

    Attributes:
        shards, samples: how many were checked; of a broken shard, the samples before the damage.
        faults: by kind and by sample. It has at most 1,000 members left out for each shard, and at most 20 components
            that samples lack: those that the fewest lack.
        left_out_count: the number of members that are in no sample.
        reduced: as in `Info`. These are no faults.
    """

    shards: int
    samples: int
    faults: tuple[Fault, ...]
    left_out_count: int
    reduced: dict[str, int]

    @property
    def all_well(self) -> bool:
        """Whether there are no faults."""
        return not self.faults

    def of(self, kind: str) -> list[Fault]:
        """Returns the faults of this kind."""
        return [fault for fault in self.faults if fault.kind == kind]


def check_shards(
    tar: Sources,
    *,
    fields: AnyFields = (),
    preset: AnyPreset = "imagenet_train",
    quarantine: str | Path | None = None,
    cache: AnyCache = None,
    device_id: int | Literal["auto"] | None = "auto",
    progress: bool = False,
) -> CheckResult:
    """Validates and decodes every whole image as training does, in a separate process, and lists the faults.

    Training decodes only the part that a crop needs, so it may succeed on an image that is bad here.

    Args:
        tar: the shards, as GPULoader takes them; all shards of several sources are checked.
        fields: as GPULoader takes them. A sample is bad if a component cannot be parsed. Targets are compared with
            their images. Without fields, components are not read.
        preset: as GPULoader takes it; its `orientation` decides whether targets fit the stored or the upright picture.
        quarantine: a file to write the bad samples to, for GPULoader's `BadImages(known=...)`. Samples of broken shards
            are not listed, because a loader refuses such shards.
        cache: as GPULoader takes it. Shards on stores are downloaded into it, one after the other.
        device_id: the device to decode on, as GPULoader takes it.
        progress: show a bar on stderr.

    Raises:
        ConfigError: the quarantine file cannot be written.
        DataError: there are no shards or samples, a shard changes while it is checked, or a shard on a store is
            damaged.
        LoaderError: decoding fails, and the images are not the cause.
    """
    paths, _ = resolve_sources(tar, mixed=True)
    if quarantine is not None:
        check_output(quarantine)
    parsed, recipe = resolve_fields(fields, "dict"), load_preset(preset)
    device = resolve_device(device_id, World.detect())
    storing = as_value_or_default(Cache, "cache", cache)
    is_remote = any(isinstance(shard, RemoteShard) for shard in paths)
    shard_cache = ShardCache(storing.path, storing.max_bytes) if is_remote else None
    indexes, damages, entries = _open(paths, shard_cache, progress)
    index = open_set(indexes)
    bad: list[Fault] = []
    others: list[Fault] = []
    if len(index) or not damages:
        with closing(ShardSet(paths, index, entries, shard_cache)) as shards:
            shards.warn_of_hidden()
            find_wrong = partial(find_faults, shards, parsed, recipe, read_names(paths)) if parsed else None
            found, wrong, bad_mipmaps = _find(shards, find_wrong, device, progress)
            causes = dict(sorted((_cut(shards, indexes, damages) | found).items()))
            bad = [Fault("bad", *shards.locate(sample), cause, sample=sample) for sample, cause in causes.items()]
            others += [_bad_mipmap(shards, *place, cause) for place, cause in sorted(bad_mipmaps.items())]
            others += _lacking(shards)
            for sample, faults in wrong.items():
                others += [Fault(kind, *shards.locate(sample), cause, sample=sample) for kind, cause in faults]
            if quarantine is not None:
                undamaged = {sample: causes[sample] for sample in causes if shards.shard_of(sample) not in damages}
                write_quarantine(Path(quarantine), shards, undamaged)
    elif quarantine is not None:
        Path(quarantine).write_text("")  # no shard can be read
    return CheckResult(
        shards=len(paths),
        samples=len(index),
        faults=(*bad, *_broken(paths, indexes, damages), *_left_out(paths, indexes), *others),
        left_out_count=int(index.left_out_count.sum()),
        reduced=index.reduced,
    )


def _bad_mipmap(shards: ShardSet, sample: int, side: int, cause: str) -> Fault:
    extension, (shard, key, offset) = extension_of(side), shards.locate(sample)
    if offset:  # of a tar
        offset, _ = shards.index.component(sample, extension) or (0, 0)
    return Fault("bad copy", shard, key, offset, f"the .{extension}{BESIDE}{cause}", sample=sample)


def _broken(paths: Sequence[Shard], indexes: Sequence[Index], damages: Mapping[int, TarError]) -> Iterator[Fault]:
    for number, damage in damages.items():
        before = counted(len(indexes[number]), "sample")
        cause = f"{damage.problem} at byte {damage.offset}; before it, {before}"
        yield Fault("broken", str(paths[number]), "", damage.offset, cause)


def _left_out(paths: Sequence[Shard], indexes: Sequence[Index]) -> Iterator[Fault]:
    for shard, index in zip(paths, indexes, strict=True):
        for item in index.left_out:
            yield Fault("left out", str(shard), item.name, 0 if isinstance(shard, Folder) else item.offset, item.why)


def _open(
    paths: Sequence[Shard], cache: ShardCache | None, progress: bool
) -> tuple[list[Index], dict[int, TarError], dict[int, Entry]]:
    """Returns the index of each shard up to its damage, the damages, and the entries of the cache."""
    remote = {number: shard for number, shard in enumerate(paths) if isinstance(shard, RemoteShard)}
    local = {number: shard for number, shard in enumerate(paths) if not isinstance(shard, RemoteShard)}
    stored = dict(zip(remote, open_remote(list(remote.values()), cache, progress))) if cache else {}
    with ThreadPoolExecutor(_SCANNING_THREADS) as threads, progress_bar(progress) as bar:
        scans = bar.track(threads.map(_scan, local.values()), total=len(local), description="opening shards")
        scanned = dict(zip(local, scans))
    indexes = {number: index for number, (_, index) in stored.items()}
    indexes |= {number: index for number, (index, _) in scanned.items()}
    damages = {number: damage for number, (_, damage) in scanned.items() if damage is not None}
    entries = {number: entry for number, (entry, _) in stored.items()}
    return [indexes[number] for number in range(len(paths))], damages, entries


def _scan(shard: LocalShard) -> tuple[Index, TarError | None]:
    try:
        return open_index(shard), None
    except TarError:
        return scan_to_damage(Path(str(shard)))


def _find(
    shards: ShardSet, find_wrong: Callable[[int, Shape], _Wrong] | None, device_id: int | None, progress: bool
) -> tuple[dict[int, str], dict[int, _Wrong], Causes]:
    """Returns the causes of bad samples, the faults of the targets of other samples, and the causes of bad mipmaps.

    A sample is bad if validation or the decoder refuses its image, or if a field cannot be parsed.
    """
    threads = available_cores()
    batch_size = threads * _IMAGES_PER_THREAD
    bad: dict[int, str] = dict(shards.too_large)
    wrong: dict[int, _Wrong] = {}
    bad_mipmaps: Causes = {}
    sizes = shards.index.column("image_size") + mipmap_bytes(shards.index)
    compares = any(map(side_of, shards.index.extensions))
    with progress_bar(progress) as bar, closing(DecoderProcess(batch_size, threads, device_id, compares)) as decoder:
        task = bar.add_task("checking images", total=len(shards))
        for samples, images in _read(shards, cut(sizes, _READ_BYTES, 1, batch_size)):
            each = [read_mipmaps(shards, sample) if compares else ({}, {}) for sample in samples]
            found = decoder.bad([{0: image, **mipmaps} for image, (mipmaps, _) in zip(images, each, strict=True)])
            bad = {samples[row]: cause for (row, side), cause in found.items() if not side} | bad
            found |= {(row, side): cause for row, (_, large) in enumerate(each) for side, cause in large.items()}
            bad_mipmaps |= {(samples[row], side): cause for (row, side), cause in found.items() if side}
            for sample, image in zip(samples, images):
                if find_wrong is None or sample in bad:
                    continue
                try:
                    if faults := find_wrong(sample, _size(shards, sample, image)):
                        wrong[sample] = faults
                except RefusalError as refused:
                    bad[sample] = refused.cause
            bar.advance(task, len(samples))
    return bad, wrong, bad_mipmaps


def _size(shards: ShardSet, sample: int, image: EncodedImage) -> tuple[int, int]:
    height, width = (int(shards.index.at(side, np.array([sample]))[0]) for side in ("height", "width"))
    return (height, width) if height and width else (admit_array if shards.decoded else admit)(image)[1]


def _read(shards: ShardSet, batches: Sequence[slice]) -> Iterator[tuple[range, list[EncodedImage]]]:
    """Yields the images of each batch, which are valid until the next batch, and reads the next batch ahead."""
    arenas = cycle((Arena(), Arena()))

    def read(batch: slice, wanted: WantedCallback) -> tuple[range, list[EncodedImage]]:
        samples = range(batch.start, batch.stop)
        return samples, shards.read_images(np.array(samples), next(arenas), wanted)

    with closing(WorkerThreads(read, "gpuloader-check")) as thread:
        for ahead, batch in enumerate((*batches, slice(0, 0))):
            thread.put(batch)
            if ahead:
                if isinstance(outcome := thread.get(), BaseException):
                    raise outcome
                yield outcome


def _cut(shards: ShardSet, indexes: Sequence[Index], damaged: Collection[int]) -> dict[int, str]:
    """Returns the causes of cut last samples: they lack components that the sample before them has."""
    causes = {}
    for number, index in enumerate(indexes):
        cut = number in damaged or any(not item.name for item in index.left_out)
        if cut and len(index) > 1:
            before, last = (_beside(index, row) for row in (len(index) - 2, len(index) - 1))
            if missing := sorted(before - last):
                causes[shards.samples_of(number)[-1]] = (
                    f"the shard is cut after it, and it lacks .{', .'.join(missing)}"
                )
    return causes


def _beside(index: Index, row: int) -> set[str]:
    """Returns the extensions of a sample's components, except mipmaps, which small pictures lack."""
    return {extension for extension, *_ in index.components(row) if side_of(extension) is None}


def _lacking(shards: ShardSet) -> Iterator[Fault]:
    """Finds the components, other than mipmaps, that some samples lack.

    All extensions are counted at once, because a tar may have very many.
    """
    index, samples = shards.index, len(shards)
    of_component = index.column("component_extension")
    rows = np.repeat(np.arange(samples), np.diff(index.column("component_end"), prepend=0))
    is_beside = index.column("component_offset") != index.column("image_offset")[rows]
    beside = {index.extensions[number] for number in np.unique(of_component[is_beside])}
    having = dict(zip(index.extensions, np.bincount(of_component).tolist()))
    beside = {each for each in beside if side_of(each) is None}
    lacking = sorted((samples - having[each], each) for each in beside if having[each] < samples)
    for count, extension in lacking[:_MOST_LACKING]:
        first = int(index.rows_without(extension)[0])
        cause = f"{count:,} of {counted(samples, 'sample')} lack it, this one first"
        yield Fault(
            f"lacks .{extension}", str(shards.shards[shards.shard_of(first)]), index.key(first), 0, cause, count
        )
