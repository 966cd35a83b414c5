"""Which samples of a batch DALI cannot decode. Its own error loses the whole batch and does not always name them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
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

from gpuloader.internals.dali import decoder_cause, is_decode_failure, is_out_of_memory
from gpuloader.pipelines.blame import GOOD_SIZE, good_jpeg, machine_error
from gpuloader.pipelines.graph import recipe_pipeline
from gpuloader.plan import Draws
from gpuloader.recipe import Preset

WITHOUT_ENGINES: dict[str, Any] = {"hw_decoder_load": 0.0}
"""Options of DALI's decoder, so that what failed in a batch fails again. A GPU's JPEG engine gets a part of a batch
alone: it might decode an image which in its batch went to another decoder, and failed there."""

_CAUSE = "DALI's decoder fails on it"


def find_undecodable(
    preset: Preset,
    images: Sequence[NDArray[np.uint8]],
    arrays: Mapping[str, NDArray[Any]],
    device_id: int | None,
    num_threads: int = 1,
    decoder_options: Mapping[str, float] | None = None,
    region: bool = True,
) -> dict[int, str]:
    """The rows whose regions cannot be decoded, with the cause.

    On the CPU nvImageCodec decodes the regions. It is DALI's own decoder, but says of each image whether that worked,
    and needs no pipeline. Where it refuses none, and on a GPU, the recipe's graph decides. Before an image is blamed, a
    good JPEG is decoded.

    Args:
        images: encoded, which the gate let pass.
        arrays: what the recipe drew for them.
        num_threads: that decode, on the CPU.
        decoder_options, region: those that the images failed with, as `recipe_pipeline` has them; no JPEG engine takes
            part here.

    Raises:
        DeviceError: the good JPEG cannot be decoded, so no image is to blame.
    """
    refused = _find_refused_on_cpu(images, arrays, num_threads) if device_id is None and region else {}
    return refused or _find_refused_by_graph(preset, images, arrays, device_id, decoder_options or {}, region)


def _find_refused_on_cpu(
    images: Sequence[NDArray[np.uint8]], arrays: Mapping[str, NDArray[Any]], num_threads: int
) -> dict[int, str]:
    backend = Backend(BackendKind.CPU_ONLY)
    decoder = Decoder(NVIMGCODEC_DEVICE_CPU_ONLY, max_num_cpu_threads=num_threads, backends=[backend])
    # As DALI asks for them; it makes 8 bits of any depth itself.
    params = DecodeParams(apply_exif_orientation=False, allow_any_depth=True)
    starts, ends = arrays["region_start"], arrays["region_start"] + arrays["region_shape"]
    windows = [
        CodeStream(image).get_sub_code_stream(region=Region(start.tolist(), end.tolist()))
        for image, start, end in zip(images, starts, ends, strict=True)
    ]
    causes: dict[int, str] = {}
    for first in range(0, len(windows), num_threads):  # a batch of decoded images at once would take its memory twice
        decoded = decoder.decode(windows[first : first + num_threads], params=params)
        causes |= {first + row: _CAUSE for row, image in enumerate(decoded) if image is None}
    if causes and decoder.decode([CodeStream(good_jpeg())], params=params)[0] is None:
        raise machine_error("")
    return causes


def _find_refused_by_graph(
    preset: Preset,
    images: Sequence[NDArray[np.uint8]],
    arrays: Mapping[str, NDArray[Any]],
    device_id: int | None,
    decoder_options: Mapping[str, float],
    region: bool,
) -> dict[int, str]:
    """Runs the samples one by one through the recipe's graph up to the decoder: the rows that fail, with DALI's cause.

    On a GPU each has a pipeline of its own: nvJPEG's decoders may keep what they read of the image before. To trace the
    whole graph for each would take seconds.
    """
    good, of_good = len(images), preset.arrays(Draws(0, 0, np.zeros(1, np.int64)), *np.array([GOOD_SIZE]).T)
    images = [*images, good_jpeg()]
    arrays = {name: np.concatenate([array, of_good[name]]) for name, array in arrays.items()}
    causes: dict[int, str] = {}
    rows = deque(range(good))
    row = -1

    def source() -> tuple[Any, ...]:
        nonlocal row
        row = rows.popleft()
        return ([images[row]], *(array[row : row + 1] for array in arrays.values()))

    pipeline, options = None, {**decoder_options, **WITHOUT_ENGINES}
    while rows:
        if pipeline is None:
            pipeline = recipe_pipeline(
                preset=preset,
                source=source,
                batch_size=1,
                num_threads=1,
                device_id=device_id,
                prefetch_queue_depth=1,
                decoder_options=options,
                region=region,
                last_step="decode",
            )
        try:
            pipeline.run()
        except RuntimeError as error:
            if row == good and not is_out_of_memory(str(error)):
                raise machine_error(str(error)) from None
            if not is_decode_failure(str(error)):
                raise
            causes[row] = cause_of(str(error))
            rows.appendleft(good)
            pipeline = None  # DALI says that one which failed is no longer valid
        if device_id is not None:
            pipeline = None
    return causes


def cause_of(message: str) -> str:
    """What went wrong, out of DALI's message."""
    said = decoder_cause(message)
    return f"{_CAUSE}: {said}" if said else _CAUSE
