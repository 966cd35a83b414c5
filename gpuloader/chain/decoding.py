"""Makes the links that decode: `Decode`, or with own code `Decode < Own < Decode`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpuloader.chain.decode import Decode
from gpuloader.chain.link import Link
from gpuloader.chain.own import Own, OwnCodeTargets, say_where
from gpuloader.chain.settings import Decoder
from gpuloader.pipelines import LastStep
from gpuloader.recipe import Recipe, Shape


def decoding(
    under: Link,
    recipe: Recipe,
    decoder: Decoder,
    device_id: int | None,
    targets: OwnCodeTargets,
    *,
    rows: int = 1,
    largest_image: Shape = (0, 0),
    runs_ahead: bool = True,
    delivers: bool = False,
    last_step: LastStep = "all",
) -> Link:
    """Puts the graphs of a recipe over a link, with its own code between them; see `Decode` and `Own`."""
    graphs, decode = recipe.graphs, partial(Decode, rows=rows, runs_ahead=runs_ahead)
    if recipe.own_code is None:
        return decode(under, graphs[0], decoder, device_id, largest_image=largest_image, last_step=last_step)
    if device_id is not None:
        say_where()
    on_cpu = replace(decoder, hw_load=None, hybrid_huffman_threshold=None)
    levels = decode(under, graphs[0], on_cpu, as_arrays=True, last_step=last_step)
    own = Own(levels, recipe, decoder, targets, runs_ahead=runs_ahead, delivers=delivers)
    return decode(own, graphs[1], decoder, device_id)
