"""`Run`: the resolved arguments of a loader, for the reader, the graph and the tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch

from gpuloader.base.text import counted
from gpuloader.base.values import as_python_integer, as_tuple, is_integer
from gpuloader.chain.settings import Decoder
from gpuloader.errors import ConfigError, StateError, describe
from gpuloader.loading.arguments import check_counting
from gpuloader.loading.fields import Component
from gpuloader.loading.options import BadImages
from gpuloader.loading.parts import Parts
from gpuloader.loading.state import (
    STATE_VERSION,
    LeftOut,
    check_identity,
    check_left_out,
    check_quarantine,
    describe_run,
    is_same,
)
from gpuloader.loading.world import World
from gpuloader.plan import Cursor, Plan, PlannedBatch, check_epoch
from gpuloader.recipe import Recipe
from gpuloader.shards import Labels, ShardSet

LEFT_OUT = "left out by Sampling(leave_out=...)"
"""Why a sample that is left out is bad."""


@dataclass(frozen=True, eq=False)
class Run:
    """The resolved arguments of a loader.

    Attributes:
        plan: the samples of this rank at each step.
        shards: the data.
        recipe: the transforms from an image to a tensor.
        labels: the labels of the samples, or None.
        fields: the entries beside the image, by name.
        names: the entries that a batch needs, entry -> name.
        make: makes the batch from a dictionary of these entries.
        bad_images: the handling of bad images.
        known_bad: samples that are always replaced or dropped, sample id -> cause; their bytes are not read.
        left_out: samples that are replaced or dropped from a place of the run on. Nothing that is computed before the
            first step depends on them.
        decoder: the settings of decoding, with values in place of None.
        device_id: a GPU's number, or None for the CPU.
        world: this rank and the number of ranks.
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
    names: Mapping[str, str] = field(default_factory=lambda: {"image": "image", "label": "label"})
    make: Callable[[dict[str, Any]], Any] = as_tuple
    bad_images: BadImages = field(default_factory=BadImages)
    known_bad: Mapping[int, str] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    decoder: Decoder = field(default_factory=lambda: Decoder(num_threads=1))
    device_id: int | None = None
    world: World = field(default_factory=lambda: World(0, 1))
    recipe_name: str = "Recipe"
    unseen: Mapping[str, Component] = field(default_factory=dict)

    def __str__(self) -> str:
        plan = self.plan
        source = None if self.labels is None else self.labels.place
        labels = {None: ", no labels", "cls": ""}.get(source, f", labels from {source}")
        return (
            f"{counted(plan.num_samples, 'sample')}, {counted(plan.steps, 'step')} of {plan.batch_size}, "
            f"{self.device}, recipe {self.recipe_name}, shuffle {plan.source.how}, last batch {plan.last_batch}"
            f"{labels}, rank {plan.rank} of {plan.world_size}"
        )

    @property
    def device(self) -> torch.device:
        """The device of the batches."""
        return torch.device("cpu") if self.device_id is None else torch.device("cuda", self.device_id)

    @property
    def decoding_device_id(self) -> int | None:
        """The device for decoding, a GPU's number or None for the CPU; the CPU if the recipe has own code."""
        return self.device_id if self.recipe.own_code is None else None

    @property
    def oversampling(self) -> float | None:
        """The recipe's `min_oversampling` for JPEGs; None if all of a JPEG is decoded."""
        return None if self.decoded else self.recipe.oversampling_on(self.device_id)

    @property
    def takes_mipmaps(self) -> bool:
        """Whether mipmaps may be decoded in place of pictures."""
        return self.recipe.min_oversampling is not None and bool(self.shards.mipmap_sides)

    @cached_property
    def parts(self) -> Parts:
        """The division of steps into parts."""
        return Parts.on(self.device.type, self.shards, self.largest, self.plan.batch_size, self.num_threads)

    def known_cause(self, sample: int) -> str | None:
        """Returns why a sample is bad, if that is known before its bytes are read."""
        return self.known_bad.get(sample) or self.shards.too_large.get(sample)

    def causes_of(self, planned: PlannedBatch) -> list[str | None]:
        """Returns why samples are bad where the plan has them: `LEFT_OUT`, or None if the place says nothing."""
        ids, is_left_out = planned.ids, np.zeros(len(planned.ids), np.bool_)
        for place, samples in self.left_out:
            if place.epoch <= planned.cursor.epoch:
                places = np.where(planned.valid, planned.places, planned.cursor.delivered)
                is_behind = (places >= place.delivered) | (place.epoch < planned.cursor.epoch)
                is_left_out |= is_behind & (np.searchsorted(samples, ids, "right") > np.searchsorted(samples, ids))
        return [LEFT_OUT if each else None for each in is_left_out.tolist()]

    def expects(self, sample: int, cause: str) -> bool:
        """Returns whether a sample is bad because the arguments say so. Such a sample is no error, and not counted."""
        return cause == LEFT_OUT or sample in self.known_bad

    def component_name(self, sample: int, extension: str) -> str:
        """Returns the name of a sample's component, for errors."""
        where = self.shards.locate(sample)
        return f"the .{extension} component of {where.key!r} in {where.shard}"

    @cached_property
    def box_field(self) -> str | None:
        """The name of the field whose boxes the recipe needs; None if it needs none."""
        names = (name for name, field in self.fields.items() if field.has_boxes)
        return next(names, None) if self.recipe.by_boxes else None

    @cached_property
    def largest(self) -> Recipe:
        """The recipe at its largest output: in the largest epoch, and the largest bucket that has samples."""
        shape = max(self.plan.source.used_shapes, key=prod, default=None)
        return self.recipe.at(self.recipe.largest_epoch, shape)

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
        """The values that must be equal in a state and in the loader that loads it, in plain JSON types."""
        source = self.plan.source
        return {
            "version": STATE_VERSION,
            "dataset": self.shards.fingerprint,
            "samples": len(self.shards),
            "recipe": self.recipe.fingerprint,
            "seed": self.plan.seed,
            "shuffle": source.shuffle,
            "sampling": source.fingerprint,
            "known_bad": _digest_of_known(self.known_bad),
            "labels": None if self.labels is None else self.labels.digest,
            **self._mipmaps(),
        }

    @cached_property
    def described(self) -> dict[str, Any]:
        """The details with which an error names the differences between runs."""
        return {**describe_run(self.recipe, self.shards), "sampling": str(self.plan.source)}

    def seek(self, fresh: Run, epoch: int, step: int | None, ranks: int | None = None) -> ResumePoint:
        """Returns the point before a step of an epoch, see `GPULoader.seek`; it has this run if its plan is the same.

        Args:
            fresh: the run without a state, to which the epochs before the state belong.

        Raises:
            ConfigError: there is no such step, or the ranks do not divide the global batch.
        """
        epoch, step, ranks = check_epoch(epoch), as_python_integer(step), as_python_integer(ranks)
        plan = fresh.plan if epoch < self.plan.start.epoch else self.plan.whole(epoch)
        if ranks is not None and not (is_integer(ranks, 1) and plan.global_batch % ranks == 0):
            raise ConfigError(
                f"ranks={describe(ranks)}: allowed are numbers that divide the global batch, {plan.global_batch}"
            )
        counted_by = plan if ranks is None else plan.on(ranks)
        if not is_integer(step, 0, counted_by.steps):
            raise ConfigError(
                f"step={describe(step)}: allowed is an integer from 0 to {counted_by.steps - 1}, as an epoch has "
                f"{counted(counted_by.steps, 'step')}"
            )
        cursor = counted_by.at(epoch, step)
        plan.check_place(cursor)
        return ResumePoint(self if plan is self.plan else replace(self, plan=plan), cursor)

    @cached_property
    def left_out_in_state(self) -> dict[str, Any]:
        """The entry of a state for the samples that are left out, in plain JSON types; empty if there are none."""
        entries = [[place.epoch, place.delivered, samples.tolist()] for place, samples in self.left_out]
        return {"left_out": entries} if entries else {}

    def resume(self, state: object) -> ResumePoint:
        """Returns the point at which the run resumes from a state; see `GPULoader.load_state_dict`.

        Raises:
            StateError: it is not a state, or a state of another run. The message names the difference.
        """
        if not isinstance(state, Mapping):
            raise StateError(
                f"this is not a state of a GPULoader but {describe(state)}: pass what its state_dict() returned"
            )
        samples, identity, is_longer = state.get("samples"), self.identity, False
        if is_integer(samples, 1, len(self.shards)) and self._begins_with(samples, state.get("dataset")):
            if not is_same(state.get("delivered"), 0):
                raise StateError(_explain_appended(self.shards, samples))
            identity, is_longer = self._identity_of_first(samples, state.get("sampling")), True
        check_identity(state, identity, self.described, self.shards)
        kept = check_left_out(state.get("left_out", []), len(self.shards))
        try:
            plan, place = (
                (self.plan.keep(state), Cursor(check_epoch(state["epoch"]))) if is_longer else self.plan.resume(state)
            )
            left_out = self._also_left_out(place, kept)
            check_counting(self.recipe, self.bad_images, self.names, leaves_out=bool(left_out))
        except ConfigError as error:
            raise StateError(f"the state cannot be resumed here: {error}") from None
        bad = check_quarantine(state["quarantine"], len(self.shards))
        return ResumePoint(replace(self, plan=plan, left_out=left_out), place, bad)

    def _also_left_out(self, place: Cursor, kept: tuple[LeftOut, ...]) -> tuple[LeftOut, ...]:
        """Returns what a state leaves out, and from its place on what only this run leaves out."""
        nothing = [np.empty(0, np.int64)]
        before = np.concatenate(nothing + [samples for begin, samples in kept if begin <= place])
        new = np.setdiff1d(np.concatenate(nothing + [samples for _, samples in self.left_out]), before)
        return (*kept, (place, new)) if len(new) else kept

    def _begins_with(self, samples: int, dataset: object) -> bool:
        """Returns whether the first shards have exactly these samples, by their number and fingerprint."""
        is_end = self.shards.shard_of(samples - 1) < self.shards.shard_of(samples)
        return is_end and is_same(dataset, str(self.shards.digest_of_first(samples)))

    def _identity_of_first(self, samples: int, sampling: object) -> dict[str, Any]:
        """Returns the identity of a run over the first samples of the data, with this sampling."""
        known_bad = {sample: cause for sample, cause in self.known_bad.items() if sample < samples}
        return {
            **self.identity,
            "dataset": str(self.shards.digest_of_first(samples)),
            "samples": samples,
            "sampling": sampling,
            "known_bad": _digest_of_known(known_bad),
            "labels": None if self.labels is None else self.labels.digest_of_first(samples),
            **self._mipmaps(samples),
        }

    def _mipmaps(self, samples: int | None = None) -> dict[str, str]:
        """Returns the digest of the mipmaps of all samples, or of the first, if the recipe uses mipmaps."""
        return {} if self.recipe.min_oversampling is None else {"mipmaps": self.shards.mipmap_digest(samples)}


@dataclass(frozen=True)
class ResumePoint:
    """The point at which a run goes on.

    Attributes:
        run: the run; after a state, its epochs are counted from the state's position.
        cursor: the position of the next batch.
        bad: the bad images in the state, sample id -> cause; None if there is no state.
    """

    run: Run
    cursor: Cursor
    bad: dict[int, str] | None = None


def _digest_of_known(known_bad: Mapping[int, str]) -> str:
    return hashlib.blake2b(json.dumps(sorted(known_bad)).encode(), digest_size=16).hexdigest()


def _explain_appended(shards: ShardSet, samples: int) -> str:
    last = shards.shards[shards.shard_of(samples - 1)]
    return (
        f"shards were appended since the state was saved: it has {counted(samples, 'sample')}, the loader has "
        f"{len(shards):,}. Finish the epoch with the shards up to {last}; or begin the next epoch with all: load a "
        f"state of its beginning, or call set_epoch"
    )
