"""turboloader's interface: write `import gpuloader.compat.turboloader as turboloader`, and keep the rest of a script.

Use it only to move to this library: as in turboloader, samples are single arrays in main memory. The `preset` of a
`Compose` does the same in a `GPULoader`, for batches and on a GPU.
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
