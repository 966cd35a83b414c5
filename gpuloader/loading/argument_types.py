"""The types of the arguments of `GPULoader`, for functions that pass them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import TypedDict

from gpuloader.chain.settings import Decoder
from gpuloader.collators import Collator
from gpuloader.loading.fields import Component
from gpuloader.loading.options import BadImages, Cache, LabelFrom, Sampling
from gpuloader.loading.selection import CustomOrder
from gpuloader.loading.world import World
from gpuloader.plan import LastBatch, Shuffle
from gpuloader.recipe import AnyPreset as AnyPreset  # noqa: PLC0414 - the others are imported from here, too

AnyDevice: TypeAlias = int | str | torch.device | None
AnyShuffle: TypeAlias = Shuffle | bool | CustomOrder | None
AnyOutput: TypeAlias = (
    Literal["tuple", "dict"] | tuple[str, ...] | list[str] | Mapping[str, str] | Callable[[dict[str, Any]], Any] | None
)
AnyLabels: TypeAlias = str | LabelFrom | Mapping[str, Any] | None
AnyFields: TypeAlias = Sequence[str] | Mapping[str, Collator | Component | Mapping[str, Any]]
AnySampling: TypeAlias = Sampling | Mapping[str, Any] | None
OnError: TypeAlias = Literal["raise", "replace", "skip"] | BadImages | Mapping[str, Any]
AnyDecoder: TypeAlias = Decoder | Mapping[str, Any] | None
AnyCache: TypeAlias = Cache | Mapping[str, Any] | None
AnyWorld: TypeAlias = World | DeviceMesh | Mapping[str, Any] | None


class LoaderOptions(TypedDict, total=False):
    """The keyword arguments of `GPULoader` that depend neither on the type of the batches nor on the rank."""

    preset: AnyPreset
    shuffle: AnyShuffle
    last_batch: LastBatch | None
    seed: int
    label_from: AnyLabels
    sampling: AnySampling
    on_error: OnError
    decoder: AnyDecoder
    cache: AnyCache
