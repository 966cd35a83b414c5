"""`Run`: everything that a loader's arguments decide, resolved once. The reader, the graph and the tools use it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch

from gpuloader.errors import ConfigError, GPULoaderError, PresetError, StateError, describe
from gpuloader.helpers.text import counted
from gpuloader.helpers.values import as_python_integer, is_integer
from gpuloader.loading import argument_types as types
from gpuloader.loading.arguments import (
    check_counting,
    find_boxes,
    output_names,
    resolve_bad_images,
    resolve_device,
    resolve_fields,
    resolve_label_from,
    resolve_shuffle,
    resolve_world,
    warn_of_classes,
    warn_of_empty_shares,
    warn_of_places,
    warn_of_small_buckets,
    warn_of_turned,
)
from gpuloader.loading.buckets import Buckets
from gpuloader.loading.changes import describe_sampling, restore_history, rewrite
from gpuloader.loading.choice import Choice
from gpuloader.loading.fields import Component
from gpuloader.loading.options import BadImages, Cache, Decoder, LabelFrom, Sampling, as_value
from gpuloader.loading.probing import resolve_decoder
from gpuloader.loading.selection import Sources, check_components, check_options, resolve_sources
from gpuloader.loading.state import STATE_VERSION, check_identity, check_place, check_quarantine, describe_run, is_same
from gpuloader.loading.world import World, agree
from gpuloader.pipelines import check_for_gpu, read_cached
from gpuloader.plan import AllSamples, Bucketed, Cursor, Custom, LastBatch, Plan, Weighted
from gpuloader.recipe import Recipe, is_recipe_mapping, load_preset
from gpuloader.shards import Labels, ShardSet, read_quarantine, resolve_place


@dataclass(frozen=True)
class Dataset:
    """All of a loader's data.

    Attributes:
        num_samples: the number of samples in the shards, also those that a `subset` leaves out; `len` is the same.
        classes: the names of the classes, if they are known.
    """

    num_samples: int
    classes: tuple[str, ...] | None

    def __len__(self) -> int:
        return self.num_samples

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class by its name, as in torchvision's datasets; empty if the classes are not known."""
        return {name: label for label, name in enumerate(self.classes or ())}


