"""`GPULoader`: shards in, batches of tensors out. The only object that changes while it runs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from torch.profiler import record_function

from gpuloader.collators import Collator
from gpuloader.errors import (
    ConfigError,
    DataError,
    DeviceError,
    LoaderError,
    TooManyBadImagesError,
)
from gpuloader.helpers.units import bytes_said
from gpuloader.loading.arguments import (
    check_fields,
    check_mixing,
    decoder_knobs,
    default_threads,
    is_integer,
    one_of,
    one_to,
    output_names,
    plain,
    refuse_unknown,
    resolve_device,
    resolve_shuffle,
)
from gpuloader.loading.blending import mix_images, soft_labels
from gpuloader.loading.decoding import DecodedBatches, is_out_of_memory
from gpuloader.loading.memory import estimate_memory
from gpuloader.loading.one_thread import enter
from gpuloader.loading.reader import EncodedBatch, ReadAhead, Reader
from gpuloader.loading.selection import CustomOrder, Sources, SubsetOf, Weights, make_sampling, resolve_sources
from gpuloader.loading.state import check_identity, check_place, check_quarantine, describe_run
from gpuloader.loading.stats import Stats
from gpuloader.loading.world import World, agree
from gpuloader.pipelines import disown, gate, undecodable
from gpuloader.plan import Cursor, LastBatch, Plan, Shuffle, check_epoch
from gpuloader.recipe import Preset, load_preset
from gpuloader.shards import (
    Ahead,
    ShardSet,
    array_gate,
    make_labels,
    read_quarantine,
    user_path,
    write_quarantine,
)

Batch: TypeAlias = Any
"""(images, labels) or a dictionary, as `output` asks."""

STATE_VERSION = 1
_MOST_THREADS = 1024
_MOST_PREFETCH = 64
_log = logging.getLogger("gpuloader")


class GPULoader:
    """Normalised batches from TAR shards of images, decoded and augmented by DALI.

    A batch is `(images, labels)`: images (B, 3, size, size) in the recipe's dtype and range, labels int64 (B,), both on
    `loader.device`. With `output="dict"` it is a dictionary:

        image   as above
        label   as above; None without labels
        index   (B,) int64, the sample's number in the data, on the device
        valid   (B,) bool on the device, False for padding and for replacements of bad images
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
        device_id: a GPU's number, or "cuda:0"; "cuda" for the local rank's GPU; None or "cpu" for the CPU; a
            torch.device of those; "auto" for the local rank's GPU where there is one, else the CPU.
        preset: a recipe: the name of one that comes with the library, a path of a YAML file, or a `Compose`.
        preset_overrides: values to replace in it, such as `{"dtype": "float16"}`.
        shuffle: "none" (or False), "full" (or True), "block" (neighbours stay near each other, for slow disks) or
            "shards" (16 shards at a time, for stores); None takes the preset's. Or a function that gives the sample ids
            of an epoch, as many in each. `sample_weights` overrule it.
        subset: the samples to use: their ids, or keys; a file of keys (a `Path`, or text that ends in ".txt"); a
            pattern of keys, such as "cat/*"; a slice; or a function that takes the index's columns (arrays `label`,
            `height`, `width`, `size_bytes`, `shard`) and gives a bool for each sample.
        sample_weights: how often samples come: a weight for each sample, {label: weight}, or "balanced" for all labels
            alike.
        replacement: whether a sample can come again in an epoch, with `sample_weights`.
        seed: in [0, 2**64).
        rank, world_size: None takes them from torch.distributed, else from torchrun's environment, else 0 of 1. Under
            torch.distributed all ranks must make the loader: they compare what they were given.
        last_batch: "drop", "pad" or "partial", see `gpuloader.plan.epoch`; None takes the preset's. Only the dictionary
            says which samples are padding.
        on_error: a bad image raises ("raise"), or a replacement drawn by the plan takes its place ("replace").
        max_bad: the share of the data that may be bad under "replace", in [0, 1]; one image always may. Each rank
            counts the bad images that it met.
        quarantine: a file of images that are known to be bad, as `write_quarantine` writes it. They have
            replacements from the start, also where `on_error` is "raise", and do not count for `max_bad`.
        num_threads: decoding threads; None takes this process's share of the cores that it may use, on a GPU at most 8.
        hw_decoder_load: the share of the JPEGs, in [0, 1], that a GPU's JPEG engines decode, where there are any; None
            takes DALI's default, 0.65. It plays no part on a CPU.
        hybrid_huffman_threshold: the pixels above which the GPU decodes a part of the Huffman codes, of JPEGs that no
            engine decodes; None takes DALI's default, 1,000,000. It plays no part on a CPU.
        prefetch: batches decoded before they are asked for; one more than that are read ahead of those.
        output: "tuple", "dict", or which of the dictionary's entries to hand out under which names, such as
            `{"image": "pixel_values", "label": "labels"}`.
        fields: extensions of components to hand out beside the image, in a dictionary; or {extension: collator}, of
            `gpuloader.collators` or a function of yours. In a batch without samples each is an empty list.
        label_from: "cls", "json:NAME", "folder", or None for images only.
        classes: the names of the labels, label i naming the i-th: they number labels that are text, and folders. None
            takes those of `classes.json` beside the shards, and the sorted names of folders.
        steps_per_epoch: ends each epoch after that many steps; None for all of the data.
        cache: the folder that shards from URLs are kept in, for all processes of the machine; None for one in the
            user's cache folder.
        cache_bytes: the most that they take there, at least the size of the largest; those used longest ago are
            removed. None for half of what is free there.

    Attributes:
        batch_size: samples of this rank in a step.
        dataset: the data as a whole: `len(loader.dataset)` samples, and its `classes`.
        device: the torch device of the batches.
        num_samples: samples of an epoch over all ranks, as `subset` and `sample_weights` make it.
        preset: the recipe.
        world: which rank of how many this is.
        classes: the classes' names, label i naming the i-th; None where they are not known.

    Raises:
        GPULoaderError: one of `gpuloader.errors`, which says what to do.
    """

    def __init__(
        self,
        tar: Sources,
        batch_size: int,
        device_id: int | str | torch.device | None = "auto",
        *,
        preset: str | Path | Preset = "imagenet_train",
        preset_overrides: Mapping[str, Any] | None = None,
        shuffle: Shuffle | bool | CustomOrder | None = None,
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
        hw_decoder_load: float | None = None,
        hybrid_huffman_threshold: int | None = None,
        prefetch: int = 2,
        output: Literal["tuple", "dict"] | Mapping[str, str] = "tuple",
        fields: Sequence[str] | Mapping[str, Collator] = (),
        label_from: str | None = "cls",
        classes: Sequence[str] | None = None,
        steps_per_epoch: int | None = None,
        cache: str | Path | None = None,
        cache_bytes: int | None = None,
        **unknown: NoReturn,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "unknown")}
        refuse_unknown(unknown, arguments)
        self._arguments = arguments
        batch_size, device_id, seed = plain(batch_size), plain(device_id), plain(seed)
        cache_bytes = plain(cache_bytes)
        rank, world_size, steps_per_epoch = plain(rank), plain(world_size), plain(steps_per_epoch)
        self._stream: DecodedBatches | None = None
        self._running: object | None = None  # the token of the iterator that is valid; not that, which holds the loader
        self._unusable: str | None = None
        self._inside: dict[str, int] = {}
        self.preset = load_preset(preset, preset_overrides)
        self.world = World.detect(rank, world_size)
        self._device_id = resolve_device(device_id, self.world)
        self.device = torch.device("cpu") if self._device_id is None else torch.device("cuda", self._device_id)
        self._replace_bad = one_of("on_error", on_error, ("raise", "replace")) == "replace"
        self._fields = check_fields(fields, output)
        self._names = output_names(output, tuple(self._fields))
        self._prefetch = one_to(_MOST_PREFETCH, "prefetch", plain(prefetch))
        num_threads = None if num_threads is None else one_to(_MOST_THREADS, "num_threads", plain(num_threads))
        self._decoder_knobs = decoder_knobs(hw_decoder_load, plain(hybrid_huffman_threshold))
        if isinstance(max_bad, bool) or not isinstance(max_bad, (int, float)) or not 0 <= max_bad <= 1:
            raise ConfigError(f"max_bad={max_bad!r}: allowed is a share of the data in [0, 1]")
        self._max_bad = max_bad
        if cache_bytes is not None and not (is_integer(cache_bytes, 2**63) and cache_bytes):
            raise ConfigError(f"cache_bytes={cache_bytes!r}: allowed is an integer of at least 1, or None")
        paths, sources = resolve_sources(tar)
        folder = None if cache is None else user_path(cache)
        self._shards = ShardSet.open(paths, self.world.local_rank == 0, cache=folder, cache_bytes=cache_bytes)
        self._decoded = self._shards.decoded
        self._known_bad = {} if quarantine is None else read_quarantine(Path(quarantine), self._shards)
        self._labels = make_labels(self._shards, label_from, classes)
        self.classes = None if self._labels is None else self._labels.classes
        order = self.preset.default_shuffle if shuffle is None else resolve_shuffle(shuffle)
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
            last_batch=self.preset.default_last_batch if last_batch is None else last_batch,
            seed=seed,
            steps_per_epoch=steps_per_epoch,
        )
        check_mixing(self.preset, self._plan, self._labels)
        if self.world.world_size > 1:  # naming the data goes through all of its index
            same = ("samples", "batch_size", "last_batch", "steps_per_epoch")
            facts = {**self._identity(), **{name: getattr(self._plan, name) for name in same}}
            self.world = agree(self.world, facts)
        self._num_threads = num_threads or default_threads(self._device_id, self.world)
        self._triage = partial(undecodable, self.preset, device_id=self._device_id, num_threads=self._num_threads)
        self._cursor = self._start = Cursor()
        self._bad: dict[int, str] = {}
        self._suspects: set[int] = set()  # the streams add to it
        self._stats = Stats()
        _alive.add(self)

    def __len__(self) -> int:
        """The steps of a whole epoch, the same on every rank; a resumed epoch has those that are left of it."""
        return self._plan.steps()

    def __repr__(self) -> str:
        plan, preset = self._plan, self._arguments["preset"]
        recipe = preset if isinstance(preset, (str, Path)) else type(preset).__name__
        order: str = "a function" if callable(self._arguments["shuffle"]) else plan.shuffle
        if self._arguments["sample_weights"] is not None:
            order = "by weights"
        return (
            f"GPULoader({self.num_samples} samples, {len(self)} steps of {self.batch_size}, {self.device}, "
            f"recipe {recipe}, shuffle {order}, last batch {plan.last_batch}, rank {plan.rank} of {plan.world_size})"
        )

    @property
    def num_samples(self) -> int:
        return self._plan.samples

    @property
    def batch_size(self) -> int:
        return self._plan.batch_size

    @property
    def dataset(self) -> Dataset:
        return Dataset(len(self._shards), self.classes)

    def __getitem__(self, place: object) -> NoReturn:
        """An error: batches come in order, and torch's `DataLoader` takes whatever has this method for a dataset."""
        raise LoaderError(
            "a GPULoader has no items by number: loop over it, as in `for images, labels in loader`. It takes the "
            "place of torch's DataLoader and its dataset, so do not put it into a DataLoader"
        )

    def __next__(self) -> NoReturn:
        raise LoaderError("a GPULoader is no iterator: loop over it, or call next() on one, epoch = iter(loader)")

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
            "described": self._described,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on exactly where the state was taken, on any number of ranks, at any batch size.

        Raises:
            StateError: the state belongs to another version, dataset, recipe, seed or shuffle; it names what differs.
        """
        self._restore(*self._checked(state))

    def _checked(self, state: object) -> tuple[Cursor, dict[int, str]]:
        """The place and the bad images of a state of this run; changes nothing."""
        self._check_open()
        state = check_identity(state, self._identity(), self._described, self._shards)
        place = check_place(state, "delivered", lambda _: self._plan.samples)
        return Cursor(*place), check_quarantine(state["quarantine"], len(self._shards))

    def _restore(self, cursor: Cursor, quarantine: dict[int, str]) -> None:
        self._close_stream()
        self._running = None
        self._cursor = self._start = cursor
        self._bad = quarantine
        self._suspects |= set(quarantine)

    def stats(self) -> Stats:
        """What the loader has done since it was made."""
        return replace(self._stats, cache=self._shards.cache_stats(), bad=dict(self._bad))

    def write_quarantine(self, path: str | Path) -> None:
        """Writes the images that are known to be bad, those met so far and those of the file that was given.

        JSON Lines of shard, key, offset and cause: a list of what to repair, or the `quarantine` of the next run.
        """
        write_quarantine(Path(path), self._shards, {**self._known_bad, **self._bad})

    def close(self) -> None:
        """Ends threads and closes files; the loader cannot be used again. Closing twice is fine."""
        self._unusable = self._unusable or "is closed"
        self._close_stream()
        if hasattr(self, "_shards"):
            self._shards.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A loader that has not begun is made again where it is unpickled, at the same place."""
        self._check_open()
        if self._stream is not None:
            raise LoaderError("a loader that has begun cannot be pickled: send its state_dict() to a new one")
        return _make_again, (self._arguments, self.state_dict())

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

    @cached_property
    def _described(self) -> dict[str, Any]:
        return describe_run(self.preset, self._shards)

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
        check_epoch(epoch.start.epoch)
        self._cursor, self._start = epoch.start, Cursor(epoch.start.epoch + 1)
        self._running = epoch.token
        epoch.begun = True

    def _decoded_batch(self) -> tuple[EncodedBatch, list[torch.Tensor]]:
        """The batch at the cursor."""
        # The cursor may have been set elsewhere, and an interrupt may have hit between the stream's step and ours.
        if self._stream is not None and self._stream.cursor != self._cursor:
            self._close_stream()
        try:
            batch, images = (self._stream or self._open_stream()).next()
            self._quarantine(batch.bad)
        except BaseException as error:
            # Whatever was under way is lost; the cursor is not: the next call starts from it again.
            self._close_stream()
            if isinstance(error, RuntimeError) and is_out_of_memory(str(error)):
                raise DeviceError(self._lacking_memory(str(error))) from None
            raise
        return batch, images

    def _lacking_memory(self, message: str) -> str:
        height, width = self._shards.largest_image
        batch_size = self._plan.batch_size
        needed = estimate_memory(self._shards, self.preset, "", batch_size, self._prefetch)
        said = next(line for line in message.splitlines() if is_out_of_memory(line))
        return (
            f"{self.device} has no memory left for batch_size={batch_size}, prefetch={self._prefetch} and images of up "
            f"to {width}x{height} pixels, the decoder's size hint: this loader needs about "
            f"{bytes_said(needed.output_bytes)} for finished batches and {bytes_said(needed.decoded_bytes or 0)} for "
            f"decoded images. Take a smaller batch_size or prefetch, or smaller images (gpuloader pack --max-size). "
            f"DALI says: {said.strip()}"
        )

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
                f"the last one is {place.key!r} in {place.shard}: {cause}. Repair the shards, or allow more"
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
            whole=self._decoded and self._device_id is None,
            ahead=ahead,
        )

    def _open_stream(self) -> DecodedBatches:
        ahead = self._shards.ahead(self._plan)
        reader = self._make_reader(ahead)
        self._stream = DecodedBatches(
            reader,
            ReadAhead(reader, self._plan, self._cursor, depth=self._prefetch + 1),
            ahead,
            self._plan,
            self.preset,
            self._triage,
            self._suspects,
            num_threads=self._num_threads,
            device_id=self._device_id,
            prefetch=self._prefetch,
            largest_image=self._shards.largest_image,
            decoder_knobs=self._decoder_knobs,
            decoded=self._decoded,
        )
        return self._stream

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None  # in this order: an interrupt must not leave a closed one behind
        if stream is not None:
            stream.close()


def _make_again(arguments: Mapping[str, Any], state: Mapping[str, Any]) -> GPULoader:
    loader = GPULoader(**arguments)
    loader.load_state_dict(state)
    return loader


_alive: WeakSet[GPULoader] = WeakSet()


def _leave_to_the_parent() -> None:
    """In a forked child."""
    for loader in list(_alive):
        if loader._stream is not None and loader._stream.pipeline is not None:
            disown(loader._stream.pipeline)
        loader._stream = None
        loader._shards.renew_lock()
        loader._unusable = "belongs to the parent of this forked process"


os.register_at_fork(after_in_child=_leave_to_the_parent)


@dataclass(frozen=True)
class Dataset:
    """The data of a loader as a whole.

    Attributes:
        num_samples: all that the shards have, whatever a `subset` leaves out; also its `len`.
        classes: the names of the labels, where they are known.
    """

    num_samples: int
    classes: tuple[str, ...] | None

    def __len__(self) -> int:
        return self.num_samples


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
        loader = self._loader
        if loader is None:
            raise StopIteration
        enter(loader._inside)
        try:
            return loader._next(self)
        except StopIteration:
            self._loader = None
            raise
        finally:
            loader._inside = {}  # not by a call: an interrupt would come between the epoch's end and the loop's
