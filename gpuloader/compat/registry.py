"""Collators, which make a batch from samples, by name and by a model's task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from threading import Lock
from typing import Any, TypeAlias

from torch.utils.data import default_collate

from gpuloader.compat.text import TextCollator
from gpuloader.compat.vision import VisionCollator
from gpuloader.errors import ConfigError

BatchCollator: TypeAlias = Callable[[Sequence[Any]], Any]
CollatorFactory: TypeAlias = Callable[..., BatchCollator]

_LANGUAGE_MODELS = {"causal_lm": False, "masked_lm": True}


@dataclass(frozen=True)
class TaskSpec:
    """A task; `CollatorRegistry` chooses a collator by it.

    Attributes:
        name: for you.
        modality: "vision", "text", or one with a registered collator; others get torch's `default_collate`.
        task_type: for text, "causal_lm" or "masked_lm"; otherwise any word.
        preprocessing_config: arguments of the collator, such as `{"mean": [0.5], "std": [0.5]}`.

    Example:
        >>> from gpuloader.compat import TaskSpec
        >>> TaskSpec.lm_tiny().task_type
        'causal_lm'
    """

    name: str
    modality: str
    task_type: str
    preprocessing_config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def vision_tiny(cls) -> TaskSpec:
        """Makes the task: classification of images, normalised as for ImageNet."""
        return cls("vision_tiny", "vision", "classification")

    @classmethod
    def lm_tiny(cls) -> TaskSpec:
        """Makes the task: a language model that predicts the next token."""
        return cls("lm_tiny", "text", "causal_lm")


class DefaultCollator:
    """torch's `default_collate`.

    Example:
        >>> from gpuloader.compat import DefaultCollator
        >>> DefaultCollator()([{"label": 1}, {"label": 2}])
        {'label': tensor([1, 2])}
    """

    def __call__(self, batch: Sequence[Any]) -> Any:  # noqa: ANN401
        return default_collate(list(batch))


class CollatorRegistry:
    """Makes collators, by name or for a task. "text", "vision" and "default" are registered already.

    Example:
        >>> from gpuloader.compat import CollatorRegistry, TaskSpec
        >>> registry = CollatorRegistry.get_instance()
        >>> type(registry.get_collator(task_spec=TaskSpec.vision_tiny())).__name__
        'VisionCollator'
    """

    _instance: CollatorRegistry | None = None
    _lock = Lock()

    def __init__(self) -> None:
        self._known: dict[str, tuple[CollatorFactory, str]] = {}  # and the modality
        self.register("text", "text", "padding, masks and labels of a language model")(_text)
        self.register("vision", "vision", "stacked and normalised images")(VisionCollator)
        self.register("default", "any", "torch's default_collate")(DefaultCollator)

    @classmethod
    def get_instance(cls) -> CollatorRegistry:
        """Returns the registry of this process, which the data modules use."""
        with cls._lock:
            cls._instance = cls._instance or cls()
        return cls._instance

    def register(self, name: str, modality: str, description: str = "") -> Callable[[CollatorFactory], CollatorFactory]:
        """Registers a function that makes collators; it replaces any other of that name.

        The function gets the arguments of `get_collator`; `task_spec` and `tokenizer` only if it has parameters for
        them. The collator of a modality is the first that was registered for it. The description is for readers.
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
            ConfigError: no collator has this name, or it refuses an argument.
        """
        name = self._name_for(task_spec) if collator_name is None else collator_name
        if name not in self._known:
            raise ConfigError(f"collator_name={name!r}: allowed are {', '.join(self._known)}")
        factory, _ = self._known[name]
        parameters = signature(factory).parameters
        offered: dict[str, Any] = {"task_spec": task_spec, "tokenizer": tokenizer}
        offered = {key: value for key, value in offered.items() if key in parameters}
        options = {**offered, **({} if task_spec is None else task_spec.preprocessing_config), **arguments}
        try:
            signature(factory).bind(**options)
        except TypeError as error:
            raise ConfigError(f"collator {name!r}: {error}; its parameters are {', '.join(parameters)}") from None
        return factory(**options)

    def _name_for(self, task_spec: TaskSpec | None) -> str:
        if task_spec is None:
            raise ConfigError("give task_spec or collator_name")
        fitting = (name for name, (_, modality) in self._known.items() if modality == task_spec.modality)
        return next(fitting, "default")


def _text(
    task_spec: TaskSpec | None = None,
    tokenizer: Any = None,  # noqa: ANN401
    mlm: bool | None = None,
    mlm_probability: float = 0.15,
    max_length: int | None = None,
) -> TextCollator:
    if mlm is None and task_spec is not None:
        if task_spec.task_type not in _LANGUAGE_MODELS:
            raise ConfigError(
                f"task_type={task_spec.task_type!r} for text: allowed are {', '.join(_LANGUAGE_MODELS)}; for others, "
                f"register a collator, such as transformers' DataCollatorWithPadding"
            )
        mlm = _LANGUAGE_MODELS[task_spec.task_type]
    return TextCollator(tokenizer, bool(mlm), mlm_probability, max_length=max_length)
