"""Makes the chain of a loader: batches of whole steps, decoded, from any cursor on.

    Open < Split < Prepare < Ahead < Decode [< Own < Decode] < Join

`Open` makes the batch of a step, `Split` its parts, `Prepare` cuts their files or decodes them at a part of their size,
`Ahead` runs these three in a thread, `Decode` and `Own` transform the images, and `Join` joins the parts.

`StepDecoder` makes single steps in the calling thread, by the same chain without `Ahead`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuloader.base.dali import is_out_of_memory
from gpuloader.chain.batch import Batch
from gpuloader.chain.decoding import decoding
from gpuloader.chain.given import Given
from gpuloader.chain.join import Join
from gpuloader.chain.link import Ahead, Causes, Link, Over, Wanted
from gpuloader.errors import DeviceError
from gpuloader.loading.collating import Collate
from gpuloader.loading.memory import explain_lack_of_memory
from gpuloader.loading.opening import Open, Prepare, Split
from gpuloader.loading.own_targets import OwnTargets
from gpuloader.loading.reading import Read
from gpuloader.loading.run import Run
from gpuloader.pipelines import LastStep
from gpuloader.plan import Cursor, Draws
from gpuloader.recipe import Shape

MOST_HINTED_PIXELS = 16_000_000  # nvJPEG may reserve memory of this size for each image of a batch
_DRAWN = 1000  # random windows, to find the largest
_ROUNDED_UP_PIXELS = 256  # a cut JPEG has whole restart intervals


class LoaderChain(NamedTuple):
    """The chain of a run: its last link, the one that reads ahead, and what remains to be done behind it, or None."""

    run: Run
    end: Link
    ahead: Ahead
    collate: Collate | None


def make_chain(run: Run, suspects: set[int], last_step: LastStep = "all") -> LoaderChain:
    """Makes the chain of a loader, which may be `cut` behind any link.

    Args:
        suspects: samples that are tried one by one; images that fail to decode become suspects.
        last_step: where the first graph ends, see `Decode`.
    """
    wanted, collate = Wanted(), Collate(run)
    read = Read(run, wanted)
    parts = Prepare(Split(Open(run, suspects, wanted, read), read), run)
    prefetch = run.decoder.prefetch
    read_ahead, decoded_ahead = run.parts.ahead(run.plan.batch_size, prefetch)
    if run.takes_mipmaps:
        decoded_ahead = min(decoded_ahead, prefetch)
    ahead = Ahead(parts, read_ahead, wanted, "gpuloader-reader")
    end = _decoded(ahead, run, decoded_ahead, last_step=last_step, delivers=collate.is_behind_own_code)
    return LoaderChain(run, end, ahead, collate if collate.is_behind_own_code else None)


class StepDecoder:
    """Decodes single steps of a run in the calling thread, which changes nothing for other chains.

    It keeps its pipeline for later steps, also of the run from another state.
    """

    def __init__(self, run: Run) -> None:
        self._head, self._suspects = _Changing(), set[int]()
        self._end = _decoded(self._head, run, 1, runs_ahead=False, delivers=Collate(run).is_behind_own_code)

    def step(self, run: Run, cursor: Cursor) -> Batch:
        """Returns the step at a cursor, with its views and fields.

        Args:
            run: the run of this decoder, or the same from another state.

        Raises:
            GPULoaderError: what the training loop would get in place of this step.
        """
        wanted, collate = Wanted(), Collate(run)
        read = Read(run, wanted)
        head = Prepare(Split(Open(run, self._suspects, wanted, read, goes_on=False), read), run)
        try:
            self._end.seek((head, cursor))
            batch = self._end.next()
        except BaseException:
            self._end.close()
            raise
        assert batch is not None
        return collate(batch) if collate.is_behind_own_code else batch

    def close(self) -> None:
        """Ends the pipeline. It may be called twice; a later step begins another."""
        self._end.close()


class _Changing(Over):
    """A link over another one at each `seek`, which takes that link and its place."""

    def __init__(self) -> None:
        super().__init__(Given())

    def seek(self, place: tuple[Link, Cursor]) -> None:
        self._under.close()
        self._under, cursor = place
        self._under.seek(cursor)

    def next(self) -> Batch | None:
        return self._under.next()

    def again(self, batch: Batch, causes: Causes) -> Batch | None:
        return self._under.again(batch, causes)


def _decoded(
    under: Link,
    run: Run,
    prefetch: int,
    *,
    delivers: bool,
    runs_ahead: bool = True,
    last_step: LastStep = "all",
) -> Link:
    """Puts the links that decode over a link that makes parts."""
    links = decoding(
        under,
        run.recipe,
        replace(run.decoder, prefetch=prefetch),
        run.device_id,
        OwnTargets(run),
        rows=run.parts.most_rows,
        largest_image=largest_decoded(run),
        runs_ahead=runs_ahead,
        delivers=delivers,
        last_step=last_step,
    )
    return Join(links, pads=isinstance(run.recipe.batch, dict))


def largest_decoded(run: Run) -> Shape:
    """Returns the approximate height and width of the largest image for the decoder; (0, 0) if no size is known."""
    height, width = run.shards.index.largest_image(min(run.recipe.max_pixels, MOST_HINTED_PIXELS))
    if not (run.shards.seekable and height):
        return height, width
    regions = run.largest.draw(Draws(0, 0, np.arange(_DRAWN)), np.tile([height, width], (_DRAWN, 1))).region
    rows, columns = ((regions[:, 2:] - regions[:, :2]).max(0) + _ROUNDED_UP_PIXELS).tolist()
    return min(height, rows), min(width, columns)


def lack_of_memory(run: Run, error: BaseException) -> DeviceError | None:
    """Returns an error that says what took the memory, if the memory is full."""
    is_full = isinstance(error, RuntimeError) and is_out_of_memory(str(error))
    return DeviceError(explain_lack_of_memory(run, str(error))) if is_full else None
