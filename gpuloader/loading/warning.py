"""The warnings of a loader, each a function of its run."""

from __future__ import annotations

import logging
from functools import cache
from math import ceil, gcd

from gpuloader.base.text import counted
from gpuloader.images.traits import describe_reduced
from gpuloader.loading.memory import warn_of_memory
from gpuloader.loading.mipmaps import warn_of_oversampling
from gpuloader.loading.run import Run
from gpuloader.plan import choose_groups

_PLACES = {"bbox", "bboxes", "box", "boxes", "keypoint", "keypoints", "mask", "masks"}
_log = logging.getLogger("gpuloader")


def warn(run: Run) -> None:
    """Logs the warnings of a run: of data and memory once on each machine, of the order once for all ranks."""
    for is_first, warnings in ((run.world.local_rank == 0, _OF_A_MACHINE), (run.world.rank == 0, _OF_ALL_RANKS)):
        for each in warnings if is_first else ():
            each(run)


def _of_places(run: Run) -> None:
    fields = [name for name, field in run.fields.items() if not field.is_target]
    if named := [name for name in fields if name.partition(".")[0] in _PLACES]:
        warn_of_places(", ".join(named))


@cache
def warn_of_places(fields: str) -> None:
    """Logs, once in a process, that fields with names of targets do not follow the recipe."""
    _log.warning(
        f"the recipe crops, resizes or flips the images, but the fields {fields} stay as they are in the shards: their "
        f"coordinates are for the stored images, not the delivered images. Use Boxes, Mask or Keypoints"
    )


def _of_turned(run: Run) -> None:
    has_targets = any(field.is_target for field in run.fields.values())
    if has_targets and run.recipe.orientation == "off" and (turned := run.shards.index.counts["turned"]):
        _log.warning(
            f"{counted(turned, 'picture')} {'is' if turned == 1 else 'are'} turned by their EXIF orientation: targets "
            f"are read as coordinates in the stored pictures; if yours are for upright pictures, as in YOLO, set "
            f"`orientation: apply` in the recipe"
        )


def _of_reduced(run: Run) -> None:
    """Logs what RGB of 8 bits does not keep; at INFO if it is only profiles, which are mostly sRGB's."""
    counts = run.shards.index.reduced
    if text := describe_reduced(counts):
        level = logging.WARNING if sum(counts.values()) > counts["profile"] else logging.INFO
        _log.log(level, f"images are delivered as RGB of 8 bits: {text}")


def _of_classes(run: Run) -> None:
    mix, classes = run.recipe.mix, None if run.labels is None else run.labels.classes
    if mix is not None and classes is not None and (width := mix.num_classes) != len(classes):
        _log.warning(
            f"the recipe's mix.num_classes is {width}, but the data has {counted(len(classes), 'class', 'classes')}: "
            f"labels get {width} columns. Set it in the recipe, such as "
            f'preset={{"NAME": {{"mix": {{"num_classes": {len(classes)}}}}}}}'
        )


def _of_empty_shares(run: Run) -> None:
    if (plan := run.plan).has_empty_shares:
        _log.warning(
            f'last_batch="partial" gives some of {plan.world_size} ranks an empty batch at the end of each epoch of '
            f'{counted(plan.length, "sample")}, which may end your program: use last_batch="equal"'
            f"{'' if plan.length < plan.world_size else ', or batch_size=2 or more'}"
        )


def _of_groups(run: Run) -> None:
    plan, shards = run.plan, len(run.shards.shards)
    groups, ranks, ranks_of_node = plan.source.groups, plan.world_size, len(run.world.node)
    nodes, equal_parts = ranks / ranks_of_node, ranks // gcd(ranks, ranks_of_node)
    if groups and nodes > 1 and (advice := advise_groups(groups, plan.global_batch, shards, equal_parts)):
        _log.warning(
            f'shuffle="shards" with {counted(groups, "group")} of shards, {ceil(nodes)} nodes and {plan.global_batch} '
            f"samples in a step of all ranks: all nodes together read about {plan.times_read(nodes):.2f} times the "
            f"data in an epoch. For a new run, {advice}"
        )


def advise_groups(groups: int, global_batch: int, shards: int, nodes: int) -> str | None:
    """Returns how nodes with equal parts of a step read less; None if they share no group."""
    better = choose_groups(global_batch, shards, nodes)
    advice = f"Sampling(groups={better}) {f'with at least {better} shards ' if better > shards else ''}reads less"
    return advice if groups % nodes or global_batch % groups else None


def _of_small_buckets(run: Run) -> None:
    source = run.plan.source
    if small := source.dropped:
        _log.warning(
            f'last_batch="drop" never delivers the samples of {counted(len(small), "bucket")}, which have fewer than '
            f'{source.quantum}: {", ".join(small[:10])}; use last_batch="pad"'
        )


_OF_A_MACHINE = (
    _of_places,
    lambda run: run.shards.warn_of_hidden(),
    _of_small_buckets,
    _of_reduced,
    lambda run: warn_of_oversampling(run.recipe, run.shards, on_cpu=run.decoding_device_id is None),
    _of_turned,
    warn_of_memory,
)
_OF_ALL_RANKS = (_of_classes, _of_empty_shares, _of_groups)
