"""torchvision, as an independent oracle.

The tests use its transforms, which are plain Python. Where its compiled operators do not fit the torch that is
installed (there is no build of them for a CPU-only torch), it is imported without them: they register shapes for
operators that are not there, and that registration is left out.
"""

import sys
import types
from dataclasses import fields
from typing import Any

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

from gpuloader.recipe.model import Transform

__all__ = ["functional", "parameters_of", "torchvision", "transforms"]


def parameters_of(ours: Transform) -> dict[str, Any]:
    """Those of torchvision's transform of the same name: it has no `pad` and no `count`."""
    parameters = {field: getattr(ours, field.name) for field in fields(ours)}  # type: ignore[arg-type]
    own = ("pad", "count")
    return {each.name: value for each, value in parameters.items() if each.name not in own or value != each.default}
