"""Resolves the arguments of a loader to a `Run` in three phases: the values, the data, the ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuloader.base.progress import say_if_long
from gpuloader.base.values import as_python_integer, is_integer
from gpuloader.chain.settings import Decoder
from gpuloader.errors import ConfigError, PresetError
from gpuloader.loading.agreement import agree
from gpuloader.loading.argument_types import AnyPreset, LoaderArguments
from gpuloader.loading.arguments import (
    check_boxes,
    check_buckets,
    check_counting,
    resolve_bad_images,
    resolve_device,
    resolve_fields,
    resolve_label_from,
    resolve_output,
    resolve_shuffle,
    resolve_world,
    warn_of_classes,
    warn_of_empty_shares,
    warn_of_groups,
    warn_of_places,
    warn_of_reduced,
    warn_of_small_buckets,
    warn_of_turned,
)
from gpuloader.loading.fields import LABEL, Component, Field
from gpuloader.loading.mipmaps import warn_of_mipmaps
from gpuloader.loading.options import BadImages, Cache, LabelFrom, Sampling
from gpuloader.loading.run import Run
from gpuloader.loading.selection import check_components, check_options, make_source, resolve_sources
from gpuloader.loading.subset import choose, used
from gpuloader.loading.world import World
from gpuloader.pipelines import check_for_gpu, read_cached
from gpuloader.plan import BucketSampler, LastBatch, Mix, Plan, Sampler
from gpuloader.recipe import Recipe, is_recipe_mapping, load_preset
from gpuloader.recipe.part import as_value
from gpuloader.shards import Labels, ShardSet, make_labels, needs_labels, read_quarantine


def resolve(arguments: LoaderArguments) -> Run:
    """Opens the shards, compares the arguments of all ranks, and returns the `Run`.

    Raises:
        GPULoaderError: an argument or the data is invalid; the message says which, and what to do.
    """
    values = _resolve_values(arguments)
    data = _open_data(arguments, values)
    plan = _plan_ranks(arguments, values, data)
    run = Run(
        plan=plan,
        shards=data.shards,
        recipe=values.recipe,
        labels=data.labels,
        fields=values.fields,
        names=values.names,
        make=values.make,
        bad_images=values.bad_images,
        known_bad=data.known_bad,
        device_id=values.device_id,
        world=values.world,
        recipe_name=_name_recipe(arguments.preset),
        unseen=data.unseen,
    )
    return _meet(run, values.decoder)


@dataclass(frozen=True)
class _Values:
    """The values that follow from the arguments alone."""

    recipe: Recipe
    world: World
    device_id: int | None
    bad_images: BadImages
    label_from: LabelFrom
    sampling: Sampling
    decoder: Decoder
    cache: Cache
    fields: Mapping[str, Component]
    names: Mapping[str, str]
    make: Callable[[dict[str, Any]], Any]
    shuffle: Any
    last_batch: LastBatch

    @property
    def has_targets(self) -> bool:
        return any(each.is_target for each in self.fields.values())


@dataclass(frozen=True)
class _Data:
    """The values that follow from the arguments and the shards."""

    shards: ShardSet
    labels: Labels | None
    known_bad: Mapping[int, str]
    source: Sampler | Mix
    unseen: Mapping[str, Component]


def _resolve_values(given: LoaderArguments) -> _Values:
    recipe, world = load_preset(given.preset), resolve_world(given.world)
    device_id = resolve_device(as_python_integer(given.device_id), world)
    if device_id is not None:
        check_for_gpu(recipe)
    sampling = as_value(Sampling, "sampling", {} if given.sampling is None else given.sampling)
    fields = resolve_fields(given.fields, given.output)
    sized = bool(getattr(sampling.buckets, "shapes", ()))
    names, make = resolve_output(given.output, fields, recipe, sized)
    usual_last_batch: LastBatch = "pad" if sampling.buckets is not None else recipe.default_last_batch
    values = _Values(
        recipe=recipe,
        world=world,
        device_id=device_id,
        bad_images=resolve_bad_images(given.on_error),
        label_from=resolve_label_from(given.label_from),
        sampling=sampling,
        decoder=as_value(Decoder, "decoder", {} if given.decoder is None else given.decoder),
        cache=as_value(Cache, "cache", {} if given.cache is None else given.cache),
        fields=fields,
        names=names,
        make=make,
        shuffle=recipe.default_shuffle if given.shuffle is None else resolve_shuffle(given.shuffle),
        last_batch=usual_last_batch if given.last_batch is None else given.last_batch,
    )
    check_counting(recipe, values.bad_images, values.names)
    for each in fields.values():
        each.check_recipe(recipe)
    check_boxes(recipe, fields)
    if sized:
        check_buckets(recipe)
    if given.shuffle is not None and sampling.weights is not None:
        raise ConfigError(
            f"Sampling(weights=...) and shuffle={given.shuffle!r} cannot be combined: the weights draw the order, so "
            f"leave shuffle out"
        )
    if world.local_rank == 0:
        warn_of_places(tuple(name for name, each in fields.items() if not each.is_target))
    return values


def _open_data(given: LoaderArguments, values: _Values) -> _Data:
    paths, sources = resolve_sources(given.tar)
    warns, fields, label_from = values.world.local_rank == 0, values.fields, values.label_from
    cache = values.cache
    shards = ShardSet.open(paths, warns, cache=cache.path, cache_bytes=cache.max_bytes, read_cached=read_cached)
    if warns:
        shards.warn_of_hidden()
    _ = shards.decoded  # raises now, not at the first batch, if only some shards contain arrays
    has_targets = any(field.is_target for field in fields.values())
    if label_from == LabelFrom() and fields and not needs_labels(shards, has_targets):
        label_from = LabelFrom(None)
    known = values.bad_images.known
    known_bad = {} if known is None else read_quarantine(Path(known), shards)
    batch_size = as_python_integer(given.batch_size)
    with say_if_long("the samples, their labels and their order are still being prepared", level=logging.INFO):
        chosen = choose(shards, values.sampling)
        labels = make_labels(shards, label_from.place, label_from.classes, used(chosen), label_from.order)
        source = make_source(
            shards,
            chosen,
            labels,
            values.shuffle,
            sources,
            values.sampling,
            upright=values.recipe.orientation == "apply",
            last_batch=values.last_batch,
            global_batch=values.world.world_size * batch_size if is_integer(batch_size, 1) else 1,  # the plan raises
            known_bad=known_bad,
        )
    if isinstance(source, BucketSampler):
        _check_shapes(values.recipe, source)
        if warns:
            warn_of_small_buckets(source)
    if warns:
        warn_of_reduced(shards.index.reduced)
        warn_of_mipmaps(values.recipe, shards)
    if values.has_targets and warns:
        warn_of_turned(values.recipe, shards.index.counts["turned"])
    shards.check_pictures([each.extension for each in fields.values()])
    required = dict.fromkeys(each.extension for each in fields.values() if each.required)
    check_components(shards, required, source, known_bad)
    named = fields if labels is None else {LABEL: Field(labels.place), **fields}
    return _Data(shards, labels, known_bad, source, check_options(shards, named, source, known_bad))


def _plan_ranks(given: LoaderArguments, values: _Values, data: _Data) -> Plan:
    plan = Plan(
        data.source,
        batch_size=as_python_integer(given.batch_size),
        rank=values.world.rank,
        world_size=values.world.world_size,
        last_batch=values.last_batch,
        seed=as_python_integer(given.seed),
        steps_per_epoch=values.sampling.steps_per_epoch,
        repeats=values.sampling.repeats,
    )
    _check_mixing(values.recipe, plan, data.labels is not None or values.has_targets, values.bad_images)
    if values.world.rank == 0:
        warn_of_classes(values.recipe, data.labels)
        warn_of_empty_shares(plan)
    return plan


def _meet(run: Run, decoder: Decoder) -> Run:
    """Returns the run after its ranks compared their arguments, with this rank's share of the cores."""
    world = run.world
    if world.world_size > 1 or world.members:
        world = agree(world, {**run.identity, **run.plan.facts})
    if world.rank == 0:
        warn_of_groups(run.plan, len(run.shards.shards), len(world.node))
    device_id = run.decoding_device_id
    return replace(run, world=world, decoder=decoder.on(device_id, world.cores, run.shards.seekable))


def _name_recipe(preset: AnyPreset) -> str:
    if is_recipe_mapping(preset):
        return "as a mapping"
    if isinstance(preset, Mapping):
        return f"{', '.join(map(_name_recipe, preset))} with overrides"
    return str(preset) if isinstance(preset, (str, Path)) else type(preset).__name__


def _check_shapes(recipe: Recipe, buckets: BucketSampler) -> None:
    """Checks that the recipe can make images of each bucket that has samples."""
    if buckets.shapes and recipe.batch != "dense":
        raise ConfigError(
            f"buckets: their images have one size; leave the recipe's batch={recipe.batch!r} out, or take "
            f"Buckets(groups=3), whose images have the recipe's sizes"
        )
    for shape, run in zip(buckets.shapes, buckets.runs):
        try:
            _ = recipe.at(0, shape) if len(run) else None
        except PresetError as error:
            raise ConfigError(f"buckets: {error}") from None


def _check_mixing(recipe: Recipe, plan: Plan, labelled: bool, bad_images: BadImages) -> None:
    """Checks that a recipe with `mix` gets pairs of samples with labels or masks."""
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