@dataclass(frozen=True, eq=False)
class Run:
    """Everything that decides what a loader delivers, and how.

    Attributes:
        plan: which samples this rank gets at which step.
        shards: the data.
        recipe: how an image becomes a tensor.
        labels: the samples' labels, or None.
        fields: what is delivered beside the image, by name.
        names: maps each entry to its name in a batch; None for a tuple.
        bad_images: what happens to bad images.
        known_bad: samples that are always replaced, with the causes; their bytes are not checked.
        decoder: its settings, with the number of threads; on a GPU also with what was found out about it.
        device_id: a GPU's number, or None for the CPU.
        world: this rank and the number of ranks.
        choice: what chose the samples of the plan; None if they cannot be chosen again.
        selected: the fingerprint of the `Selection`.
        unseen: the fields whose keys are checked when the first annotations are read.

    Example:
        >>> from gpuloader import GPULoader
        >>> from gpuloader.loading.loader import run_of
        >>> run = run_of(GPULoader("shards/", 8, "cpu", preset="imagenet_eval"))
        >>> run.plan.steps, run.recipe.shapes, run.device
        (5, [(224, 224)], device(type='cpu'))
    """

    plan: Plan
    shards: ShardSet
    recipe: Recipe
    labels: Labels | None = None
    fields: Mapping[str, Component] = field(default_factory=dict)
    names: Mapping[str, str] | None = None
    bad_images: BadImages = field(default_factory=BadImages)
    known_bad: Mapping[int, str] = field(default_factory=dict)
    decoder: Decoder = field(default_factory=lambda: Decoder(num_threads=1))
    device_id: int | None = None
    world: World = field(default_factory=lambda: World(0, 1))
    recipe_name: str = "Recipe"
    choice: Choice | None = None
    selected: str | None = None
    unseen: Mapping[str, Component] = field(default_factory=dict)

    def __str__(self) -> str:
        plan = self.plan
        order = {Custom: "a function", Weighted: "by weights"}.get(type(plan.positions), plan.positions.shuffle)
        source = None if self.labels is None else self.labels.place
        labels = {None: ", no labels", "cls": ""}.get(source, f", labels from {source}")
        return (
            f"{counted(plan.num_samples, 'sample')}, {counted(plan.steps, 'step')} of {plan.batch_size}, "
            f"{self.device}, recipe {self.recipe_name}, shuffle {order}, last batch {plan.last_batch}{labels}, "
            f"rank {plan.rank} of {plan.world_size}"
        )

    @property
    def device(self) -> torch.device:
        """The device of the batches."""
        return torch.device("cpu") if self.device_id is None else torch.device("cuda", self.device_id)

    @cached_property
    def box_field(self) -> str | None:
        """The name of the field by whose boxes the recipe draws; None if it draws by none."""
        return find_boxes(self.recipe, self.fields)

    @cached_property
    def largest(self) -> Recipe:
        """The recipe with its largest output: of all epochs, and of the largest bucket that has samples."""
        buckets, epoch = self.plan.bucketed, self.recipe.largest_epoch
        if buckets is None:
            return self.recipe.at(epoch)
        return self.recipe.at(
            epoch, max((shape for shape, run in zip(buckets.shapes, buckets.runs) if len(run)), key=prod)
        )

    @property
    def decoded(self) -> bool:
        """Whether the shards contain arrays, which need no decoding."""
        return self.shards.decoded

    @property
    def num_threads(self) -> int:
        """The number of decoding threads."""
        return self.decoder.num_threads or 1

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be equal in a state and in the loader that takes it, in plain JSON types."""
        known_bad, positions = json.dumps(sorted(self.known_bad)).encode(), self.plan.positions
        return {
            "version": STATE_VERSION,
            "dataset": self.shards.fingerprint,
            "samples": len(self.shards),
            "recipe": self.recipe.fingerprint,
            "seed": self.plan.seed,
            "shuffle": positions.shuffle,
            "sampling": None if isinstance(positions, AllSamples) else positions.fingerprint,
            "known_bad": hashlib.blake2b(known_bad, digest_size=16).hexdigest(),
            "labels": None if self.labels is None else self.labels.digest,
        }

    @cached_property
    def described(self) -> dict[str, Any]:
        """What is needed to say how another run differs."""
        sampling = {"sampling": describe_sampling(self.plan.positions), "selected": self.selected}
        return {**describe_run(self.recipe, self.shards), **sampling}

    def resume(self, state: object, *, change_sampling: bool = False) -> Resumed:
        """Returns how the run goes on from a loader's state; see `GPULoader.load_state_dict`.

        Raises:
            StateError: it is not a state, or it is of another run; the message names the difference.
        """
        if not isinstance(state, Mapping):
            raise StateError(
                f"this is not a state of a GPULoader but {describe(state)}: pass what its state_dict() returned"
            )
        first, changes = self._of_first(state), None
        if change_sampling:
            state, changes = rewrite(state, first.plan.positions, first.identity, first.described)
        run = _go_on(first, state)
        whole = run if first is self else _go_on(self, state)
        check_identity(state, run.identity, run.described, run.shards)
        place = check_place(state, "delivered", lambda _: run.plan.samples)
        try:
            cursor = run.plan.cursor(*place)
        except ConfigError as error:
            raise StateError(f"the state cannot be resumed here: {error}") from None
        return Resumed(run, whole, cursor, check_quarantine(state["quarantine"], len(run.shards)), changes)

    def _of_first(self, state: Mapping[str, Any]) -> Run:
        """Returns the run over the samples that a state is of, if shards were appended behind these; otherwise itself.

        Raises:
            StateError: the arguments do not fit these samples alone.
        """
        if not is_integer(samples := state.get("samples"), 1, len(self.shards)):
            return self
        shards = self.shards.first(samples)
        if self.choice is None or not is_same(state.get("dataset"), shards.fingerprint):
            return self
        known_bad = {sample: cause for sample, cause in self.known_bad.items() if sample < samples}
        try:
            labels, positions, selected = self.choice.of_first(samples, self.shards, self.labels).of(shards, known_bad)
            plan = replace(self.plan, positions=positions)
        except GPULoaderError as error:
            raise StateError(
                f"the state was saved with the first {samples:,} samples of this data, and the loader's arguments do "
                f"not fit these: {error}"
            ) from None
        return replace(self, plan=plan, shards=shards, labels=labels, known_bad=known_bad, selected=selected)


@dataclass(frozen=True)
class Resumed:
    """How a run goes on from a state.

    Attributes:
        run: the run of the state's epoch.
        whole: the run of other epochs; it differs only if shards were appended since the state was saved.
        cursor: where it goes on.
        bad: the state's bad images, with the causes.
        changes: what changes of the sampling, in words; None if nothing does.
    """

    run: Run
    whole: Run
    cursor: Cursor
    bad: dict[int, str]
    changes: str | None


def _go_on(run: Run, state: Mapping[str, Any]) -> Run:
    """Returns the run; if a state has other segments of its mixture, or another quantum, the run with these.

    Raises:
        StateError: the segments are invalid, another quantum was given, or the global batch does not divide it.
    """
    positions, buckets = restore_history(run.plan.positions, state), run.plan.bucketed
    quantum = state.get("quantum")
    if buckets is not None and is_integer(quantum, 1, 2**31) and quantum != buckets.quantum:
        given = None if run.choice is None else run.choice.sampling.buckets
        if isinstance(given, Buckets) and given.quantum is not None:
            raise StateError(
                f"the state has buckets with a quantum of {quantum}, this loader has "
                f"Buckets(quantum={given.quantum}): leave quantum out, or give {quantum}"
            )
        positions = replace(buckets, quantum=quantum)
    if positions is run.plan.positions:
        return run
    try:
        return replace(run, plan=replace(run.plan, positions=positions))
    except ConfigError as error:
        raise StateError(f"the state cannot be resumed here: {error}") from None


def resolve_run(
    tar: Sources,
    batch_size: int,
    device_id: types.AnyDevice,
    *,
    preset: types.AnyPreset,
    shuffle: types.AnyShuffle,
    last_batch: LastBatch | None,
    seed: int,
    output: types.AnyOutput,
    label_from: types.AnyLabels,
    fields: types.AnyFields,
    sampling: types.AnySampling,
    on_error: types.OnError,
    decoder: types.AnyDecoder,
    cache: types.AnyCache,
    world: types.AnyWorld,
) -> Run:
    """Resolves `GPULoader`'s arguments: opens the shards, and lets the ranks compare their arguments.

    Raises:
        GPULoaderError: an argument or the data is invalid; the message says which, and what to do.
    """
    # Cheap checks come before opening shards.
    recipe = load_preset(preset)
    here = resolve_world(world)
    device = resolve_device(as_python_integer(device_id), here)
    if device is not None:
        check_for_gpu(recipe)
    bad_images = resolve_bad_images(on_error)
    labelling = resolve_label_from(label_from)
    chosen = as_value(Sampling, "sampling", {} if sampling is None else sampling)
    decoding = as_value(Decoder, "decoder", {} if decoder is None else decoder)
    storing = as_value(Cache, "cache", {} if cache is None else cache)
    in_buckets = chosen.buckets is not None
    parsed_fields = resolve_fields(fields, output)
    names = output_names(output, parsed_fields, recipe, in_buckets)
    check_counting(recipe, bad_images, names)
    for each in parsed_fields.values():
        each.check_recipe(recipe)
    find_boxes(recipe, parsed_fields)
    if here.local_rank == 0:
        warn_of_places(tuple(name for name, each in parsed_fields.items() if not each.is_target))
    order = recipe.default_shuffle if shuffle is None else resolve_shuffle(shuffle)
    if shuffle is not None and chosen.weights is not None:
        raise ConfigError(
            f"Sampling(weights=...) and shuffle={shuffle!r} cannot be combined: the weights draw the order, so leave "
            f"shuffle out"
        )
    paths, sources = resolve_sources(tar)
    shards = ShardSet.open(
        paths, here.local_rank == 0, cache=storing.path, cache_bytes=storing.max_bytes, read_cached=read_cached
    )
    _ = shards.decoded  # if only some shards contain arrays, this raises now and not at the first batch
    if parsed_fields and labelling == LabelFrom() and resolve_place(shards, "auto") is None:
        labelling = LabelFrom(None)
    known_bad = {} if bad_images.known is None else read_quarantine(Path(bad_images.known), shards)
    batch_size = as_python_integer(batch_size)
    if last_batch is None:
        last_batch = "pad" if in_buckets else recipe.default_last_batch
    global_batch = here.world_size * batch_size if is_integer(batch_size, 1) else 1  # the plan refuses others
    choice = Choice(chosen, order, sources, labelling, recipe.orientation == "apply", last_batch, global_batch)
    labels, positions, selected = choice.of(shards, known_bad)
    if isinstance(positions, Bucketed):
        _check_shapes(recipe, positions)
        if here.local_rank == 0:
            warn_of_small_buckets(positions)
    has_targets = any(each.is_target for each in parsed_fields.values())
    if has_targets and here.local_rank == 0:
        warn_of_turned(recipe, shards.count_turned())
    shards.check_pictures([each.extension for each in parsed_fields.values()])
    required = dict.fromkeys(each.extension for each in parsed_fields.values() if each.required)
    check_components(shards, required, positions, known_bad)
    unseen = check_options(shards, parsed_fields, positions, known_bad)
    plan = Plan(
        positions,
        batch_size=batch_size,
        rank=here.rank,
        world_size=here.world_size,
        last_batch=last_batch,
        seed=as_python_integer(seed),
        steps_per_epoch=chosen.steps_per_epoch,
    )
    _check_mixing(recipe, plan, labels is not None or has_targets, bad_images)
    if here.rank == 0:
        warn_of_classes(recipe, labels)
        warn_of_empty_shares(plan)
    name = _name_recipe(preset)
    run = Run(plan, shards, recipe, labels, parsed_fields, names, bad_images, known_bad, decoding, device, here, name)
    run = replace(run, choice=choice, selected=selected, unseen=unseen)
    if here.world_size > 1 or here.members:
        same = ("samples", "batch_size", "last_batch", "steps_per_epoch")
        run = replace(run, world=agree(here, {**run.identity, **{name: getattr(plan, name) for name in same}}))
    if not run.decoded:
        decoding = resolve_decoder(decoding, device, shards.seekable)
    return replace(
        run, decoder=replace(decoding, num_threads=decoding.num_threads or run.world.decoding_threads(device))
    )


def _name_recipe(preset: types.AnyPreset) -> str:
    if is_recipe_mapping(preset):
        return "as a mapping"
    if isinstance(preset, Mapping):
        return f"{', '.join(map(_name_recipe, preset))} with overrides"
    return str(preset) if isinstance(preset, (str, Path)) else type(preset).__name__


def _check_shapes(recipe: Recipe, buckets: Bucketed) -> None:
    """Checks that the recipe can make images of each bucket that has samples."""
    if recipe.batch != "dense":
        raise ConfigError(f"buckets: their images have one size; leave the recipe's batch={recipe.batch!r} out")
    for shape, run in zip(buckets.shapes, buckets.runs):
        try:
            _ = recipe.at(0, shape) if len(run) else None
        except PresetError as error:
            raise ConfigError(f"buckets: {error}") from None


def _check_mixing(recipe: Recipe, plan: Plan, labelled: bool, bad_images: BadImages) -> None:
    """Checks that there are pairs of samples with labels or masks if the recipe mixes."""
    if recipe.mix is None:
        return
    if bad_images.skip:
        raise ConfigError('on_error="skip" would separate neighbours that the recipe mixes: use "replace" or "raise"')
    if not labelled:
        raise ConfigError("the recipe mixes samples, but label_from=None gives no labels to mix: use another recipe")
    if plan.batch_size % 2:
        raise ConfigError(f"batch_size={plan.batch_size}: the recipe mixes neighbours, so it must be even")
    if plan.last_batch in ("partial", "equal"):
        raise ConfigError(
            f'last_batch="{plan.last_batch}" would separate neighbours that the recipe mixes: use "drop" or "pad"'
        )
