"""Chooses the function that makes a batch from samples, by name or by task; has a collator of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any, TypeAlias, cast

import torch
from torch.utils.data import default_collate

from gpuloader.compat.vision import VisionDataCollator
from gpuloader.errors import ConfigError

BatchCollator: TypeAlias = Callable[[Sequence[Any]], Any]
CollatorFactory: TypeAlias = Callable[..., BatchCollator]

_LANGUAGE_MODELS = {"causal_lm": False, "masked_lm": True}
_IGNORED = -100  # cross_entropy's ignore_index


@dataclass(frozen=True)
class TaskSpec:
    """The task of a model, by which `CollatorRegistry` chooses a collator.

    Attributes:
        name: any name; it is not used.
        modality: "vision", "text", or one with a registered collator; others get torch's `default_collate`.
        task_type: for text, "causal_lm" or "masked_lm"; otherwise any word.
    """

    name: str
    modality: str
    task_type: str

    @classmethod
    def vision_tiny(cls) -> TaskSpec:
        """Makes the task: classification of images, normalised as for ImageNet."""
        return cls("vision_tiny", "vision", "classification")

    @classmethod
    def lm_tiny(cls) -> TaskSpec:
        """Makes the task: a language model that predicts the next token."""
        return cls("lm_tiny", "text", "causal_lm")


class CollatorRegistry:
    """A registry of collators, by name and by task. "text", "vision" and "default" are registered already."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[CollatorFactory, str]] = {}  # and the modality
        self.register("text", "text")(_text)
        self.register("vision", "vision")(VisionDataCollator)
        self.register("default", "any")(cast(CollatorFactory, lambda: default_collate))  # it takes any sequence

    @classmethod
    @cache
    def get_instance(cls) -> CollatorRegistry:
        """Returns the registry of this process, which the data modules use."""
        return cls()

    def register(self, name: str, modality: str, description: str = "") -> Callable[[CollatorFactory], CollatorFactory]:
        """Registers a function that makes collators; it replaces any other of that name.

        The function gets the arguments of `get_collator`; `task_spec` and `tokenizer` only if it has parameters for
        them. The first collator registered for a modality is the one that its tasks use. The description is
        documentation.
        """

        def register(factory: CollatorFactory) -> CollatorFactory:
            self._known[name] = factory, modality
            return factory

        return register

    def get_collator(
        self,
        task_spec: TaskSpec | None = None,
        collator_name: str | None = None,
        tokenizer: Any = None,  # noqa: ANN401 - transformers need not be installed
        **arguments: Any,  # noqa: ANN401
    ) -> BatchCollator:
        """Returns the collator of this name, or of the task's modality, or otherwise torch's `default_collate`.

        Raises:
            ConfigError: no collator has this name.
        """
        name = self._name_for(task_spec) if collator_name is None else collator_name
        if name not in self._known:
            raise ConfigError(f"collator_name={name!r}: allowed are {', '.join(self._known)}")
        factory, _ = self._known[name]
        offered = {"task_spec": task_spec, "tokenizer": tokenizer}
        taken = signature(factory).parameters
        return factory(**{key: value for key, value in offered.items() if key in taken}, **arguments)

    def _name_for(self, task_spec: TaskSpec | None) -> str:
        if task_spec is None:
            raise ConfigError("give task_spec or collator_name")
        fitting = (name for name, (_, modality) in self._known.items() if modality == task_spec.modality)
        return next(fitting, "default")


class LanguageModelingDataCollator:
    """A collator for language models: "input_ids", "attention_mask" and "labels", each (B, longest) int64.

    A sample is a mapping with `input_ids` or `text`, a text, or the ids themselves. transformers'
    `DataCollatorForLanguageModeling` makes the batch. Labels are the ids, and -100 at padding. For a masked model, they
    are also -100 at tokens that were not chosen.

    Args:
        tokenizer: from transformers, with a padding token.
        mlm: masks tokens, for a masked language model. torch's random numbers choose them.
        mlm_probability: the share of tokens that is chosen.

    Raises:
        ConfigError: transformers is not installed, or the tokenizer cannot be used.
    """

    def __init__(self, tokenizer: Any, mlm: bool = False, mlm_probability: float = 0.15) -> None:  # noqa: ANN401
        if tokenizer is None:
            raise ConfigError("text needs tokenizer=, from transformers, such as AutoTokenizer.from_pretrained(...)")
        try:
            from transformers import DataCollatorForLanguageModeling
        except ImportError as error:
            raise ConfigError(f"text needs the package transformers: pip install 'gpuloader[data]' ({error})") from None
        if tokenizer.pad_token_id is None:
            raise ConfigError("tokenizer: it has no padding token; set tokenizer.pad_token = tokenizer.eos_token")
        if mlm and tokenizer.mask_token_id is None:
            raise ConfigError("tokenizer: mlm=True needs one with a mask token, such as BERT's")
        self._tokenizer, self._mlm = tokenizer, mlm
        self._collate = DataCollatorForLanguageModeling(tokenizer, mlm=mlm, mlm_probability=mlm_probability)

    def __call__(self, batch: Sequence[Any]) -> dict[str, torch.Tensor]:
        rows = [torch.as_tensor(self._ids(sample), dtype=torch.long).tolist() for sample in batch]
        collated = self._collate([{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows])
        if not self._mlm:  # transformers ignores every padding token, even one that ends a text
            collated["labels"] = collated["input_ids"].masked_fill(collated["attention_mask"] == 0, _IGNORED)
        return dict(collated)

    def _ids(self, sample: Any) -> Any:  # noqa: ANN401
        if isinstance(sample, Mapping):
            inputs = [sample[name] for name in ("input_ids", "text") if name in sample]
            if not inputs:
                raise ConfigError(f"a sample has {', '.join(map(str, sample))}: it needs input_ids or text")
            sample = inputs[0]
        return self._tokenizer(sample)["input_ids"] if isinstance(sample, str) else sample


def _text(
    task_spec: TaskSpec | None = None,
    tokenizer: Any = None,  # noqa: ANN401
    mlm: bool | None = None,
    mlm_probability: float = 0.15,
) -> LanguageModelingDataCollator:
    if mlm is None and task_spec is not None:
        if task_spec.task_type not in _LANGUAGE_MODELS:
            raise ConfigError(
                f"task_type={task_spec.task_type!r} for text: allowed are {', '.join(_LANGUAGE_MODELS)}; for others, "
                f"register a collator, such as transformers' DataCollatorWithPadding"
            )
        mlm = _LANGUAGE_MODELS[task_spec.task_type]
    return LanguageModelingDataCollator(tokenizer, bool(mlm), mlm_probability)
