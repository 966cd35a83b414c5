"""`GPULoader`: delivers batches of tensors from shards, and keeps the state of the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from inspect import unwrap
from pathlib import Path
from typing import Any, Generic, Literal, overload

from torch.profiler import record_function
from typing_extensions import Never, TypeVar

from gpuloader.base.forking import at_fork
from gpuloader.base.values import as_python_integer
from gpuloader.chain.batch import Batch as ChainBatch
from gpuloader.errors import ConfigError, LoaderError
from gpuloader.loading import argument_types as types
from gpuloader.loading.arguments import refuse_unknown
from gpuloader.loading.delivery import B_co, Batch, Images, Labels, deliver
from gpuloader.loading.digest import digest_of
from gpuloader.loading.explaining import ExplainedSample, explain_batch
from gpuloader.loading.facts import LoaderFacts
from gpuloader.loading.iteration import CloseableMixin, Iteration, Progress, Resumption
from gpuloader.loading.loader_chain import LoaderChain, StepDecoder, lack_of_memory, make_chain
from gpuloader.loading.quarantine import Quarantine
from gpuloader.loading.resolving import resolve
from gpuloader.loading.run import ResumePoint, Run
from gpuloader.loading.selection import Sources
from gpuloader.loading.stats import Stats
from gpuloader.loading.warning import warn
from gpuloader.plan import Cursor, LastBatch
from gpuloader.shards import write_quarantine

# The type of a loader has the types of `output` and `fields`; the overloads of `__iter__` derive the batch from them.
# So `__init__` needs no overloads, and type checkers name a wrong argument instead of all overloads.
Output_co = TypeVar("Output_co", covariant=True, default=types.AnyOutput)
Fields_co = TypeVar("Fields_co", covariant=True, default=types.AnyFields)
Output = TypeVar("Output", bound=types.AnyOutput, default=None)
Fields = TypeVar("Fields", bound=types.AnyFields, default=tuple[()])
Made = TypeVar("Made")


class GPULoader(LoaderFacts, CloseableMixin, Generic[B_co, Output_co, Fields_co]):
    """A data loader for images in TAR shards or folders. DALI decodes and augments the images.

    A batch is `(images, labels)`: images (B, 3, size, size) in the recipe's dtype and range, labels int64 (B,), both on
    `loader.device`. With `fields` or `output="dict"` it is a dictionary, a `Batch`:

        image   as above
        label   as above; None without labels
        index   (B,) int64 on the device, the sample's number in the data
        valid   (B,) bool on the device, False for padding and for replacements of bad images
        key     B strings, WebDataset's `__key__`
        original_size, crop, target_size
                only with buckets of one size each, (B, 2) int64: height, width of the stored picture; top, left of the
                delivered image in the resized picture, after a flip; height, width of the delivered image
        size    (B, 2) int64, heights and widths, only with targets (then `original_size`, too) or if the recipe's
                `batch` allows images of different sizes
        NAME    one entry for each of `fields`: a list of parsed JSON, text or bytes, a tensor of stacked `.npy`, or
                the result of its collator for the B components

    The order of the samples and every random number depend only on (seed, epoch, sample). If a sample can occur twice
    in an epoch, they depend on (seed, epoch, position in the epoch), so each copy is augmented differently.

    Each loop over the loader is one epoch: 0, then 1, and so on. `set_epoch` chooses the epoch of the next loop. You
    may leave the loop early.

    Args:
        tar: a shard, a folder of `*.tar`, a glob, a brace pattern (`train-{0000..0147}.tar`), or a list of these.
            Each can be a URL: s3://, gs://, hf://, http://, https://; its shards are downloaded ahead of use. To mix
            several sources in a fixed ratio, pass a list of `{"tar": ..., "weight": 2}`; small sources are repeated. A
            weight can be `{epoch: weight}`, such as `{0: 1, 10: 3}`.
        batch_size: the number of samples of this rank in a step.
        device_id: a GPU's number or "cuda:0"; "cuda" for the local rank's GPU; None or "cpu" for the CPU; a
            torch.device for one of these; "auto" for the local rank's GPU if there is one, otherwise the CPU.
        preset: the recipe: the name of a preset, the path of a YAML file, a `Compose`, `{name: overrides}` as in YAML,
            such as `{"imagenet_train": {"RandomResizedCrop": {"size": 160}}}`, or a recipe's keys, such as
            `{"transforms": [...]}`.
        shuffle: "none" (or False), "full" (or True), "block" (neighbours stay near each other, for slow disks) or
            "shards" (each node reads its own shards, for stores). None means "full" if the recipe uses random numbers,
            otherwise "none". For a custom order, pass a function that takes the epoch and returns its sample ids, the
            same number in each epoch. With weights in `sampling`, omit `shuffle`: the weights determine the order.
        last_batch: "drop" skips the incomplete last step. "pad" fills it. "equal" fills it until all ranks have the
            same number of samples. "partial" splits its samples between the ranks, see `gpuloader.plan.epoch`. None
            means "drop" if the recipe uses random numbers, otherwise "partial"; with buckets "pad". `valid` in the
            dictionary marks padding; a tuple does not.
        seed: an integer in [0, 2**64).
        output: "tuple"; "dict"; a tuple of entries, such as `("index", "image", "label")`; a mapping that selects
            entries and renames them, such as `{"image": "pixel_values", "label": "labels"}`; or a function that takes
            the dictionary and returns the batch, called in the thread of the loop. None means "dict" with `fields`,
            otherwise "tuple".
        label_from: the source of the labels: "cls", "json:NAME", "folder", "folder:top", or None for no labels. "auto"
            is the first of "cls", "folder" and None that the data has. "default" is "auto" for folders of pictures and
            "cls" for shards; with `fields`, it is None if no sample has a `.cls` or is in a folder. A `LabelFrom` can
            also name the classes.
        fields: the components to deliver beside the image, in a dictionary: a list of extensions; or
            {extension: collator}, with a collator of `gpuloader.collators` or your own function; or {name: field}, with
            a `Field` or `OneOf`, or with `Boxes`, `Mask` or `Keypoints`, which are transformed with the image. As in
            YAML, a field may be a mapping: `{"Mask": {"source": "png"}}`. In a batch without samples, a field that is
            not a target is an empty list. Each selected sample must have these components, except for fields with
            `required=False`. `Sampling(require=...)` skips samples that lack one.
        sampling: a `Sampling`: a subset, weights, the number of steps in an epoch, aspect-ratio buckets.
        on_error: "raise" raises an error for a bad image, or a field that cannot be parsed. "replace" delivers another
            sample in its place, chosen by the plan. "skip" drops bad images and padding, so batches can be shorter or
            empty. If the recipe uses no random numbers, "replace" needs an `output` with `valid`. A `BadImages` also
            limits the share of bad images, and lists known ones.
        decoder: a `Decoder`: threads, prefetch, and how a GPU decodes.
        cache: a `Cache`: the folder for shards from URLs, and its maximum size.
        world: a `World`: this rank and the number of ranks. None takes them from torch.distributed, otherwise from
            torchrun's environment; without either, this is rank 0 of 1. Under torch.distributed, all ranks must make
            the loader, because they compare their arguments. If several ranks need the same batches, or only some ranks
            make the loader, use `World.from_mesh(mesh, names)`, `World.from_group(group)`, or a mesh of one dimension.

    Raises:
        GPULoaderError: a subclass from `gpuloader.errors`. The message says what to do.

    Example:
        >>> from gpuloader import GPULoader
        >>> loader = GPULoader("shards/", 8, "cpu", preset="cifar10_eval")
        >>> loader
        GPULoader(40 samples, 5 steps of 8, cpu, recipe cifar10_eval, shuffle none, last batch partial, rank 0 of 1)
        >>> for images, labels in loader:
        ...     assert images.shape == (8, 3, 32, 32) and labels.shape == (8,)
        >>> loader.stats().samples
        40
    """

    @refuse_unknown
    def __init__(
        self: GPULoader[Any, Output, Fields],
        tar: Sources,
        batch_size: int,
        device_id: types.AnyDevice = "auto",
        *,
        preset: types.AnyPreset = "imagenet_train",
        shuffle: types.AnyShuffle = None,
        last_batch: LastBatch | None = None,
        seed: int = 0,
        output: Output = None,  # type: ignore[assignment]  # its default says the same
        label_from: types.AnyLabels = "default",
        fields: Fields = (),  # type: ignore[assignment]
        sampling: types.AnySampling = None,
        on_error: types.OnError = "raise",
        decoder: types.AnyDecoder = None,
        cache: types.AnyCache = None,
        world: types.AnyWorld = None,
    ) -> None:
        # By name, as the signature has them; so it comes first, before other local names.
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self._unusable: str | None = None
        self._fresh = resolve(self._arguments)
        self._run = self._fresh
        self._progress = Progress()
        self._quarantine = Quarantine(self._fresh)
        self._chain: LoaderChain | None = None
        self._chain_at: Cursor | None = None  # of its next batch; None before the first, and while it runs
        self._steps: StepDecoder | None = None
        warn(self._fresh)
        self._stats = Stats()
        at_fork(self, GPULoader._leave_to_the_parent)

    @overload
    def __iter__(self: GPULoader[Any, Never, Any]) -> Iterator[Any]: ...  # where `output` is Any

    @overload
    def __iter__(self: GPULoader[Any, Literal["tuple"] | None, tuple[()]]) -> Iterator[tuple[Images, Labels]]: ...

    @overload
    def __iter__(self: GPULoader[Any, Literal["dict"], tuple[()]]) -> Iterator[Batch]: ...

    @overload
    def __iter__(self: GPULoader[Any, Literal["tuple", "dict"] | None, tuple[()]]) -> Iterator[Any]: ...  # one of them

    @overload
    def __iter__(self: GPULoader[Any, Literal["dict"] | Mapping[str, str] | None, Any]) -> Iterator[dict[str, Any]]: ...

    @overload
    def __iter__(self: GPULoader[Any, tuple[str, ...] | list[str], Any]) -> Iterator[tuple[Any, ...]]: ...

    @overload
    def __iter__(self: GPULoader[Any, Callable[[dict[str, Any]], Made], Any]) -> Iterator[Made]: ...

    @overload
    def __iter__(self) -> Iterator[B_co]: ...

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the next epoch, or over the rest of the epoch that `load_state_dict` restored.

        The epoch begins when you ask for its first batch.
        """
        self._check_open()
        return _LoaderEpoch(self._progress, self._next)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the run in plain JSON types: the position after the last delivered batch.

        Save the state of one rank only: it is the same on every rank, except for `quarantine`. This is a record of the
        bad images that this rank met; it does not change how a run resumes.
        """
        return {
            **self._run.identity,
            **self._run.plan.state(self._progress.cursor),
            **self._run.left_out_in_state,
            "quarantine": [[sample, cause] for sample, cause in sorted(self._quarantine.bad.items())],
            "described": self._run.described,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state: the next iteration continues exactly where the state was taken.

        The number of ranks and the batch size may differ. With buckets, their product must divide the bucket batch
        (`quantum`) of the state. Shards may have been appended to the data if the state is from the beginning of an
        epoch; otherwise the shards must be the same.

        Args:
            state: the result of `state_dict`.

        Raises:
            StateError: the state belongs to another version, dataset, recipe, seed or sampling, or its bucket batch
                does not allow this number of ranks and batch size. The message names the difference.
        """
        _, take = self.check_state(state)
        take()

    def check_state(self, state: Mapping[str, Any]) -> Resumption:
        """Validates a state; returns the number of steps in an epoch, and a function that resumes from the state."""
        resumed = self._fresh.resume(state)
        return resumed.run.plan.steps, partial(self._go_on, resumed)

    def seek(self, epoch: int, step: int = 0, *, ranks: int | None = None) -> None:
        """Moves to a step: the next iteration starts there. A running iteration ends.

        Args:
            epoch: in [0, 2**32). Epochs before a loaded state's are those of this loader without the state.
            step: in [0, len(loader)), counted in this loader's steps from the epoch's beginning, also after a state of
                other ranks and batch sizes.
            ranks: the number of ranks that divided the same global batch when the steps were counted; None for these.
                Only the last steps of `last_batch="partial"` depend on it.

        Raises:
            ConfigError: there is no such epoch or step, or the ranks do not divide the global batch.

        Example:
            >>> from gpuloader import GPULoader
            >>> loader = GPULoader("shards/", 8, "cpu", output="dict")
            >>> loader.seek(3, 2)
            >>> len([*loader])
            3
        """
        self._go_on(self._run.seek(self._fresh, epoch, step, ranks))

    @overload
    def at(self, epoch: int, step: int) -> B_co: ...

    @overload
    def at(self, epoch: Mapping[str, Any]) -> B_co: ...

    def at(self, epoch: int | Mapping[str, Any], step: int | None = None) -> Any:
        """Returns the batch that the loop of this rank gets, or got, at a step; it moves nothing.

        `at(epoch, step)` counts as `seek` does. `at(state)` returns the batch that follows a state.

        The first call takes the time and memory of a first batch, and keeps the memory until `close`. Own code runs in
        the calling thread. Bad images are handled as in the loop, and are not counted; downloads count in
        `stats().cache`.

        Args:
            epoch: the epoch, or the result of `state_dict`.
            step: the step; omit it for a state.

        Raises:
            ConfigError: there is no such epoch or step.
            StateError: the state does not belong to this loader.
            GPULoaderError: what the loop raises at this step.

        Example:
            >>> from gpuloader import GPULoader
            >>> loader = GPULoader("shards/", 8, "cpu", output="dict")
            >>> first = next(iter(loader))
            >>> loader.at(0, 0)["key"] == first["key"]
            True
        """
        return deliver(*self._decode_step(epoch, step))

    def explain(self, epoch: int | Mapping[str, Any], step: int | None = None) -> list[ExplainedSample]:
        """Returns the samples of the batch that `at` returns, in the order of its rows, and how each was made.

        It decodes the batch, so it knows which images are bad, and what replaces them.

        Args:
            epoch: the epoch, or the result of `state_dict`, as for `at`.
            step: the step; omit it for a state.

        Raises:
            GPULoaderError: as `at`.

        Example:
            >>> from gpuloader import GPULoader
            >>> loader = GPULoader("shards/", 8, "cpu", preset="cifar10")
            >>> sample = loader.explain(3, 2)[0]
            >>> [view] = sample.views
            >>> sample.key, sample.label, [step.transform for step in view.steps]
            ('000031', 1, ['Resize', 'RandomCrop', 'RandomHorizontalFlip'])
        """
        return explain_batch(*self._decode_step(epoch, step))

    def stats(self) -> Stats:
        """Returns the statistics of the loader since it was created."""
        return replace(self._stats, cache=self._run.shards.cache_stats(), bad=dict(self._quarantine.bad))

    def write_quarantine(self, path: str | Path) -> None:
        """Writes all known bad images to a file: images met so far, and images listed in `BadImages(known=...)`.

        The file is JSON Lines with shard, key, offset and cause. Use it to repair the data, or pass it to the next run
        as `BadImages(known=...)`.
        """
        write_quarantine(Path(path), self._fresh.shards, {**self._fresh.known_bad, **self._quarantine.bad})

    def close(self) -> None:
        """Stops threads, closes files and frees memory. The loader cannot be used again. Closing twice is allowed."""
        self._unusable = self._unusable or "is closed"
        self._end_chain()
        if self._steps is not None:
            self._steps.close()
        self._run.shards.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles a loader that has not started: unpickling makes a new loader at the same cursor."""
        self._check_open()
        if self._chain is not None:
            raise LoaderError("a loader that has begun cannot be pickled: send its state_dict() to a new one")
        return _make_again, (self._arguments, self.state_dict())

    def __del__(self, _at_end: Callable[[], bool] = sys.is_finalizing) -> None:  # at the end, modules are empty
        if hasattr(self, "_chain_at") and not _at_end():
            self.close()

    def _check_open(self) -> None:
        if self._unusable is not None:
            raise LoaderError(f"this loader {self._unusable}: make a new one")

    def _next(self, epoch: _LoaderEpoch) -> Any:  # noqa: ANN401
        """Returns the next batch of the running epoch; None at its end."""
        self._check_open()
        self._progress.begin(epoch)
        cursor, run = self._progress.cursor, self._run
        if not run.plan.steps_left(cursor):
            self._progress.cursor, self._progress.running = self._progress.start, None
            return None
        started = time.perf_counter()
        with record_function("gpuloader: decode"):
            try:
                chain = self._chain_from(cursor)
                # None while the step runs: if an interrupt ends it, nobody knows which batches DALI has.
                self._chain_at = None
                batch = chain.end.next()
                assert batch is not None  # as the epoch has steps left
                bad = {sample: cause for sample, cause in batch.bad.items() if not run.expects(sample, cause)}
                self._quarantine.add(bad, len(run.shards))
                after = run.plan.after(cursor)
                self._chain_at = run.plan.at_step(after)
            except BaseException as error:
                # All batches in flight are lost, but not the cursor: the next call starts from it again.
                self._end_chain()
                if (lack := lack_of_memory(run, error)) is not None:
                    raise lack from None
                raise
        decoded = time.perf_counter()
        with record_function("gpuloader: deliver"):
            result = deliver(run, chain.collate(batch) if chain.collate else batch)
        now = time.perf_counter()
        step = Stats(
            batches=1,
            samples=int(batch.stays.sum()),
            digest=digest_of(batch),
            elapsed_seconds=now - (epoch.delivered_at or started),
            waiting_seconds=now - started,
            decoding_seconds=decoded - started,
            own_code_seconds=batch.own_code_seconds,
            delivering_seconds=now - decoded,
            reading_seconds=batch.reading_seconds,
            gating_seconds=batch.step.gating_seconds,
            ready_batches=chain.ahead.ready,
        )
        self._stats = self._stats.after(step)
        epoch.delivered_at = now
        # The last line: an interrupt before it repeats this batch, an interrupt after it continues with the next one.
        self._progress.cursor = after
        return result

    def _decode_step(self, epoch: int | Mapping[str, Any], step: int | None) -> tuple[Run, ChainBatch]:
        """Returns a step for `at`, decoded by a chain of its own, and the run that it belongs to."""
        self._check_open()
        place = as_python_integer(epoch)
        if isinstance(place, Mapping) and step is not None:
            raise ConfigError(f"step={step!r}: a state says its step, so leave step out")
        if step is None and not isinstance(place, int):
            found = self._fresh.resume(place)
            found = replace(found, cursor=found.run.plan.at_step(found.cursor))
        else:
            found = self._run.seek(self._fresh, place, step)
        self._progress.enter()
        try:
            if self._steps is None:
                self._steps = StepDecoder(self._run)
            return found.run, self._steps.step(found.run, found.cursor)
        except RuntimeError as error:
            if (lack := lack_of_memory(self._run, error)) is not None:
                raise lack from None
            raise
        finally:
            self._progress.inside = {}

    def _chain_from(self, cursor: Cursor) -> LoaderChain:
        """Returns the chain, which goes on at this cursor, with the same pipeline if it runs."""
        if self._chain is not None and (self._chain_at is None or self._chain.run is not self._run):
            self._end_chain()
        if self._chain is None:
            self._chain = make_chain(self._run, self._quarantine.suspects)
        if self._chain_at != cursor:
            self._chain_at = None
            self._chain.end.seek(cursor)
        return self._chain

    def _end_chain(self) -> None:
        """Ends threads, processes and the pipeline. After an interrupt, it can be called again."""
        self._chain_at = None
        if self._chain is not None:
            self._chain.end.close()
            self._chain = None

    def _leave_to_the_parent(self) -> None:
        """Releases what belongs to the parent, in a forked child."""
        self._chain = self._chain_at = self._steps = None
        self._run.shards.renew_lock()
        self._unusable = "belongs to the parent of this forked process"

    def _go_on(self, resumed: ResumePoint) -> None:
        """Goes on from a validated state or place."""
        self._check_open()
        own, bad = self._progress, self._quarantine.bad if resumed.bad is None else resumed.bad
        if resumed.run is not self._run:
            self._end_chain()
        self._quarantine.suspects.update(bad)
        # No calls from here on, so that an interrupt comes before all of these lines or after them.
        own.running = None
        own.cursor = own.start = resumed.cursor
        self._run = resumed.run
        self._quarantine.bad = bad


# Type checkers read the type variables. jsonargparse, which LightningCLI uses, reads these.
for _init in (GPULoader.__init__, unwrap(GPULoader.__init__)):
    _init.__annotations__ |= {"output": "types.AnyOutput", "fields": "types.AnyFields"}


class _LoaderEpoch(Iteration[Any]):
    delivered_at: float | None = None  # the time of its last batch


def run_of(loader: GPULoader[Any, Any, Any]) -> Run:
    """Returns the `Run` of a loader, for other packages."""
    return loader._run  # noqa: SLF001 - this module is its class's


def fresh_run_of(loader: GPULoader[Any, Any, Any]) -> Run:
    """Returns the `Run` that follows from the arguments alone, without a loaded state."""
    return loader._fresh  # noqa: SLF001


def decode_step(
    loader: GPULoader[Any, Any, Any], epoch: int | Mapping[str, Any], step: int | None = None
) -> tuple[Run, ChainBatch]:
    """Returns a step for `GPULoader.at` before it is delivered, and the run that it belongs to, for other packages."""
    return loader._decode_step(epoch, step)  # noqa: SLF001


def _make_again(arguments: Mapping[str, Any], state: Mapping[str, Any]) -> GPULoader:
    loader = GPULoader(**arguments)
    loader.load_state_dict(state)
    return loader
