"""turboloader's interface: `import gpuloader.compat.turboloader as turboloader`, and nothing else in a script changes.

It is a way to move, not a place to stay: samples are arrays in main memory, one by one, as there. A `Compose` has the
`preset` with which `GPULoader` makes the same of whole batches, on a GPU where there is one.
"""

from gpuloader.compat.turboloader.data_loader import DataLoader, Sample
from gpuloader.compat.turboloader.pipeline import Pipeline, ResizeMethod, TransformConfig
from gpuloader.compat.turboloader.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    ImageNetNormalize,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    Resize,
    TensorFormat,
    ToTensor,
    Transform,
)

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "DataLoader",
    "ImageNetNormalize",
    "Normalize",
    "Pipeline",
    "RandomCrop",
    "RandomHorizontalFlip",
    "Resize",
    "ResizeMethod",
    "Sample",
    "TensorFormat",
    "ToTensor",
    "Transform",
    "TransformConfig",
]
