"""Finds the images that DALI cannot decode, or that the machine is the reason why nothing can be decoded."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

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

from gpuloader.base.dali import decoder_cause, failed_row, is_decode_failure, is_out_of_memory
from gpuloader.base.versions import describe_decoder_versions
from gpuloader.errors import DeviceError
from gpuloader.pipelines.graph import fed_by, graph_pipeline
from gpuloader.pipelines.inputs import GraphInputs, LastStep
from gpuloader.pipelines.pipeline_runner import PipelineRunner, UndecodableError
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams, Graph, Shape

if TYPE_CHECKING:
    from PIL.Image import Image

WITHOUT_ENGINES: dict[str, Any] = {"hw_decoder_load": 0.0}
"""The options of DALI's decoder with which an image that failed in a batch fails again.

A GPU's JPEG engine decodes only some images of a batch: alone, it might decode an image that in its batch went to
another decoder and failed there."""

GOOD_SIZE = (48, 64)
"""(height, width) of the good JPEG."""

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
        images: encoded images that passed validation; arrays, which are decoded already, cannot fail.
        params: their random parameters.
        num_threads: the number of decoding threads.
        decoder_options, region: the options with which the images failed, as for `recipe_pipeline`; JPEG engines are
            not used here.
        message: DALI's error, if this batch failed in a graph, which may have had its rows more than once.

    Raises:
        DeviceError: the good JPEG cannot be decoded, so the images are not the cause.
    """
    rows = [row for row, image in enumerate(images) if image.ndim == 1]
    if not rows:
        return {}
    files, params = [images[row] for row in rows], params.take(rows)
    refused = _find_refused_on_cpu(files, params, num_threads) if device_id is None and region else {}
    trial = Trial(graph, device_id, len(files), num_threads, decoder_options=decoder_options, region=region)
    return {rows[row]: cause for row, cause in (refused or trial.find_failing(files, params, message)).items()}


def taken_by_engines(images: Sequence[bytes], device_id: int) -> list[bool]:
    """Returns which images a GPU's JPEG engines can decode."""
    decoder = Decoder(device_id, backends=[Backend(BackendKind.HW_GPU_ONLY)])
    return [image is not None for image in decoder.decode([CodeStream(image) for image in images])]


