"""`GPULoader`: shards in, batches of tensors out. The only object that changes while it runs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from torch.profiler import record_function

from gpuloader.collators import Collator, collator_of
from gpuloader.cores import available_cores
from gpuloader.errors import (
    ConfigError,
    DataError,
    DeviceError,
    LoaderError,
    StateError,
    TooManyBadImagesError,
)
from gpuloader.mixing import mix_images, soft_labels
from gpuloader.pipelines import build, disown, gate, is_decode_failure, undecodable
from gpuloader.plan import Cursor, Draws, LastBatch, Plan, Shuffle, check_epoch
from gpuloader.reader import EncodedBatch, ReadAhead, Reader
from gpuloader.recipe import Preset, load_preset
from gpuloader.sampling import CustomOrder, Sources, SubsetOf, Weights, make_sampling, resolve_sources
from gpuloader.shards import (
    Ahead,
    Arena,
    CacheStats,
    Labels,
    ShardSet,
    array_gate,
    make_labels,
    read_quarantine,
    write_quarantine,
)
from gpuloader.world import World, check_agreement

Batch: TypeAlias = Any
"""(images, labels) or a dictionary, as `output` asks."""

STATE_VERSION = 1
_ENTRIES = ("image", "label", "index", "valid", "key")
_GPU_THREADS = 8
_MOST_THREADS = 1024
_MOST_PREFETCH = 64
_log = logging.getLogger("gpuloader")


@dataclass(frozen=True)
class Stats:
    """What a loader has done since it was made.

    Attributes:
        batches: batches handed out.
        samples: samples in them, padding included.
        elapsed_seconds: time spent in loops over the loader, the loop's body included.
        waiting_seconds: the part of it that the loop waited for the loader.
        decoding_seconds: the part of that in which decoded images were waited for.
        delivering_seconds: the part in which they were handed out: labels to the device, mixing.
        reading_seconds, gating_seconds: time that the reading thread spent on those batches, beside the loop: on their
            bytes; on the gate, draws, labels and fields.
        ready_batches: batches that are read and wait for being decoded.
        cache: what the cache of shards on stores did; None where all shards are local.
        bad: the bad images met so far that stand-ins replace: sample id -> cause.
        last: the same of the last batch alone.
    """

    batches: int = 0
    samples: int = 0
    elapsed_seconds: float = 0.0
    waiting_seconds: float = 0.0
    decoding_seconds: float = 0.0
    delivering_seconds: float = 0.0
    reading_seconds: float = 0.0
    gating_seconds: float = 0.0
    ready_batches: int = 0
    cache: CacheStats | None = None
    bad: Mapping[int, str] = field(default_factory=dict)
    last: Stats | None = None

    def after(self, step: Stats) -> Stats:
        """With those of one batch more."""
        sums = {name: getattr(self, name) + getattr(step, name) for name in _SUMMED}
        return Stats(**sums, ready_batches=step.ready_batches, last=step)


_SUMMED = (
    "batches",
    "samples",
    "elapsed_seconds",
    "waiting_seconds",
    "decoding_seconds",
    "delivering_seconds",
    "reading_seconds",
    "gating_seconds",
)


class GPULoader:
    """Normalised batches from TAR shards of images, decoded and augmented by DALI.

    A batch is `(images, labels)`: images (B, 3, size, size) in the recipe's dtype and range, labels int64 (B,), both on
    `loader.device`. With `output="dict"` it is a dictionary:

        image   as above
        label   as above; None without labels
        index   (B,) int64, the sample's number in the data, on the device
        valid   (B,) bool on the device, False for padding and for stand-ins of bad images
        key     B strings, WebDataset's `__key__`
        NAME    for each of `fields`: lists of parsed JSON, text or bytes, a tensor of stacked `.npy`, or what its
                collator makes of the B components

    Which sample comes when and every random number on it is a function of (seed, epoch, sample) alone; where a sample
    can come again in an epoch, of (seed, epoch, place in the epoch). Iterating goes through an epoch: 0, then 1, and so
    on; `set_epoch` says which is next. Leaving the loop early is fine.

    Args:
        tar: a shard, a folder of `*.tar`, a glob, a brace pattern (`train-{0000..0147}.tar`), or a list of those; or
            URLs of them: s3://, gs://, hf://, http://, https://. Those are downloaded before they are needed.
            Several sources in a fixed ratio are a list of `{"tar": ..., "weight": 2}`; small ones come again and again.
        batch_size: samples of this rank in a step.
        device_id: a GPU's number; None for the CPU; "auto" for the local rank's GPU where there is one, else the CPU.
        preset: a recipe: the name of one that comes with the library, a path of a YAML file, or a `Compose`.
        preset_overrides: values to replace in it, such as `{"dtype": "float16"}`.
        shuffle: "none", "full", "block" (neighbours stay near each other, for slow disks) or "shards" (16 shards at a
            time, for stores); None takes the preset's. Or a function that gives the sample ids of an epoch, as many in
            each. `sample_weights` overrule it.
        subset: the samples to use: their ids, a slice, or a function that takes the index's columns (arrays `label`,
            `height`, `width`, `size_bytes`, `shard`) and gives a bool for each sample.
        sample_weights: how often samples come: a weight for each sample, {label: weight}, or "balanced" for all labels
            alike.
        replacement: whether a sample can come again in an epoch, with `sample_weights`.
        seed: in [0, 2**64).
        rank, world_size: None takes them from torch.distributed, else from torchrun's environment, else 0 of 1. Under
            torch.distributed all ranks must make the loader: they compare what they were given.
        last_batch: "drop", "pad" or "partial", see `gpuloader.plan.epoch`; None takes the preset's. Only the dictionary
            says which samples are padding.
        on_error: a bad image raises ("raise"), or a stand-in drawn by the plan takes its place ("replace").
        max_bad: the share of the data that may be bad under "replace", in [0, 1]; one image always may. Each rank
            counts the bad images that it met.
        quarantine: a file of images that are known to be bad, as `write_quarantine` writes it. They have stand-ins from
            the start, also where `on_error` is "raise", and do not count for `max_bad`.
        num_threads: decoding threads; None takes this process's share of the cores that it may use, on a GPU at most 8.
        prefetch: batches decoded before they are asked for; one more than that are read ahead of those.
        output: "tuple", "dict", or which of the dictionary's entries to hand out under which names, such as
            `{"image": "pixel_values", "label": "labels"}`.
        fields: extensions of components to hand out beside the image, in a dictionary; or {extension: collator}, of
            `gpuloader.collators` or a function of yours. In a batch without samples each is an empty list.
        label_from: "cls", "json:NAME", "folder", or None for images only.
        steps_per_epoch: ends each epoch after that many steps; None for all of the data.
        cache: the folder that shards from URLs are kept in, for all processes of the machine; None for one in the
            user's cache folder.
        cache_bytes: the most that they take there, at least the size of the largest; those used longest ago are
            removed. None for half of what is free there.

    Attributes:
        device: the torch device of the batches.
        preset: the recipe.
        world: which rank of how many this is.
        classes: the classes' names with `label_from="folder"`, else None.

    Raises:
        GPULoaderError: one of `gpuloader.errors`, which says what to do.
    """

    def __init__(
        self,
        tar: Sources,
        batch_size: int,
        device_id: int | Literal["auto"] | None = "auto",
        *,
        preset: str | Path | Preset = "imagenet_train",
        preset_overrides: Mapping[str, Any] | None = None,
        shuffle: Shuffle | CustomOrder | None = None,
        subset: SubsetOf | None = None,
        sample_weights: Weights | None = None,
        replacement: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        last_batch: LastBatch | None = None,
        on_error: Literal["raise", "replace"] = "raise",
        max_bad: float = 0.01,
        quarantine: str | Path | None = None,
        num_threads: int | None = None,
        prefetch: int = 2,
        output: Literal["tuple", "dict"] | Mapping[str, str] = "tuple",
        fields: Sequence[str] | Mapping[str, Collator] = (),
        label_from: str | None = "cls",
        steps_per_epoch: int | None = None,
        cache: str | Path | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        batch_size, device_id, seed = _plain(batch_size), _plain(device_id), _plain(seed)
        cache_bytes = _plain(cache_bytes)
        rank, world_size, steps_per_epoch = _plain(rank), _plain(world_size), _plain(steps_per_epoch)
        self._stream: _Stream | None = None
        self._running: object | None = None  # the token of the iterator that is valid; not that, which holds the loader
        self._unusable: str | None = None
        self.preset = load_preset(preset, preset_overrides)
        self.world = World.detect(rank, world_size)
        self._device_id = resolve_device(device_id, self.world)
        self.device = torch.device("cpu") if self._device_id is None else torch.device("cuda", self._device_id)
        self._triage = partial(undecodable, self.preset, device_id=self._device_id)
        self._replace_bad = _one_of("on_error", on_error, ("raise", "replace")) == "replace"
        self._fields = _check_fields(fields, output)
        self._names = _output_names(output, tuple(self._fields))
        self._prefetch = _one_to(_MOST_PREFETCH, "prefetch", _plain(prefetch))
        self._num_threads = (
            _default_threads(self._device_id, self.world) if num_threads is None else _plain(num_threads)
        )
        _one_to(_MOST_THREADS, "num_threads", self._num_threads)
        if isinstance(max_bad, bool) or not isinstance(max_bad, (int, float)) or not 0 <= max_bad <= 1:
            raise ConfigError(f"max_bad={max_bad!r}: allowed is a share of the data in [0, 1]")
        self._max_bad = max_bad
        if cache_bytes is not None and not (_is_integer(cache_bytes, 2**63) and cache_bytes):
            raise ConfigError(f"cache_bytes={cache_bytes!r}: allowed is an integer of at least 1, or None")
        paths, sources = resolve_sources(tar)
        folder = None if cache is None else Path(cache).expanduser()
        self._shards = ShardSet.open(paths, self.world.local_rank == 0, cache=folder, cache_bytes=cache_bytes)
        self._decoded = self._shards.decoded
        self._known_bad = {} if quarantine is None else read_quarantine(Path(quarantine), self._shards)
        self._labels = make_labels(self._shards, label_from)
        self.classes = None if self._labels is None else self._labels.classes
        order = self.preset.shuffle if shuffle is None else shuffle
        sampling = make_sampling(
            self._shards,
            self._labels,
            order,
            sources=sources,
            subset=subset,
            sample_weights=sample_weights,
            replacement=replacement,
        )
        self._plan = Plan(
            samples=len(self._shards) if sampling is None else sampling.length,
            batch_size=batch_size,
            rank=self.world.rank,
            world_size=self.world.world_size,
            shuffle="none" if callable(order) else order,
            sampling=sampling,
            last_batch=self.preset.last_batch if last_batch is None else last_batch,
            seed=seed,
            steps_per_epoch=steps_per_epoch,
        )
        _check_mixing(self.preset, self._plan, self._labels)
        if self.world.world_size > 1:  # naming the data goes through all of its index
            same = ("samples", "batch_size", "last_batch", "steps_per_epoch")
            check_agreement(self.world, {**self._identity(), **{name: getattr(self._plan, name) for name in same}})
        self._cursor = self._start = Cursor()
        self._bad: dict[int, str] = {}
        self._suspects: frozenset[int] = frozenset()
        self._stats = Stats()
        _alive.add(self)

    def __len__(self) -> int:
        """The steps of a whole epoch, the same on every rank; a resumed epoch has those that are left of it."""
        return self._plan.steps()

    def __iter__(self) -> Iterator[Batch]:
        """The next epoch, or the rest of the one that `load_state_dict` restored. It begins with its first batch."""
        return self._from(None)

    def _from(self, start: Cursor | None) -> Iterator[Batch]:
        """An iteration from a place, whatever was restored; None is `__iter__`'s."""
        self._check_open()
        return _Epoch(self, start)

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next iteration runs; a running one is not disturbed.

        An epoch that `load_state_dict` restored goes on where it was left.
        """
        epoch = check_epoch(epoch)
        if epoch != self._start.epoch:
            self._start = Cursor(epoch)
        if self._running is None:
            self._cursor = self._start

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, in plain JSON types: counts what was handed out, nothing that was only prefetched.

        The same on every rank, but for the quarantine: the bad images that this rank met, which is for the record and
        steers nothing. So any rank's state will do.
        """
        return {
            **self._identity(),
            "epoch": self._cursor.epoch,
            "delivered": self._cursor.delivered,
            "quarantine": [[sample, cause] for sample, cause in sorted(self._bad.items())],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on exactly where the state was taken, on any number of ranks, at any batch size.

        Raises:
            StateError: the state belongs to another version, dataset, recipe, seed or shuffle; it names both values.
        """
        self._check_open()
        missing = sorted({*self._identity(), "epoch", "delivered", "quarantine"} - set(state))
        if missing:
            raise StateError(f"this is no state of a GPULoader: it lacks {', '.join(missing)}")
        for name, mine in self._identity().items():
            if state[name] != mine:
                raise StateError(
                    f"the state has {name}={state[name]!r}, this loader has {name}={mine!r}: "
                    f"make the loader as it was when the state was saved, or start anew without the state"
                )
        cursor, samples = Cursor(state["epoch"], state["delivered"]), self._plan.samples
        if not (_is_integer(cursor.epoch, 2**32) and _is_integer(cursor.delivered, samples + 1)):
            raise StateError(f"the state's place {cursor} lies outside the data of {samples} samples")
        quarantine = _checked_quarantine(state["quarantine"], len(self._shards))
        self._close_stream()
        self._running = None
        self._cursor = self._start = cursor
        self._bad = quarantine
        self._suspects |= frozenset(quarantine)

    def stats(self) -> Stats:
        """What the loader has done since it was made."""
        return replace(self._stats, cache=self._shards.cache_stats(), bad=dict(self._bad))

    def write_quarantine(self, path: str | Path) -> None:
        """Writes the images that are known to be bad, those met so far and those of the file that was given.

        JSON Lines of shard, key, offset and cause: a list of what to mend, or the `quarantine` of the next run.
        """
        write_quarantine(Path(path), self._shards, {**self._known_bad, **self._bad})

    def close(self) -> None:
        """Ends threads and closes files; the loader cannot be used again. Closing twice is fine."""
        self._unusable = self._unusable or "is closed"
        self._close_stream()
        if hasattr(self, "_shards"):
            self._shards.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A loader that has not begun is made anew where it is unpickled, at the same place."""
        self._check_open()
        if self._stream is not None:
            raise LoaderError("a loader that has begun cannot be pickled: send its state_dict() to a new one")
        return _made_anew, (self._arguments, self.state_dict())

    def __enter__(self) -> GPULoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self.close()

    def _identity(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "dataset": self._shards.fingerprint,
            "recipe": self.preset.fingerprint,
            "seed": self._plan.seed,
            "shuffle": self._plan.shuffle,
            "sampling": None if self._plan.sampling is None else self._plan.sampling.fingerprint,
            "known_bad": hashlib.blake2b(json.dumps(sorted(self._known_bad)).encode(), digest_size=16).hexdigest(),
        }

    def _check_open(self) -> None:
        if self._unusable is not None:
            raise LoaderError(f"this loader {self._unusable}: make a new one")

    def _next(self, epoch: _Epoch) -> Batch:
        """The next batch of the running epoch; StopIteration at its end."""
        self._check_open()
        if not epoch.begun:
            self._begin(epoch)
        if epoch.token is not self._running:
            raise LoaderError("this iterator is over: a newer one was begun, or a state was loaded; begin a new one")
        if not self._plan.steps(self._cursor.delivered):
            self._cursor, self._running = self._start, None
            raise StopIteration
        started = time.perf_counter()
        with record_function("gpuloader: decode"):
            batch, images = self._decoded_batch()
        decoded = time.perf_counter()
        with record_function("gpuloader: deliver"):
            result = self._hand_out(batch, images)
        after = self._plan.after(self._cursor)
        now = time.perf_counter()
        step = Stats(
            batches=1,
            samples=len(batch.ids),
            elapsed_seconds=now - (epoch.handed_out_at or started),
            waiting_seconds=now - started,
            decoding_seconds=decoded - started,
            delivering_seconds=now - decoded,
            reading_seconds=batch.reading_seconds,
            gating_seconds=batch.gating_seconds,
            ready_batches=0 if self._stream is None else self._stream.ready_batches,
        )
        self._stats = self._stats.after(step)
        epoch.handed_out_at = now
        self._cursor = after  # last: an interrupt before it gives the batch again, one behind it comes after the batch
        return result

    def _begin(self, epoch: _Epoch) -> None:
        """Makes an iteration the running one. Doing so again, where an interrupt came between, changes nothing."""
        epoch.start = epoch.start or self._start
        self._cursor, self._start = epoch.start, Cursor(epoch.start.epoch + 1)
        self._running = epoch.token
        epoch.begun = True

    def _decoded_batch(self) -> tuple[EncodedBatch, list[torch.Tensor]]:
        """The batch at the cursor. Where decoding fails, it is read again, with an eye on the images to blame."""
        while True:
            # The cursor may have been set elsewhere, and an interrupt may have hit between the stream's step and ours.
            if self._stream is not None and self._stream.cursor != self._cursor:
                self._close_stream()
            stream = self._stream or self._open_stream()
            undecoded = None
            try:
                batch, images = stream.next()
                self._quarantine(batch.bad)
            except _DecodeError as failure:
                undecoded = failure.batch
                message = failure.message
                self._close_stream()
            except BaseException:
                # Whatever was under way is lost; the cursor is not: the next call starts from it again.
                self._close_stream()
                raise
            if undecoded is None:
                return batch, images
            failed = frozenset(undecoded.ids[list(self._triage(undecoded.images, undecoded.arrays))].tolist())
            if failed <= self._suspects:  # not the images', or what triage decides would not be final
                raise RuntimeError(message)
            self._suspects |= failed

    def _quarantine(self, bad: Mapping[int, str]) -> None:
        for sample, cause in bad.items():
            if sample not in self._bad:
                self._bad[sample] = cause
                place = self._shards.place(sample)
                _log.warning("bad image replaced: %s, key %r at byte %d: %s", *place, cause)
        if len(self._bad) > max(1, self._max_bad * len(self._shards)):
            sample, cause = next(reversed(self._bad.items()))
            place = self._shards.place(sample)
            raise TooManyBadImagesError(
                f"{len(self._bad)} of {len(self._shards)} images are bad, more than max_bad={self._max_bad} allows; "
                f"the last one is {place.key!r} in {place.shard}: {cause}. Mend the shards, or allow more"
            )

    def _hand_out(self, batch: EncodedBatch, views: list[torch.Tensor]) -> Batch:
        if self.preset.layout == "channels_last":
            views = [images.permute(0, 3, 1, 2) for images in views]
        labels = None if batch.labels is None else self._on_device(batch.labels)
        if self.preset.mix is not None and batch.mixing is not None and labels is not None:
            mix_images(views[0], batch.mixing)
            weight = self._on_device(batch.mixing.weight)
            labels = soft_labels(labels, weight, self.preset.mix.num_classes, self.preset.mix.label_smoothing)
        images = views[0] if len(views) == 1 else views
        if self._names is None:
            return images, labels
        values: dict[str, Callable[[], Any]] = {
            "image": lambda: images,
            "label": lambda: labels,
            "index": lambda: self._on_device(batch.ids),
            "valid": lambda: self._on_device(batch.valid),
            "key": lambda: [self._shards.key(int(sample)) for sample in batch.ids],
            **{name: partial(self._field, name, batch.fields.get(name, [])) for name in self._fields},
        }
        return {name: values[entry]() for entry, name in self._names.items()}

    def _field(self, name: str, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, Mapping):
            return {part: self._field(f"{name}[{part!r}]", its_value) for part, its_value in value.items()}
        if isinstance(value, torch.Tensor):
            return value.to(self.device, non_blocking=True)
        if not isinstance(value, np.ndarray):
            return value
        try:
            return self._on_device(value)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"the field {name}: torch takes no array like {value.dtype} {value.shape}: {error}"
            ) from None

    def _on_device(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        # CUDA stages a small copy from pageable memory before it returns, so this one needs no waiting.
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _make_reader(self, ahead: Ahead | None = None) -> Reader:
        return Reader(
            self._plan,
            self._shards,
            self.preset,
            array_gate if self._decoded else gate,
            self._triage,
            self._labels,
            fields=self._fields,
            replace_bad=self._replace_bad,
            known_bad=self._known_bad,
            suspects=self._suspects,
            ahead=ahead,
        )

    def _open_stream(self) -> _Stream:
        ahead = self._shards.ahead(self._plan)
        reader = self._make_reader(ahead)
        self._stream = _Stream(
            reader,
            ReadAhead(reader, self._plan, self._cursor, depth=self._prefetch + 1),
            ahead,
            self._plan,
            self.preset,
            num_threads=self._num_threads,
            device_id=self._device_id,
            prefetch=self._prefetch,
            largest_image=self._shards.largest_image,
            decoded=self._decoded,
        )
        return self._stream

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None  # in this order: an interrupt must not leave a closed one behind
        if stream is not None:
            stream.close()


def _made_anew(arguments: Mapping[str, Any], state: Mapping[str, Any]) -> GPULoader:
    loader = GPULoader(**arguments)
    loader.load_state_dict(state)
    return loader


_alive: WeakSet[GPULoader] = WeakSet()


def _leave_to_the_parent() -> None:
    """In a forked child."""
    for loader in list(_alive):
        if loader._stream is not None:
            disown(loader._stream.pipeline)
        loader._stream = None
        loader._shards.renew_lock()
        loader._unusable = "belongs to the parent of this forked process"


os.register_at_fork(after_in_child=_leave_to_the_parent)


class _Epoch:
    """One iteration over a loader.

    Attributes:
        token: says whether it is the one that runs.
        start: the place of its first batch, where that is known.
        begun: whether that was asked for.
        handed_out_at: the time of the last batch.
    """

    def __init__(self, loader: GPULoader, start: Cursor | None) -> None:
        self._loader: GPULoader | None = loader
        self.token = object()
        self.start = start
        self.begun = False
        self.handed_out_at: float | None = None

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Batch:
        if self._loader is None:
            raise StopIteration
        try:
            return self._loader._next(self)
        except StopIteration:
            self._loader = None
            raise


class _DecodeError(Exception):
    """DALI failed on a batch."""

    def __init__(self, batch: EncodedBatch, message: str) -> None:
        super().__init__(batch, message)
        self.batch = batch
        self.message = message


class _Stream:
    """A running pipeline: the batches from a cursor on, over the epochs' ends, so that nothing stalls there.

    Attributes:
        cursor: the place of the batch that `next` gives next.
        pipeline: DALI's.
    """

    def __init__(
        self,
        reader: Reader,
        batches: ReadAhead,
        ahead: Ahead | None,
        plan: Plan,
        preset: Preset,
        *,
        num_threads: int,
        device_id: int | None,
        prefetch: int,
        largest_image: tuple[int, int],
        decoded: bool,
    ) -> None:
        self._plan = plan
        self._reader = reader
        self._batches = batches
        self._ahead = ahead
        self._feed = _Feed(batches)
        self.cursor = batches.cursor
        one = np.ones(1, np.int64)
        self.pipeline = build(
            preset,
            preset.arrays(Draws(seed=0, epoch=0, ids=one), one, one),
            self._feed,
            batch_size=plan.batch_size,
            num_threads=num_threads,
            device_id=device_id,
            prefetch=prefetch,
            largest_image=largest_image,
            decoded=decoded,
        )
        self._views = [str(view.number) for view in preset.each_view]
        self._iterator = DALIGenericIterator(self.pipeline, self._views, prepare_first_batch=False)
        self._empty = partial(_empty_images, preset, device_id)

    def next(self) -> tuple[EncodedBatch, list[torch.Tensor]]:
        """The next batch and its images; raises what reading it raised, or _DecodeError."""
        first, end = self._plan.share(self.cursor)
        if first == end:  # DALI takes no batch without samples
            batch, images = self._reader.read(self.cursor, Arena()), self._empty(self.cursor.epoch)
        else:
            images = self._run()
            batch = self._feed.in_flight.popleft()
            self._batches.release(batch)
        self.cursor = self._plan.at_step(self._plan.after(batch.cursor))
        return batch, images

    @property
    def ready_batches(self) -> int:
        """The batches that are read and wait for being decoded."""
        return self._batches.ready

    def close(self) -> None:
        """Ends the threads and drops the pipeline."""
        self._batches.close()
        if self._ahead is not None:
            self._ahead.close()
        del self._iterator, self.pipeline

    def _run(self) -> list[torch.Tensor]:
        # What is raised must not hold DALI's frames, which hold the pipeline: hence outside of `except`.
        failure: Exception
        try:
            outputs = next(self._iterator)[0]
        except StopIteration:
            failure = self._feed.failure or LoaderError("DALI ended before the plan's last step")
        except RuntimeError as error:
            failure = error.with_traceback(None)
            if is_decode_failure(str(error)) and self._feed.in_flight:
                failure = _DecodeError(self._feed.in_flight[0], str(error))
        else:
            return [outputs[view] for view in self._views]
        failure.__context__ = None
        raise failure


class _Feed:
    """What the pipeline calls for its next batch. Apart from `_Stream`, so that no cycle holds the pipeline.

    Attributes:
        in_flight: the batches that were read and not handed out yet, in order.
        failure: what ended the feed.
    """

    def __init__(self, batches: ReadAhead) -> None:
        self._batches = batches
        self.in_flight: deque[EncodedBatch] = deque()
        self.failure: Exception | None = None

    def __call__(self) -> tuple[Any, ...]:
        """The encoded images and the arrays of the next batch.

        DALI bears no exception here but StopIteration, on which it still gives out the batches before. So a failure
        waits in `failure` until the caller has had those.
        """
        try:
            batch = self._batches.next()
        except Exception as error:  # noqa: BLE001 - kept, and raised by _Stream when its turn comes
            # Less the frames of this thread, here and in `next`: they hold DALI's, which called, and so the pipeline.
            trace = error.__traceback__
            for _ in range(2):
                trace = trace and trace.tb_next
            self.failure = error.with_traceback(trace)
            raise StopIteration from None
        self.in_flight.append(batch)
        return (batch.images, *batch.arrays.values())


def _empty_images(preset: Preset, device_id: int | None, epoch: int) -> list[torch.Tensor]:
    dtype, device = getattr(torch, preset.dtype), "cpu" if device_id is None else f"cuda:{device_id}"
    shapes = ((0, 3, *shape) if preset.layout == "nchw" else (0, *shape, 3) for shape in preset.shapes(epoch))
    return [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]


def _check_mixing(preset: Preset, plan: Plan, labels: Labels | None) -> None:
    if preset.mix is None:
        return
    if labels is None:
        raise ConfigError("the recipe mixes samples, and label_from=None gives no labels to mix: take another recipe")
    if plan.batch_size % 2:
        raise ConfigError(f"batch_size={plan.batch_size}: the recipe mixes neighbours, so allowed are even numbers")
    if plan.last_batch == "partial":
        raise ConfigError('last_batch="partial" would part neighbours that the recipe mixes: use "drop" or "pad"')


def resolve_device(device_id: object, world: World) -> int | None:
    """A GPU's number, or None for the CPU, of what `device_id` of a loader may be.

    Raises:
        ConfigError: it cannot be meant.
        DeviceError: there is no such GPU.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device_id == "auto":
        return world.local_rank % count if count else None
    if device_id is None:
        return None
    if isinstance(device_id, bool) or not isinstance(device_id, int) or device_id < 0:
        raise ConfigError(f'device_id={device_id!r}: allowed are a GPU\'s number, None for the CPU and "auto"')
    if count == 0:
        raise DeviceError(f"device_id={device_id} but no CUDA device; use device_id=None for the CPU")
    if device_id >= count:
        raise DeviceError(f"device_id={device_id} but there are {count} CUDA devices, numbered from 0")
    return device_id


def _default_threads(device_id: int | None, world: World) -> int:
    cores = max(1, available_cores() // world.local_world_size)
    return cores if device_id is None else min(cores, _GPU_THREADS)


def _checked_quarantine(entries: Any, samples: int) -> dict[int, str]:  # noqa: ANN401
    """Sample id -> cause, from a state's list of pairs of those."""
    pairs: Sequence[Any] = entries if isinstance(entries, (list, tuple)) else [None]
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 and _is_integer(pair[0], samples) for pair in pairs):
        raise StateError(f"the state's quarantine is no list of [sample, cause] with samples among the {samples}")
    return {sample: str(cause) for sample, cause in pairs}


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Numpy's integers as Python's, so that they can be compared and kept as JSON."""
    return value.item() if isinstance(value, np.integer) else value


def _is_integer(value: object, end: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r}: allowed are {', '.join(map(repr, allowed))}")
    return value


def _one_to(most: int, name: str, value: int) -> int:
    if not _is_integer(value, most + 1) or value == 0:
        raise ConfigError(f"{name}={value!r}: allowed is an integer from 1 to {most}")
    return value


def _output_names(output: object, fields: tuple[str, ...]) -> dict[str, str] | None:
    """The names in the batch by what stands under them; None for a tuple."""
    entries = (*_ENTRIES, *fields)
    if output == "tuple":
        return None
    if output == "dict":
        return {entry: entry for entry in entries}
    if not isinstance(output, Mapping) or not output or not set(output) <= set(entries):
        raise ConfigError(
            f'output={output!r}: allowed are "tuple", "dict" and a mapping of some of {", ".join(entries)} to names'
        )
    if len(set(output.values())) < len(output):
        raise ConfigError(f"output={output!r} gives two entries the same name: each needs a name of its own")
    return dict(output)


def _check_fields(fields: Sequence[str] | Mapping[str, Collator], output: object) -> dict[str, Collator]:
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise ConfigError(f"fields={fields!r}: give a list of extensions, such as ['json'], or {{extension: collator}}")
    if fields and output == "tuple":
        raise ConfigError(f'fields={list(fields)!r} are handed out with output="dict" only')
    given = fields if isinstance(fields, Mapping) else dict.fromkeys(fields)
    collators = {}
    for extension, collator in given.items():
        if not isinstance(extension, str):
            raise ConfigError(f"fields: {extension!r} is no extension: allowed are those of components, such as 'json'")
        name = extension.lower().removeprefix(".")
        if name in _ENTRIES:
            raise ConfigError(f"fields={list(fields)!r}: {name} stands for something else in the batch")
        if not (collator is None or callable(collator)):
            raise ConfigError(f"fields: {collator!r} for {extension!r}: allowed is a collator, see gpuloader.collators")
        collators[name] = collator or collator_of(name)
    return collators
