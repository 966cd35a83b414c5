"""`explain_batch`: says which samples a batch has, and how each was cut and changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuloader.chain.batch import Batch
from gpuloader.images.mipmaps import extension_of
from gpuloader.loading.drawing import draw_upright
from gpuloader.loading.run import Run
from gpuloader.recipe import ExplainedView, Step, explain_params


@dataclass(frozen=True)
class ExplainedSample:
    """A sample of a batch, and how it was made.

    Attributes:
        id: its number in the data, as `batch["index"]`.
        key: WebDataset's `__key__`.
        shard: the path or URL of the shard, or of the file in a folder.
        offset: the byte of the shard at which the image begins.
        label: the number of its class, before `mix`; None without labels.
        valid: False for padding and for the replacement of a bad image.
        planned_key: the key of the bad image that this sample replaces; None if it replaces none.
        cause: why that image is bad.
        views: the random parameters of each view of the recipe.

    Example:
        >>> from gpuloader import ExplainedSample, GPULoader
        >>> def top(sample: ExplainedSample) -> float:
        ...     return sample.views[0].window[0]
        >>> with GPULoader("shards/", 8, "cpu", preset="cifar10_eval") as loader:
        ...     [top(sample) for sample in loader.explain(0, 0)[:2]]
        [0.0, 0.0]
    """

    id: int
    key: str
    shard: str
    offset: int
    label: int | None
    valid: bool
    planned_key: str | None
    cause: str | None
    views: tuple[ExplainedView, ...]


def explain_batch(run: Run, batch: Batch) -> list[ExplainedSample]:
    """Returns the samples of a decoded step, in the order of its rows, without those that are not delivered."""
    batch = batch.take(batch.stays.nonzero()[0])
    made = []
    for row, (sample, views) in enumerate(zip(batch.ids.tolist(), explain_views(run, batch), strict=True)):
        where, cause = run.shards.locate(sample, int(batch.sides[row])), batch.causes[row]
        made.append(
            ExplainedSample(
                sample,
                where.key,
                where.shard,
                where.offset,
                None if batch.labels is None else int(batch.labels[row]),
                bool(batch.valid[row]),
                None if cause is None else run.shards.index.key(int(batch.planned[row])),
                cause,
                views,
            )
        )
    return made


def explain_views(run: Run, batch: Batch) -> Sequence[tuple[ExplainedView, ...]]:
    """Returns the random parameters of each view of each row; the first step is "oversampling" if it decoded less."""
    params = draw_upright(run, batch)
    made = []
    for row in range(len(batch)):
        decoded = explain_decoding(batch, row)
        steps = (Step("oversampling", "decode", decoded),) if decoded else ()
        views = explain_params(run.recipe, params.take([row]))
        made.append(tuple(replace(view, steps=(*steps, *view.steps)) for view in views))
    return made


def explain_decoding(batch: Batch, row: int) -> dict[str, str]:
    """Returns what is decoded of a row of a prepared batch, unless it is all of the picture.

    It has the extension of a smaller copy as "file", and the size at which a JPEG is decoded as "scale": "1/2".
    """
    side, factor = int(batch.sides[row]), int(batch.factors[row])
    return {**({"file": extension_of(side)} if side else {}), **({"scale": f"1/{factor}"} if factor > 1 else {})}
