"""MixUp and CutMix: mix a sample and its label with its neighbour in the epoch's order.

Positions 2i and 2i + 1 of an epoch are partners. Batches of an even size never separate them. So the mixing depends
only on the plan, not on the batch size or the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gpuloader.errors import describe
from gpuloader.plan import Draw
from gpuloader.recipe.distributions import beta
from gpuloader.recipe.model import ByEpoch, Factor, Probability, at_epoch, in_all_epochs
from gpuloader.recipe.part import Where, make_part, part


@plain_dataclass(frozen=True, eq=False)
class Mixing:
    """The parameters of mixing n samples, each with its neighbour: (0, 1), (2, 3), and so on.

    Attributes:
        weight: (n,) float32, the share of the sample itself, in pixels and label.
        box: (n, 4) int32, top, left, bottom, right of the part that CutMix takes from the neighbour; all 0 for MixUp.
    """

    weight: NDArray[np.float32]
    box: NDArray[np.int32]


@part
class Mix:
    """Mixes normalised images and their labels by MixUp (Zhang et al. 2018) or CutMix (Yun et al. 2019).

    Labels become a share for each class, (B, num_classes), also in epochs without mixing. `mixup_alpha`, `cutmix_alpha`
    and `p` may be values by epoch, such as `{0: 0.8, 250: 0}`.

    Attributes:
        num_classes: the width of the labels.
        mixup_alpha: MixUp's share is drawn from Beta(alpha, alpha); 0 turns MixUp off.
        cutmix_alpha: CutMix's share is drawn from Beta(alpha, alpha); 0 turns CutMix off.
        p: the probability of mixing.
        switch_p: the probability of CutMix instead of MixUp, if both are on.
        per: draw for each "sample" or for each global "batch"; timm calls these `elem` and `batch`. With "batch", a run
            repeats exactly only with the same global batch size.
        label_smoothing: the share of each label that is spread evenly over all classes.

    Example:
        >>> from gpuloader.transforms import Mix
        >>> Mix(1000, mixup_alpha=0.2, cutmix_alpha=1).per
        'batch'
    """

    num_classes: Annotated[int, Field(ge=1, le=100_000)]
    mixup_alpha: ByEpoch[Factor] = 0.0
    cutmix_alpha: ByEpoch[Factor] = 0.0
    p: ByEpoch[Probability] = 1.0
    switch_p: Probability = 0.5
    per: Literal["sample", "batch"] = "batch"
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _check(self) -> Mix:
        if self.p and not any((*in_all_epochs(self.mixup_alpha), *in_all_epochs(self.cutmix_alpha))):
            raise ValueError("mixup_alpha and cutmix_alpha are both 0: set one, or leave `mix` out")
        return self

    @property
    def only_pastes(self) -> bool:
        """Whether the mix is always CutMix, which masks can follow, and never MixUp, which blends."""
        mixup, cutmix = in_all_epochs(self.mixup_alpha), in_all_epochs(self.cutmix_alpha)
        return not any(mixup) or (self.switch_p == 1 and all(cutmix))

    def at(self, epoch: int) -> Mix:
        """Returns the mix of an epoch, without values by epoch; `p` is 0 if both alphas are 0."""
        p, mixup, cutmix = (at_epoch(each, epoch) for each in (self.p, self.mixup_alpha, self.cutmix_alpha))
        return replace(self, p=p if mixup or cutmix else 0.0, mixup_alpha=mixup, cutmix_alpha=cutmix)

    def draw(self, draw: Draw, height: int, width: int) -> Mixing:
        """Draws the parameters of mixing for images of height x width.

        CutMix's box is the same as in torchvision: its centre is anywhere, and its sides are sqrt(1 - share) of the
        image's sides, cut off at the border. The share is then corrected to the box's real area.
        """
        uniform = draw(6)
        p, mixup_alpha, cutmix_alpha = (at_epoch(each) for each in (self.p, self.mixup_alpha, self.cutmix_alpha))
        cut = uniform[:, 1] < (self.switch_p if mixup_alpha and cutmix_alpha else bool(cutmix_alpha))
        mixup = beta(uniform[:, 2:4], mixup_alpha) if mixup_alpha else np.ones(draw.samples)
        cutmix = beta(uniform[:, 2:4], cutmix_alpha) if cutmix_alpha else np.ones(draw.samples)
        mixed = uniform[:, 0] < p
        weight = np.where(mixed, np.where(cut, cutmix, mixup), 1.0)
        sides = np.array([height, width])
        centre = np.floor(uniform[:, 4:6] * sides)
        half = np.floor(0.5 * np.sqrt(1 - weight)[:, None] * sides)
        box = np.concatenate([np.clip(centre - half, 0, sides), np.clip(centre + half, 0, sides)], 1)
        box = np.where((mixed & cut)[:, None], box, 0)
        area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
        weight = np.where(mixed & cut, 1 - area / (height * width), weight)
        return Mixing(weight.astype(np.float32), box.astype(np.int32))


def as_mix(given: object) -> Mix | None:
    """Returns a recipe's `mix`; a mapping of its keys becomes a `Mix`.

    Raises:
        ValueError: `given` is neither a `Mix`, a mapping nor None.
    """
    if isinstance(given, Mapping):
        return make_part(Mix, given, Where(path="Mix"))
    if given is not None and not isinstance(given, Mix):
        raise ValueError(
            f"found {describe(given)}: allowed are a Mix(...), with `from gpuloader.transforms import Mix`, or a "
            f"mapping of its keys"
        )
    return given
