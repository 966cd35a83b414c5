"""Resolves the arguments of a loader to a `Run`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuloader.base.progress import say_if_long
from gpuloader.base.values import as_python_integer, is_integer
from gpuloader.chain.settings import Decoder
from gpuloader.errors import ConfigError, PresetError
from gpuloader.loading.agreement import agree
from gpuloader.loading.argument_types import AnyPreset, AnyShuffle
from gpuloader.loading.arguments import (
    as_value_or_default,
    check_counting,
    check_fields,
    resolve_bad_images,
    resolve_device,
    resolve_fields,
    resolve_label_from,
    resolve_output,
    resolve_shuffle,
    resolve_world,
)
from gpuloader.loading.fields import LABEL, Field
from gpuloader.loading.options import BadImages, Cache, LabelFrom, Sampling
from gpuloader.loading.run import Run
from gpuloader.loading.selection import OrderArguments, check_components, check_options, resolve_sources
from gpuloader.loading.subset import choose, find_left_out, used
from gpuloader.pipelines import check_for_gpu, read_cached
from gpuloader.plan import Cursor, LastBatch, Order, Plan
from gpuloader.plan.samplers import digest_of
from gpuloader.recipe import Recipe, is_recipe_mapping, load_preset
from gpuloader.shards import ShardSet, make_labels, needs_labels, read_quarantine


def resolve(given: Mapping[str, Any]) -> Run:
    """Opens the shards, compares the arguments of all ranks, and returns the `Run`.

    Args:
        given: the arguments of `GPULoader` by name.

    Raises:
        GPULoaderError: an argument or the data is invalid; the message says which, and what to do.
    """
    # The values follow from the arguments alone.
    recipe, world = load_preset(given["preset"]), resolve_world(given["world"])
    device_id = resolve_device(as_python_integer(given["device_id"]), world)
    if device_id is not None:
        check_for_gpu(recipe)
    sampling = as_value_or_default(Sampling, "sampling", given["sampling"])
    fields = resolve_fields(given["fields"], given["output"])
    has_targets = any(each.is_target for each in fields.values())
    sized = bool(getattr(sampling.buckets, "shapes", ()))
    names, make = resolve_output(given["output"], fields, recipe, sized)
    bad_images, label_from = resolve_bad_images(given["on_error"]), resolve_label_from(given["label_from"])
    decoder = as_value_or_default(Decoder, "decoder", given["decoder"])
    cache = as_value_or_default(Cache, "cache", given["cache"])
    usual_last_batch: LastBatch = "pad" if sampling.buckets is not None else recipe.default_last_batch
    last_batch = usual_last_batch if given["last_batch"] is None else given["last_batch"]
    batch_size = as_python_integer(given["batch_size"])
    check_counting(recipe, bad_images, names, sampling.leave_out is not None)
    check_fields(recipe, fields)
    _check_sampling(recipe, sampling, sized, given["shuffle"])

    # The data follow from the arguments and the shards.
    paths, sources = resolve_sources(given["tar"])
    shards = ShardSet.open(
        paths, world.local_rank == 0, cache=cache.path, cache_bytes=cache.max_bytes, read_cached=read_cached
    )
    _ = shards.decoded  # raises now, not at the first batch, if only some shards contain arrays
    if label_from == LabelFrom() and fields and not needs_labels(shards, has_targets):
        label_from = LabelFrom(None)
    known_bad = {} if bad_images.known is None else read_quarantine(Path(bad_images.known), shards)
    with say_if_long("the samples, their labels and their order are still being prepared", level=logging.INFO):
        chosen, left_out = choose(shards, sampling), find_left_out(shards, sampling)
        labels = make_labels(shards, label_from.place, label_from.classes, used(chosen), label_from.order)
        source = OrderArguments(
            shards,
            chosen,
            labels,
            resolve_shuffle(given["shuffle"], recipe.default_shuffle),
            sources,
            sampling,
            upright=recipe.orientation == "apply",
            last_batch=last_batch,
            global_batch=world.world_size * batch_size if is_integer(batch_size, 1) else 1,  # the plan raises
            known_bad=known_bad,
        ).make()
    _check_shapes(recipe, source)
    shards.check_pictures([each.extension for each in fields.values()])
    required = dict.fromkeys(each.extension for each in fields.values() if each.required)
    check_components(shards, required, source, known_bad)
    named = fields if labels is None else {LABEL: Field(labels.place), **fields}
    unseen = check_options(shards, named, source, known_bad)

    # The plan and the decoder follow from the ranks, too.
    plan = Plan(
        source,
        batch_size=batch_size,
        rank=world.rank,
        world_size=world.world_size,
        last_batch=last_batch,
        seed=as_python_integer(given["seed"]),
        steps_per_epoch=sampling.steps_per_epoch,
        repeats=sampling.repeats,
    )
    _check_mixing(recipe, plan, labels is not None or has_targets, bad_images)
    run = Run(
        plan=plan,
        shards=shards,
        recipe=recipe,
        labels=labels,
        fields=fields,
        names=names,
        make=make,
        bad_images=bad_images,
        known_bad=known_bad,
        left_out=((Cursor(), left_out),) if len(left_out) else (),
        device_id=device_id,
        world=world,
        recipe_name=_name_recipe(given["preset"]),
        unseen=unseen,
    )
    if world.world_size > 1 or world.members:
        leave_out = digest_of("left out", left_out) if len(left_out) else None
        world = agree(world, {**run.identity, **plan.facts, "leave_out": leave_out})
    return replace(run, world=world, decoder=decoder.on(run.decoding_device_id, world.cores, shards.seekable))


def _name_recipe(preset: AnyPreset) -> str:
    if is_recipe_mapping(preset):
        return "as a mapping"
    if isinstance(preset, Mapping):
        return f"{', '.join(map(_name_recipe, preset))} with overrides"
    return str(preset) if isinstance(preset, (str, Path)) else type(preset).__name__


def _check_sampling(recipe: Recipe, sampling: Sampling, sized: bool, shuffle: AnyShuffle) -> None:
    """Checks that weights replace `shuffle`, and that own code leaves the aspect ratio of images in buckets."""
    if sized and recipe.own_code is not None and not recipe.own_code.keeps_sizes:
        raise ConfigError("buckets need images that keep their aspect ratio: leave Apply(same_size=False) out")
    if shuffle is not None and sampling.weights is not None:
        raise ConfigError(
            f"Sampling(weights=...) and shuffle={shuffle!r} cannot be combined: the weights draw the order, so "
            f"leave shuffle out"
        )


def _check_shapes(recipe: Recipe, source: Order) -> None:
    """Checks that the recipe can make images of each bucket that has samples."""
    if source.shapes and recipe.batch != "dense":
        raise ConfigError(
            f"buckets: their images have one size; leave the recipe's batch={recipe.batch!r} out, or take "
            f"Buckets(groups=3), whose images have the recipe's sizes"
        )
    for shape in source.used_shapes:
        try:
            recipe.at(0, shape)
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