class Trial:
    """Decodes images, and finds those that cannot be decoded: DALI's error loses the batch, but names a row.

    This row is tried alone, and then the batch without it. If no row is named, if the named one can be decoded, or if
    many rows fail, each row is tried alone. Before a row is blamed, a good JPEG is decoded. On a GPU an image alone
    gets a new pipeline, because nvJPEG's decoders may keep data of the image before.

    Args:
        graph: what is run, up to `last_step`. To trace all of a recipe's graph for each pipeline would take seconds.
        batch_size: the most images at a time.
        decoder_options, region: as for `recipe_pipeline`; JPEG engines are not used.

    Attributes:
        made: with `last_step` "all", row -> the first view, of the images that `find_failing` last decoded.
    """

    def __init__(
        self,
        graph: Graph,
        device_id: int | None,
        batch_size: int,
        num_threads: int,
        *,
        decoder_options: Mapping[str, float] | None = None,
        region: bool = False,
        last_step: LastStep = "decode",
    ) -> None:
        self.made: dict[int, NDArray[Any]] = {}
        self._graph, self._device_id, self._keeps = graph, device_id, last_step == "all"
        batch = self._batch = list[tuple[Sequence[NDArray[np.uint8]], AugmentParams]]()
        common: dict[str, Any] = {"device_id": device_id, "prefetch_queue_depth": 1}
        inputs = GraphInputs(graph, decoded=False, region=region, last_step=last_step, **common)
        common |= {"batch_size": batch_size, "num_threads": num_threads}
        common |= {"decoder_options": {**(decoder_options or {}), **WITHOUT_ENGINES}}
        self._running = PipelineRunner(partial(graph_pipeline, inputs, fed_by(lambda: batch[0], inputs), **common))

    def find_failing(
        self, images: Sequence[NDArray[np.uint8]], params: AugmentParams, message: str = ""
    ) -> dict[int, str]:
        """Returns the rows of a batch that cannot be decoded, with the causes.

        Args:
            message: DALI's error for this batch, in which rows may be repeated; unless given, the batch is decoded
                first.

        Raises:
            DeviceError: the good JPEG cannot be decoded.
        """
        failing, rest = dict[int, str](), list(range(len(images)))
        self.made = {}

        def error_of(rows: list[int]) -> str:
            """Returns DALI's message about an image, or ""."""
            try:
                outputs = self._run([images[row] for row in rows], params.take(rows))
            except UndecodableError as error:
                return str(error)
            if self._keeps:
                self.made |= zip(rows, np.array(outputs[0].as_cpu().as_tensor()))
            return ""

        while rest:
            suspect = None
            if len(rest) > 1 and len(failing) < _MOST_NAMED:
                message = message or error_of(rest)
                if not message:
                    break
                if (named := failed_row(message)) is not None:
                    suspect = rest[named % len(rest)]  # `Feed` repeats the rows in their order
            for row in sorted(rest, key=lambda row: row != suspect):
                rest.remove(row)
                if message := error_of([row]):
                    self.check_machine()
                    cause = decoder_cause(message)
                    failing[row] = f"{_CAUSE}: {cause}" if cause else _CAUSE
                    if row == suspect:
                        break
            message = ""
        return failing

    def check_machine(self) -> None:
        """Decodes a good JPEG; raises DeviceError if this fails, so that no image is the cause."""
        try:
            self._run([good_jpeg()], self._graph.draw(Draws(0, 0, np.zeros(1, np.int64)), np.array([GOOD_SIZE])))
        except (UndecodableError, RuntimeError) as error:
            if is_out_of_memory(str(error)):
                raise
            raise machine_error(str(error)) from None

    def _run(self, images: Sequence[NDArray[np.uint8]], params: AugmentParams) -> Any:  # noqa: ANN401 - DALI's
        self._batch[:] = [(images, params)]
        if len(images) == 1 and self._device_id is not None:
            self._running.drop()
        return self._running.next()


def _find_refused_on_cpu(
    images: Sequence[NDArray[np.uint8]], params: AugmentParams, num_threads: int
) -> dict[int, str]:
    backends = [Backend(BackendKind.CPU_ONLY)]
    decoder = Decoder(NVIMGCODEC_DEVICE_CPU_ONLY, max_num_cpu_threads=num_threads, backends=backends)
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


@cache
def good_jpeg() -> NDArray[np.uint8]:
    """Makes a JPEG that any decoder can decode, (bytes,)."""
    file = io.BytesIO()
    smooth_picture(0, GOOD_SIZE).save(file, "JPEG")
    return np.frombuffer(file.getvalue(), np.uint8)


def smooth_picture(seed: int, size: Shape) -> Image:
    """Makes a smooth RGB picture of a (height, width) with some texture, on which decoders differ little."""
    from PIL import Image  # here, because a normal start does not need it

    rng = np.random.default_rng(seed)
    few = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8))
    smooth = np.asarray(few.resize(size[::-1], Image.Resampling.BICUBIC), np.int16)
    return Image.fromarray((smooth + rng.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8))


def machine_error(message: str) -> DeviceError:
    """Makes the error for a decoder that fails on a good JPEG, with the decoder's message."""
    cause = decoder_cause(message) if is_decode_failure(message) else message
    return DeviceError(
        f"the decoder fails on a good JPEG, so the installation or the machine is the cause, not the images: "
        f"{cause or 'it gives no reason'} ({describe_decoder_versions()}). See `gpuloader doctor`; on a machine with a "
        f"GPU, device_id=None decodes on the CPU"
    )


def batch_error(message: str) -> DeviceError:
    """Makes the error for a decoder that fails on a batch, but decodes each of its images alone."""
    return DeviceError(
        f"the decoder fails on a batch, but decodes each of its images alone, so the decoder or the machine is the "
        f"cause, not an image: {decoder_cause(message) or message} ({describe_decoder_versions()}). On a GPU, "
        f"Decoder(hw_load=0) decodes without its JPEG engines, and device_id=None on the CPU"
    )
