"""Loads images from TAR shards and folders as batches for training, on a GPU or the CPU.

    from gpuloader import GPULoader

    for images, labels in GPULoader("shards/train-{0000..0147}.tar", batch_size=256):
        ...

Importing this package imports neither DALI nor torch; the first use of `GPULoader` does.
"""

import logging
from typing import TYPE_CHECKING, Any

from gpuloader.base.late_imports import import_late
from gpuloader.base.text import make_printable
from gpuloader.errors import GPULoaderError

if TYPE_CHECKING:
    from gpuloader import collators as collators
    from gpuloader import errors as errors
    from gpuloader import targets as targets
    from gpuloader import transforms as transforms
    from gpuloader.chain.settings import Decoder
    from gpuloader.compose import Compose
    from gpuloader.loading.buckets import Buckets
    from gpuloader.loading.delivery import Batch
    from gpuloader.loading.explaining import ExplainedSample
    from gpuloader.loading.fields import Field, OneOf
    from gpuloader.loading.loader import GPULoader
    from gpuloader.loading.mixed_loader import MixedLoader
    from gpuloader.loading.monitor import WaitMonitor
    from gpuloader.loading.options import BadImages, Cache, LabelFrom, Sampling
    from gpuloader.loading.stats import Stats
    from gpuloader.loading.world import World
    from gpuloader.stage import Stage
    from gpuloader.targets.boxes import Boxes
    from gpuloader.targets.keypoints import Keypoints
    from gpuloader.targets.masks import Mask

__version__ = "0.1.0"

logging.getLogger("gpuloader").addFilter(make_printable)

__all__ = [
    "BadImages",
    "Batch",
    "Boxes",
    "Buckets",
    "Cache",
    "Compose",
    "Decoder",
    "ExplainedSample",
    "Field",
    "GPULoader",
    "GPULoaderError",
    "Keypoints",
    "LabelFrom",
    "Mask",
    "MixedLoader",
    "OneOf",
    "Sampling",
    "Stage",
    "Stats",
    "WaitMonitor",
    "World",
    "__version__",
]

_LATE = {
    "Buckets": "gpuloader.loading.buckets",
    "Sampling": "gpuloader.loading.options",
    "LabelFrom": "gpuloader.loading.options",
    "Decoder": "gpuloader.chain.settings",
    "Cache": "gpuloader.loading.options",
    "BadImages": "gpuloader.loading.options",
    "ExplainedSample": "gpuloader.loading.explaining",
    "Field": "gpuloader.loading.fields",
    "OneOf": "gpuloader.loading.fields",
    "Batch": "gpuloader.loading.delivery",
    "Compose": "gpuloader.compose",
    "GPULoader": "gpuloader.loading.loader",
    "MixedLoader": "gpuloader.loading.mixed_loader",
    "Stage": "gpuloader.stage",
    "Stats": "gpuloader.loading.stats",
    "WaitMonitor": "gpuloader.loading.monitor",
    "World": "gpuloader.loading.world",
    "Boxes": "gpuloader.targets.boxes",
    "Keypoints": "gpuloader.targets.keypoints",
    "Mask": "gpuloader.targets.masks",
}


_OFFERED = {"collators", "errors", "targets", "transforms"}
"""Modules that `import gpuloader` makes available. Other modules need packages that may not be installed."""


def __dir__() -> list[str]:
    return sorted({*__all__, *_OFFERED})


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _OFFERED:
        return import_late(f"gpuloader.{name}")
    if name not in _LATE:
        raise AttributeError(f"module 'gpuloader' has no attribute {name!r}")
    from gpuloader.loading.installation import check_dali

    check_dali()
    import_late("gpuloader.targets")  # registers the fields that YAML names
    return getattr(import_late(_LATE[name]), name)
