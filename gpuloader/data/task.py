"""Describes a task of a model, for choosing how its data is prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TaskSpec:
    """A task; `CollatorRegistry` chooses a collator by it.

    Attributes:
        name: for you.
        modality: "vision", "text", or one with a registered collator; others get torch's `default_collate`.
        task_type: for text, "causal_lm" or "masked_lm"; otherwise any word.
        preprocessing_config: arguments of the collator, such as `{"mean": [0.5], "std": [0.5]}`.

    Example:
        >>> from gpuloader.data import TaskSpec
        >>> TaskSpec.lm_tiny().task_type
        'causal_lm'
    """

    name: str
    modality: str
    task_type: str
    preprocessing_config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def vision_tiny(cls) -> TaskSpec:
        """Classification of images, normalised as for ImageNet."""
        return cls("vision_tiny", "vision", "classification")

    @classmethod
    def lm_tiny(cls) -> TaskSpec:
        """A language model that predicts the next token."""
        return cls("lm_tiny", "text", "causal_lm")
