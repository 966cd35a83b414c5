"""`replay`: which samples a step of a run had, on all ranks or on one, and what the model saw of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuloader import __version__
from gpuloader.base.atomic_files import atomic_file
from gpuloader.base.text import counted, printable
from gpuloader.base.values import is_integer
from gpuloader.chain.batch import Batch
from gpuloader.errors import ConfigError, StateError
from gpuloader.loading.delivery import images_and_labels
from gpuloader.loading.explaining import ExplainedSample, explain_batch
from gpuloader.loading.loader import GPULoader, decode_step
from gpuloader.loading.run import Run
from gpuloader.loading.world import World
from gpuloader.shards import read_names
from gpuloader.tools.outputs import PICTURES, check_output
from gpuloader.tools.overlay import Overlay, overlays_of
from gpuloader.tools.sheet import Sheet, as_picture, fitting_tile

__all__ = ["ReplayResult", "replay"]

_MOST_DRAWN = 64
_COLUMNS = 8
_Tile = tuple[Any, list[str], Any]


@dataclass(frozen=True)
class ReplayResult:
    """The samples of a step.

    Attributes:
        epoch: the step's epoch.
        delivered: the samples that all ranks had delivered in this epoch before the step.
        ranks: the number of ranks.
        batch_size: the samples of a rank in a step.
        samples: rank -> the samples of its batch, in order.
    """

    epoch: int
    delivered: int
    ranks: int
    batch_size: int
    samples: Mapping[int, list[ExplainedSample]]

    @property
    def all_samples(self) -> list[ExplainedSample]:
        """The samples of all ranks that were replayed, by rank."""
        return [sample for batch in self.samples.values() for sample in batch]


def replay(
    loader: Mapping[str, Any],
    epoch: int | None = None,
    step: int | None = None,
    *,
    state: Path | None = None,
    ranks: int = 1,
    rank: int | None = None,
    picture: Path | None = None,
    keys: Path | None = None,
) -> ReplayResult:
    """Decodes a step of a run again, and says which samples it has and how each was made.

    Args:
        loader: the arguments of `GPULoader`, without `world`; `batch_size` is 1 unless given.
        epoch: the step's epoch.
        step: the step, counted from 0 at the epoch's beginning.
        state: in place of epoch and step, a JSON file of what `state_dict` returned: the step that follows it.
        ranks: the number of ranks of the run; the global batch is `ranks` times the batch size.
        rank: the rank to replay; by default all of them.
        picture: a file to write, .png or .jpg: the first 64 images as the model gets them.
        keys: a text file to write: the key of each sample on a line, without padding.

    Raises:
        GPULoaderError: one of `gpuloader.errors`; its message says what to do.
    """
    if (state is None) == (epoch is None or step is None) or (state is not None and (epoch, step) != (None, None)):
        raise ConfigError("give --epoch and --step, or --state alone")
    if not is_integer(ranks, 1, 2**31) or not (rank is None or is_integer(rank, 0, ranks)):
        raise ConfigError(f"ranks={ranks}, rank={rank}: allowed are at least 1 rank, and a rank from 0 to ranks - 1")
    for output, suffixes in ((picture, PICTURES), (keys, (".txt",))):
        if output is not None:
            check_output(output, suffixes)
    place: tuple[Any, ...] = (epoch, step) if state is None else (_read_state(state),)
    samples: dict[int, list[ExplainedSample]] = {}
    tiles: list[_Tile] = []
    for number in range(ranks) if rank is None else [rank]:
        with GPULoader(**{"batch_size": 1, **loader}, world=World(number, ranks)) as opened:
            run, batch = decode_step(opened, *place)
            samples[number] = explain_batch(run, batch)
            if picture is not None and len(tiles) < _MOST_DRAWN:
                tiles += _tiles(run, batch, samples[number])[: _MOST_DRAWN - len(tiles)]
    cursor = batch.step.cursor
    result = ReplayResult(cursor.epoch, cursor.delivered, ranks, run.plan.batch_size, samples)
    if picture is not None:
        _draw(picture, tiles, result, rank)
    if keys is not None:
        _write_keys(keys, [each for each in result.all_samples if each.valid or each.cause is not None])
    return result


def _write_keys(keys: Path, samples: Sequence[ExplainedSample]) -> None:
    for sample in samples:
        if sample.key != sample.key.strip() or {*sample.key} & {*"\r\n"}:
            raise ConfigError(
                f"--keys: a line of a file cannot hold the key {sample.key!r}: leave out --keys, and name samples by "
                f"their ids; this one is {sample.id}"
            )
    with atomic_file(keys.resolve()) as file:
        unique = dict.fromkeys(sample.key for sample in samples)
        file.write("".join(f"{key}\n" for key in unique).encode("utf-8", "surrogateescape"))


def _read_state(path: Path) -> Any:  # noqa: ANN401 - the loader checks it
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path} is no state in JSON ({error}): save json.dumps(loader.state_dict())") from None


def _tiles(run: Run, batch: Batch, samples: list[ExplainedSample]) -> list[_Tile]:
    """Returns the images of a batch as delivered, without normalisation, each with its texts and its targets."""
    batch = batch.take(np.flatnonzero(batch.stays))
    views, tiles = run.recipe.each_view, []
    images, _ = images_and_labels(run, batch)
    names = read_names(run.shards.shards) if run.labels is None else run.labels.names
    for row, sample in enumerate(samples):
        overlays: Sequence[Overlay | None] = overlays_of(run, batch, row, names) or [None] * len(views)
        about = "" if sample.label is None else f"class {sample.label} {names.get(sample.label, '')}"
        if not sample.valid:
            about = "padding" if sample.cause is None else f"replaces {sample.planned_key}"
        for view, of_view, overlay in zip(views, images if len(views) > 1 else [images], overlays, strict=True):
            shown = as_picture(of_view[row], view.normalize)
            tiles.append((shown, [printable(sample.key), printable(about)], overlay))
    return tiles


def _draw(picture: Path, tiles: list[_Tile], result: ReplayResult, rank: int | None) -> None:
    whose = f"all {result.ranks} ranks" if rank is None else f"rank {rank} of {result.ranks}"
    place = f"epoch {result.epoch}, after {counted(result.delivered, 'sample')}"
    drawn = f"{counted(len(tiles), 'image')} of {counted(len(result.all_samples), 'sample')}, normalising undone"
    heading = [f"{place}, {whose}", f"batch size {result.batch_size}; {drawn}; gpuloader {__version__}"]
    tile = fitting_tile(side for shown, _, _ in tiles for side in shown.size)
    sheet = Sheet(tile, min(_COLUMNS, max(2, len(tiles))), max(1, -(-len(tiles) // _COLUMNS)), heading)
    for number, (shown, lines, overlay) in enumerate(tiles):
        sheet.put(*divmod(number, _COLUMNS), shown, lines, overlay=overlay)
    sheet.image.save(picture, quality=90)  # of JPEG
