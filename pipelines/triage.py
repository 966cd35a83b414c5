"""Finds the samples of a batch that DALI cannot decode: its error loses the batch and names one of them at most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.nvimgcodec import (
    NVIMGCODEC_DEVICE_CPU_ONLY,
    Backend,
    BackendKind,
    CodeStream,
    DecodeParams,
    Decoder,
    Region,
)

from gpuloader.base.dali import decoder_cause, failed_row, is_out_of_memory
from gpuloader.pipelines.blame import GOOD_SIZE, good_jpeg, machine_error
from gpuloader.pipelines.graph import GraphInputs, fed_by, graph_pipeline
from gpuloader.pipelines.pipeline_runner import PipelineRunner, UndecodableError
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams, Graph

WITHOUT_ENGINES: dict[str, Any] = {"hw_decoder_load": 0.0}
"""The options of DALI's decoder with which an image that failed in a batch fails again.

A GPU's JPEG engine decodes only some images of a batch: alone, it might decode an image that in its batch went to
another decoder and failed there."""

_CAUSE = "DALI's decoder fails on it"
_MOST_NAMED = 8  # each costs another try of the whole batch


def find_undecodable(
    graph: Graph,
    images: Sequence[NDArray[np.uint8]],
    params: AugmentParams,
    device_id: int | None,
    num_threads: int = 1,
    decoder_options: Mapping[str, float] | None = None,
    region: bool = True,
    message: str = "",
) -> dict[int, str]:
    """Returns the rows whose regions cannot be decoded, with the causes.

    On the CPU nvImageCodec decodes the regions. DALI uses this decoder, too, but here it reports each image, and needs
    no pipeline. If it refuses no image, and on a GPU, the recipe's graph decides. Before an image is blamed, a good
    JPEG is decoded.

    Args:
        images: encoded images that passed validation.
        params: their random parameters.
        num_threads: the number of decoding threads.
        decoder_options, region: the options with which the images failed, as for `recipe_pipeline`; JPEG engines are
            not used here.
        message: DALI's error, if this batch failed in a graph, which may have had its rows more than once.

    Raises:
        DeviceError: the good JPEG cannot be decoded, so the images are not the cause.
    """
    refused = _find_refused_on_cpu(images, params, num_threads) if device_id is None and region else {}
    return refused or _find_refused_by_graph(
        graph, images, params, device_id, num_threads, decoder_options or {}, region, message
    )


def taken_by_engines(images: Sequence[bytes], device_id: int) -> list[bool]:
    """Returns which images a GPU's JPEG engines can decode."""
    decoder = Decoder(device_id, backends=[Backend(BackendKind.HW_GPU_ONLY)])
    return [image is not None for image in decoder.decode([CodeStream(image) for image in images])]


def _find_refused_on_cpu(
    images: Sequence[NDArray[np.uint8]], params: AugmentParams, num_threads: int
) -> dict[int, str]:
    backend = Backend(BackendKind.CPU_ONLY)
    decoder = Decoder(NVIMGCODEC_DEVICE_CPU_ONLY, max_num_cpu_threads=num_threads, backends=[backend])
    # The same settings as DALI's, which converts any depth to 8 bits itself.
    decode_params = DecodeParams(apply_exif_orientation=False, allow_any_depth=True)
    in_files = (params.region - np.tile(params.origin, 2)).tolist()
    windows = [
        CodeStream(image).get_sub_code_stream(region=Region(region[:2], region[2:]))
        for image, region in zip(images, in_files, strict=True)
    ]
    causes: dict[int, str] = {}
    for first in range(0, len(windows), num_threads):  # decoding the whole batch at once would double its memory
        decoded = decoder.decode(windows[first : first + num_threads], params=decode_params)
        causes |= {first + row: _CAUSE for row, image in enumerate(decoded) if image is None}
    if causes and decoder.decode([CodeStream(good_jpeg())], params=decode_params)[0] is None:
        raise machine_error("")
    return causes


def _find_refused_by_graph(
    graph: Graph,
    images: Sequence[NDArray[np.uint8]],
    params: AugmentParams,
    device_id: int | None,
    num_threads: int,
    decoder_options: Mapping[str, float],
    region: bool,
    message: str,
) -> dict[int, str]:
    """Runs samples through the recipe's graph up to the decoder; returns failing rows, with causes.

    The graph ends at the decoder, because tracing all of it for each pipeline would take seconds.
    """
    images = [*images, good_jpeg()]
    good_params = graph.draw(Draws(0, 0, np.zeros(1, np.int64)), np.array([GOOD_SIZE]))
    chosen: Sequence[int] = ()

    def source() -> tuple[list[NDArray[np.uint8]], AugmentParams]:
        is_good = chosen == [len(images) - 1]
        return [images[row] for row in chosen], good_params if is_good else params.take(chosen)

    inputs = GraphInputs(graph, device_id, decoded=False, region=region, prefetch_queue_depth=1, last_step="decode")
    running = PipelineRunner(
        lambda: graph_pipeline(
            inputs,
            fed_by(source, inputs),
            batch_size=len(images) - 1,
            num_threads=num_threads,
            device_id=device_id,
            prefetch_queue_depth=1,
            decoder_options={**decoder_options, **WITHOUT_ENGINES},
        )
    )

    def decode(rows: Sequence[int]) -> None:
        nonlocal chosen
        chosen = rows
        if len(rows) == 1 and device_id is not None:
            running.drop()
        running.next()

    return find_failing(len(images) - 1, decode, message)


def find_failing(rows: int, decode: Callable[[Sequence[int]], object], message: str = "") -> dict[int, str]:
    """Returns the rows of a batch that cannot be decoded, with the causes.

    DALI's error loses the batch, but names a row. This row is tried alone, and then the batch without it. If no row is
    named, if the named one can be decoded, or if many rows fail, each row is tried alone. Before a row is blamed, a
    good JPEG is decoded.

    Args:
        rows: the number of rows.
        decode: decodes some rows, or raises UndecodableError; the row behind the last is a good JPEG. On a GPU it needs
            a new pipeline for a row alone, because nvJPEG's decoders may keep data of the image before.
        message: DALI's error for this batch, in which rows may be repeated; unless given, the batch is decoded first.

    Raises:
        DeviceError: the good JPEG cannot be decoded.
    """
    failing: dict[int, str] = {}
    rest = list(range(rows))
    while rest:
        suspect = None
        if len(rest) > 1 and len(failing) < _MOST_NAMED:
            message = message or _error_of(decode, rest)
            if not message:
                break
            if (named := failed_row(message)) is not None:
                suspect = rest[named % len(rest)]  # `Feed` repeats the rows in their order
        for row in sorted(rest, key=lambda row: row != suspect):
            rest.remove(row)
            if message := _error_of(decode, [row]):
                check_machine(lambda: decode([rows]))
                cause = decoder_cause(message)
                failing[row] = f"{_CAUSE}: {cause}" if cause else _CAUSE
                if row == suspect:
                    break
        message = ""
    return failing


def check_machine(decode_good: Callable[[], object]) -> None:
    """Decodes a good JPEG; raises DeviceError if this fails, so that no image is the cause."""
    try:
        decode_good()
    except (UndecodableError, RuntimeError) as error:
        if is_out_of_memory(str(error)):
            raise
        raise machine_error(str(error)) from None


def _error_of(decode: Callable[[Sequence[int]], object], rows: Sequence[int]) -> str:
    """Returns DALI's message about an image, or ""."""
    try:
        decode(rows)
    except UndecodableError as error:
        return str(error)
    return ""
