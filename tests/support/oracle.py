"""torchvision, as an independent oracle.

The tests use its transforms, which are plain Python. Where its compiled operators do not fit the torch that is
installed (there is no build of them for a CPU-only torch), it is imported without them: they register shapes for
operators that are not there, and that registration is left out.
"""

import sys
import types

import torch

try:
    import torchvision
except RuntimeError:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    _operators = torch.library.Library("torchvision", "DEF")
    _operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
    import torchvision

from torchvision import transforms
from torchvision.transforms.v2 import functional

__all__ = ["functional", "torchvision", "transforms"]
