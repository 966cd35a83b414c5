"""`check`: decodes every image of some shards as training would, reports what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import TarError
from gpuloader.helpers.cores import available_cores
from gpuloader.helpers.progress import progress_bar
from gpuloader.helpers.read_ahead import ReadAhead
from gpuloader.helpers.text import counted
from gpuloader.images.arrays import admit_array
from gpuloader.images.gate import admit
from gpuloader.images.limits import Refused
from gpuloader.loading.argument_types import AnyCache, AnyFields, AnyPreset
from gpuloader.loading.arguments import resolve_device, resolve_fields
from gpuloader.loading.options import Cache
from gpuloader.loading.selection import Sources, resolve_sources
from gpuloader.loading.world import World
from gpuloader.recipe import load_preset
from gpuloader.recipe.part import as_value
from gpuloader.shards import (
    Arena,
    EncodedImage,
    Folder,
    Index,
    LocalShard,
    Shard,
    ShardSet,
    Wanted,
    open_index,
    open_set,
    read_names,
    scan_to_damage,
    write_quarantine,
)
from gpuloader.shards.index import LEFT_OUT_KEPT
from gpuloader.shards.pictures import ARRAY_EXTENSION, is_picture
from gpuloader.shards.remote import Entry, RemoteShard, ShardCache, open_remote
from gpuloader.shards.shard_set import Location
from gpuloader.tools.check_targets import TargetCheck
from gpuloader.tools.decoder_process import DecoderProcess, runs
from gpuloader.tools.outputs import check_output

__all__ = ["CheckResult", "Fault", "check_shards"]

_IMAGES_PER_THREAD = 16
_READ_BYTES = 64 << 20
_SCANNING_THREADS = 8
_MOST_LACKING = 20

_Wrong: TypeAlias = list[tuple[str, str]]
"""What is wrong with the targets of a sample: kinds of faults, and causes."""


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with some shards.

    Attributes:
        kind: "bad": training would fail on the sample, as its image cannot be decoded, a field cannot be parsed, or it
            is cut off by the end of a cut shard. "broken": the shard is a damaged tar. "left out": a member is in no
            sample; in a folder also a second picture of a sample. "lacks .EXTENSION": samples lack a component that
            others have. "boxes outside", "unknown labels" or "another size": targets that cannot be right.
        shard: its path; for a bad sample of a folder, that of the picture.
        key: of the sample, the first one that lacks a component; a member's name; "" for a broken shard.
        offset: of the image, of the member or of the damage in bytes; 0 in a folder.
        cause: in words.
        samples: how many have this fault.
        sample: its number in the shards that were checked, from 0 on; None if the fault is not of one sample.
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
    """What is wrong with some shards.

    Attributes:
        shards, samples: how many were checked; broken shards count with the samples before the damage.
        faults: by kind and by sample. Of members left out, the first 1,000 of each shard; of components that samples
            lack, at most 20, those that fewest lack.
        left_out_count: how many members are in no sample.
    """

    shards: int
    samples: int
    faults: tuple[Fault, ...]
    left_out_count: int

    @property
    def all_well(self) -> bool:
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
    """Decodes every image whole, with the gate and the decoder of training, in a separate process.

    Training decodes only the part that a crop needs, so it may succeed on an image that is bad here.

    Args:
        tar: as GPULoader takes it; of several sources all shards are checked.
        fields: as GPULoader takes them. A component that cannot be parsed makes its sample bad, and targets are
            compared with their images; without fields, components are not read.
        preset: as GPULoader takes it; its `orientation` says in which picture targets count.
        quarantine: a file to write the bad samples to, for GPULoader's `BadImages(known=...)`. It does not list those
            of broken shards, because a loader refuses such shards.
        cache: as GPULoader takes it; for shards on stores, which are downloaded one after the other.
        device_id: the device to decode on, as GPULoader takes it.
        progress: show a bar on stderr.

    Raises:
        ConfigError: the quarantine cannot be written there.
        DataError: there are no shards or samples, a shard changes while it is checked, or a shard on a store is
            damaged.
        LoaderError: images cannot be decoded, but the images are not the cause.
    """
    paths, _ = resolve_sources(tar)
    if quarantine is not None:
        check_output(quarantine)
    parsed, recipe = resolve_fields(fields, "dict"), load_preset(preset)
    device = resolve_device(device_id, World.detect())
    storing = as_value(Cache, "cache", {} if cache is None else cache)
    is_remote = any(isinstance(shard, RemoteShard) for shard in paths)
    shard_cache = ShardCache(storing.path, storing.max_bytes) if is_remote else None
    shards = _scan(paths, shard_cache, progress)
    if not any(shard.samples for shard in shards) and any(shard.damage for shard in shards):  # nothing can be read
        if quarantine is not None:
            Path(quarantine).write_text("")
        return _report(shards, {}, {}, {})
    entries = {place: shard.entry for place, shard in enumerate(shards) if shard.entry}
    with closing(ShardSet(paths, open_set([shard.index for shard in shards]), entries, shard_cache)) as shard_set:
        targets = TargetCheck(shard_set, parsed, recipe, read_names(paths)) if parsed else None
        bad, wrong = _find(shard_set, targets, device, progress)
        for shard in shards:
            if cause := _cut(shard):
                bad.setdefault(shard.samples[-1], cause)
        if quarantine is not None:
            undamaged = [sample for shard in shards if not shard.damage for sample in shard.samples]
            write_quarantine(
                Path(quarantine), shard_set, {sample: bad[sample] for sample in undamaged if sample in bad}
            )
        return _report(shards, bad, wrong, {sample: shard_set.locate(sample) for sample in sorted({*bad, *wrong})})


def _report(
    shards: Sequence[_Shard], bad: Mapping[int, str], wrong: Mapping[int, _Wrong], located: Mapping[int, Location]
) -> CheckResult:
    """Returns what was found, by sample and by shard."""
    left_out = [
        Fault("left out", str(shard.path), item.name, 0 if isinstance(shard.path, Folder) else item.offset, item.why)
        for shard in shards
        for item in shard.index.left_out
    ]
    second = [
        Fault("left out", str(folder), f"./{folder.listing.name(number)}", 0, "its key has another picture, its image")
        for shard in shards
        if isinstance(folder := shard.path, Folder)
        for number in folder.files_at(shard.index.column("component_offset")[_second_pictures(shard)]).tolist()
    ]
    return CheckResult(
        shards=len(shards),
        samples=sum(len(shard.index) for shard in shards),
        faults=(
            *(Fault("bad", *located[sample], bad[sample], sample=sample) for sample in sorted(bad)),
            *(_broken(shard, shard.damage) for shard in shards if shard.damage is not None),
            *left_out,
            *second[:LEFT_OUT_KEPT],
            *_lacking(shards),
            *(
                Fault(kind, *located[sample], said, sample=sample)
                for sample, found in wrong.items()
                for kind, said in found
            ),
        ),
        left_out_count=sum(shard.index.left_out_count.item(0) for shard in shards) + len(second),
    )


def _broken(shard: _Shard, damage: TarError) -> Fault:
    before = counted(len(shard.index), "sample")
    cause = f"{damage.problem} at byte {damage.offset}; before it, {before}"
    return Fault("broken", str(shard.path), "", damage.offset, cause)


@dataclass(frozen=True)
class _Shard:
    """A shard, the index of its members before the damage, the damage, and the ids of its samples.

    The entry is that of a shard on a store in the cache.
    """

    path: Shard
    index: Index
    damage: TarError | None
    samples: range
    entry: Entry | None


def _scan(paths: Sequence[Shard], cache: ShardCache | None, progress: bool) -> list[_Shard]:
    remote = [shard for shard in paths if isinstance(shard, RemoteShard)]
    on_stores = dict(zip(remote, open_remote(remote, cache, progress))) if cache else {}

    def open_one(shard: Shard) -> tuple[Index, TarError | None, Entry | None]:
        if isinstance(shard, RemoteShard):
            return on_stores[shard][1], None, on_stores[shard][0]
        return *_open(shard), None

    with ThreadPoolExecutor(_SCANNING_THREADS) as threads, progress_bar(progress) as bar:
        opened = list(bar.track(threads.map(open_one, paths), total=len(paths), description="opening shards"))
    ends = accumulate(len(index) for index, *_ in opened)
    return [
        _Shard(path, index, damage, range(end - len(index), end), entry)
        for path, (index, damage, entry), end in zip(paths, opened, ends)
    ]


def _open(shard: LocalShard) -> tuple[Index, TarError | None]:
    try:
        return open_index(shard), None
    except TarError:
        return scan_to_damage(Path(str(shard)))


def _find(
    shards: ShardSet, targets: TargetCheck | None, device_id: int | None, progress: bool
) -> tuple[dict[int, str], dict[int, _Wrong]]:
    """Finds the bad samples, with the cause, and what is wrong with the targets of others.

    Bad are those whose images the gate or the decoder refuses, or whose fields cannot be parsed.
    """
    threads = available_cores()
    batch_size = threads * _IMAGES_PER_THREAD
    bad: dict[int, str] = dict(shards.too_large)
    wrong: dict[int, _Wrong] = {}
    with progress_bar(progress) as bar, DecoderProcess(batch_size, threads, device_id) as decoder:
        task = bar.add_task("checking images", total=len(shards))
        for samples, images in _read(shards, runs(shards.index.column("image_size").tolist(), batch_size, _READ_BYTES)):
            bad = {samples[row]: cause for row, cause in decoder.bad(images).items()} | bad
            for sample, image in zip(samples, images):
                if targets is None or sample in bad:
                    continue
                try:
                    if found := targets.find(sample, _size(shards, sample, image)):
                        wrong[sample] = found
                except Refused as refused:
                    bad[sample] = refused.cause
            bar.advance(task, len(samples))
    return bad, wrong


def _size(shards: ShardSet, sample: int, image: EncodedImage) -> tuple[int, int]:
    height, width = (int(shards.index.at(side, np.array([sample]))[0]) for side in ("height", "width"))
    return (height, width) if height and width else (admit_array if shards.decoded else admit)(image)[1]


def _read(shards: ShardSet, batches: Iterator[range]) -> Iterator[tuple[range, list[EncodedImage]]]:
    """Yields the images of each batch, valid until the next batch is asked for; that one is read at the same time."""
    arenas = cycle((Arena(), Arena()))

    def read(batch: range, arena: Arena, wanted: Wanted) -> tuple[range, list[EncodedImage]]:
        return batch, shards.read_images(np.array(batch), arena, wanted)

    yield from ReadAhead((partial(read, batch, next(arenas)) for batch in batches), 1, "gpuloader-check")


def _cut(shard: _Shard) -> str | None:
    """Says why the last sample of a cut shard is cut, too: it lacks components that the one before it has."""
    index = shard.index
    cut = shard.damage is not None or any(not item.name for item in index.left_out)
    if not cut or len(index) < 2:
        return None
    before, last = ({name for name, *_ in index.components(row)} for row in (len(index) - 2, len(index) - 1))
    missing = sorted(before - last)
    return f"the shard is cut after it, and it lacks .{', .'.join(missing)}" if missing else None


def _lacking(shards: Sequence[_Shard]) -> Iterator[Fault]:
    """Finds the components that some samples lack. It counts all extensions at once: a tar may have very many."""
    having: Counter[str] = Counter()
    beside: set[str] = set()
    for shard in shards:
        index = shard.index
        of_component = index.column("component_extension")
        having.update(dict(zip(index.extensions, np.bincount(of_component).tolist())))
        is_beside = _are_beside(index)
        is_beside[_second_pictures(shard)] = False
        beside.update(index.extensions[number] for number in np.unique(of_component[is_beside]))
    samples = sum(len(shard.index) for shard in shards)
    lacking = sorted((samples - having[each], each) for each in beside if having[each] < samples)
    for count, extension in lacking[:_MOST_LACKING]:
        found = ((shard, shard.index.rows_without(extension)) for shard in shards)
        shard, rows = next((shard, rows) for shard, rows in found if len(rows))
        cause = f"{count:,} of {counted(samples, 'sample')} lack it, this one first"
        yield Fault(f"lacks .{extension}", str(shard.path), shard.index.key(int(rows[0])), 0, cause, count)


def _are_beside(index: Index) -> NDArray[np.bool_]:
    """Returns for each component whether it is beside the image of its sample."""
    rows = np.repeat(np.arange(len(index)), np.diff(index.column("component_end"), prepend=0))
    return np.asarray(index.column("component_offset") != index.column("image_offset")[rows])


def _second_pictures(shard: _Shard) -> NDArray[np.int64]:
    """Returns the components of a folder that are pictures beside an image, and too few to be a field.

    Several files called KEY.mask.png are a field, however few they are.
    """
    index, of_component = shard.index, shard.index.column("component_extension")
    is_beside = _are_beside(index)
    counts = np.bincount(of_component[is_beside], minlength=len(index.extensions)).tolist()
    few = [
        number
        for number, extension in enumerate(index.extensions)
        if isinstance(shard.path, Folder) and counts[number] <= (1 if "." in extension else len(index) // 2)
        if is_picture(f"1.{extension}") and not extension.endswith(ARRAY_EXTENSION)
    ]
    return np.flatnonzero(is_beside & np.isin(of_component, few))
