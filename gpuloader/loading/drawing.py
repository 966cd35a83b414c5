"""`Choose` and `Draw`: draw the random parameters of a batch, and choose the smaller copies that are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuloader.chain.batch import Batch
from gpuloader.images.mipmaps import mipmap_sizes
from gpuloader.loading.run import Run
from gpuloader.plan import Draws, PlannedBatch
from gpuloader.recipe import AugmentParams, Graph, choose_factors, choose_mipmaps
from gpuloader.recipe.model import Ints
from gpuloader.shards.accepted_sizes import stored_sizes

_NO_BOXES = np.zeros((0, 4))


class Choose:
    """A function that begins a batch: draws by the sizes in the index, and chooses the smaller copies to read.

    It also sets the causes of samples that are left out. What it chooses depends only on the random parameters and the
    index, not on earlier reads.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, planned: PlannedBatch) -> Batch:
        run = self._run
        params, sizes = draw_by_index(run, planned)
        batch = replace(Batch.of(planned, params), sizes=sizes, causes=run.causes_of(planned))
        scale, sides = run.recipe.min_oversampling, run.shards.mipmap_sides
        if scale is None or not sides:
            return batch
        return replace(batch, sides=choose_mipmaps(params, sizes, sides, run.shards.mipmaps_of(planned.ids), scale))

    def parts_of(self, chosen: Batch) -> list[slice]:
        """Returns the rows of each part of a step that began as `chosen`, by the sizes at which it will be decoded."""
        run, factors = self._run, np.ones(len(chosen), np.int64)
        if run.oversampling is not None:
            factors = choose_factors(in_files(chosen, chosen.params), run.oversampling)
        return run.parts.of_step(chosen.ids, chosen.sides, factors)


class Draw:
    """A function that draws the random parameters of validated images.

    With own code, `params` are those before it. `delivered` are those of the whole recipe, if sizes or targets are
    delivered and own code keeps them.
    """

    def __init__(self, run: Run) -> None:
        self._run, own = run, run.recipe.own_code
        says_sizes = run.recipe.batch != "dense" or run.plan.source.quantum is not None
        has_targets = any(field.is_target for field in run.fields.values())
        self._draws_whole = own is not None and own.keeps_sizes and (says_sizes or has_targets)

    def __call__(self, batch: Batch, chosen: Batch) -> Batch:
        """Draws for a batch that began as `chosen`, whose parameters are taken if the index knew all sizes."""
        is_drawn = self._run.box_field is None and np.array_equal(batch.sizes, chosen.sizes)
        params = in_files(batch, chosen.params if is_drawn else self._draw(batch, whole=False))
        delivered = in_files(batch, self._draw(batch, whole=True)) if self._draws_whole else params
        return replace(batch, params=params, delivered=delivered)

    def _draw(self, batch: Batch, whole: bool) -> AugmentParams:
        recipe = self._run.recipe.at(batch.draws.epoch, batch.step.shape)
        graph = recipe.whole_graph if whole else recipe.graphs[0]
        return _draw(self._run, graph, batch.ids, batch.draws, batch.sizes, _boxes_of(self._run, batch))


def draw_upright(run: Run, batch: Batch) -> AugmentParams:
    """Returns the random parameters of the whole recipe for opened pictures, as if they were stored upright."""
    recipe, upright = run.recipe.at(batch.draws.epoch, batch.step.shape), batch.delivered.views[0].placements[0].shape
    return recipe.whole_graph.draw(batch.draws, upright, boxes=_boxes_of(run, batch))


def _boxes_of(run: Run, batch: Batch) -> list[NDArray[np.float64]]:
    """Returns the boxes that the recipe needs; a bad sample may have none."""
    name = run.box_field
    return [] if name is None else [each[name].boxes if name in each else _NO_BOXES for each in batch.values]


def in_files(batch: Batch, params: AugmentParams) -> AugmentParams:
    """Converts parameters for the pictures of a batch to the files that are read."""
    sides = batch.sides * batch.sizes.any(1)
    if not sides.any():
        return params
    pictures = np.maximum(batch.sizes, 1)
    return params.in_files(pictures, mipmap_sizes(pictures, sides))


def draw_by_index(run: Run, planned: PlannedBatch) -> tuple[AugmentParams, Ints]:
    """Draws for pictures by their sizes in the index, before their files are read.

    Returns:
        The random parameters of the first graph; and (n, 2) the sizes, 0 if the index does not know a size or the
        picture is too large.
    """
    sizes = stored_sizes(run.shards.index, planned.ids)
    sizes[sizes.prod(1) > run.recipe.max_pixels] = 0  # the sample is bad, with or without mipmaps
    graph = run.recipe.at(planned.draws.epoch, planned.shape).graphs[0]
    return _draw(run, graph, planned.ids, planned.draws, sizes), sizes


def _draw(
    run: Run, graph: Graph, ids: Ints, draws: Draws, sizes: Ints, boxes: Sequence[NDArray[np.float64]] = ()
) -> AugmentParams:
    """Draws for pictures of these sizes, (n, 2); 0 counts as 1."""
    turned = run.shards.index.at("orientation", ids) if graph.upright else None
    return graph.draw(draws, np.maximum(sizes, 1), turned, boxes)
