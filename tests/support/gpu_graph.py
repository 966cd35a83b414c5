"""The graph that a GPU runs, on DALI's backend for the CPU: its operators have both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from running import as_arrays

from gpuloader.pipelines.graph import of_view
from gpuloader.pipelines.operators import decode_region, view_on_gpu
from gpuloader.recipe import Preset

_DTYPES = {"int32": types.INT32, "float32": types.FLOAT, "float64": types.FLOAT64}


def run_gpu_operators(
    preset: Preset, images: Sequence[bytes], arrays: Mapping[str, np.ndarray[Any, Any]], region: bool = True
) -> list[torch.Tensor]:
    """Each view's images, float32 (n, 3, h, w), decoded as on the CPU."""

    @pipeline_def(batch_size=len(images), num_threads=2, device_id=None, enable_conditionals=True)
    def graph() -> Any:  # noqa: ANN401
        encoded, *rest = fn.external_source(
            source=lambda: (as_arrays(images), *arrays.values()),
            num_outputs=1 + len(arrays),
            dtype=[types.UINT8, *(_DTYPES[array.dtype.name] for array in arrays.values())],
            ndim=[1, *(array.ndim - 1 for array in arrays.values())],
        )
        drawn = dict(zip(arrays, rest))
        cut = decode_region(encoded, drawn, "cpu", preset, by_decoder=region)
        return tuple(view_on_gpu(cut, of_view(drawn, view.number), view, preset) for view in preset.each_view)

    outputs = [torch.from_numpy(np.array(output.as_array())).float() for output in graph().run()]
    return [output.permute(0, 3, 1, 2) if preset.layout == "channels_last" else output for output in outputs]
