"""The library as on a machine with a GPU, on DALI's backend for the CPU: it has all operators of the GPU's graph.

The graph is the one that is built for a GPU, but `mixed` and `gpu` are `cpu` where the pipeline is built. So the CPU's
decoder decodes; what a GPU's does, only tests/gpu can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nvidia.dali.data_node import DataNode
from running import run_views

from gpuloader import GPULoader
from gpuloader.chain.batch import Batch
from gpuloader.chain.decode import Decode
from gpuloader.loading import delivery
from gpuloader.loading.blending import mix_together
from gpuloader.loading.loader import run_of
from gpuloader.loading.run import Run
from gpuloader.pipelines import graph
from gpuloader.pipelines.operators import decode_region
from gpuloader.recipe import AugmentParams, Recipe

GPU = 0


@contextmanager
def gpu_graph() -> Iterator[None]:
    """Inside of it there is one GPU, `GPU`, in whose place the CPU works; a loader on it must begin and end there."""
    build, no_images = graph.dali_graph, Decode._no_images

    def no_images_here(link: Decode, batch: Batch) -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(link, "_device_id", None)
            return no_images(link, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "dali_graph", lambda *args, **options: build(*args, **options | {"device_id": None}))
        patch.setattr(graph, "decode_region", lambda image, drawn, _, *rest: decode_region(image, drawn, "cpu", *rest))
        patch.setattr(DataNode, "gpu", lambda node: node)

        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(
            torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="a CPU", total_memory=1 << 40)
        )
        patch.setattr(Run, "device", torch.device("cpu"))
        patch.setattr(Decode, "_no_images", no_images_here)
        patch.setattr(delivery, "mix_images", mix_together)
        yield


@contextmanager
def load_on(device_id: int | None, tar: Any, batch_size: int = 8, **options: Any) -> Iterator[GPULoader]:  # noqa: ANN401
    """A loader on `GPU` or the CPU: it gives dictionaries, and the last batch may be a part."""
    with gpu_graph() if device_id == GPU else nullcontext():
        settings = {"output": "dict", "last_batch": "partial", **options}
        with GPULoader(tar, batch_size, device_id, **settings) as loader:
            assert run_of(loader).device_id == device_id
            yield loader


@contextmanager
def no_reads(loader: GPULoader) -> Iterator[None]:
    """Inside of it a loader on the CPU delivers on torch's device "meta", and every read of its values is an error.

    So is what a GPU would have to finish first: `tolist`, `cpu`, an index of bools.
    """
    _ = run_of(loader).parts  # they are those of the CPU
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "device", torch.device("meta"))
        yield


def run_gpu_graph(
    preset: Recipe, images: Sequence[bytes], params: AugmentParams, region: bool = True
) -> list[torch.Tensor]:
    """`run_views` of the GPU's graph."""
    with gpu_graph():
        return run_views(preset, images, params, GPU, region=region)
