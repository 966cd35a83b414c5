"""Makes the chain of a loader: batches of whole steps, decoded, from any cursor on.

    Open < Split < Prepare < Ahead < Decode [< Own < Decode] < Join

`Open` makes the batch of a step, `Split` its parts, `Prepare` cuts their files or decodes them at a part of their size,
`Ahead` runs these three in a thread, `Decode` and `Own` transform the images, and `Join` joins the parts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuloader.base.dali import is_out_of_memory
from gpuloader.chain.decoding import decoding
from gpuloader.chain.join import Join
from gpuloader.chain.link import Ahead, Link, Wanted
from gpuloader.errors import DeviceError
from gpuloader.loading.collating import Collate
from gpuloader.loading.memory import explain_lack_of_memory
from gpuloader.loading.opening import Open, Prepare, Split
from gpuloader.loading.own_targets import OwnTargets
from gpuloader.loading.reading import Read
from gpuloader.loading.run import Run
from gpuloader.pipelines import LastStep
from gpuloader.plan import Draws
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
    read_ahead = prefetch + 1
    decoded_ahead = prefetch * (1 if run.takes_mipmaps else run.parts.ahead(run.plan.batch_size))
    if run.oversampling is not None:  # `Ahead` decodes, too, and arrays need more memory than files
        read_ahead, decoded_ahead = 1, max(1, prefetch - 1)
    ahead = Ahead(parts, read_ahead, wanted, "gpuloader-reader")
    decoded = decoding(
        ahead,
        run.recipe,
        replace(run.decoder, prefetch=decoded_ahead),
        run.device_id,
        OwnTargets(run),
        rows=run.parts.most_rows,
        largest_image=largest_decoded(run),
        delivers=collate.is_behind_own_code,
        last_step=last_step,
    )
    end = Join(decoded, pads=isinstance(run.recipe.batch, dict))
    return LoaderChain(run, end, ahead, collate if collate.is_behind_own_code else None)


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
