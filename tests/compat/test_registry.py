"""Collators by name and by task."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.data import default_collate

from gpuloader.compat import CollatorRegistry, DefaultCollator, TaskSpec, VisionCollator
from gpuloader.errors import ConfigError

AUDIO = TaskSpec(name="speech", modality="audio", task_type="classification")


@pytest.fixture
def registry() -> CollatorRegistry:
    return CollatorRegistry()


def test_one_registry_serves_the_process() -> None:
    assert CollatorRegistry.get_instance() is CollatorRegistry.get_instance()


@pytest.mark.parametrize(
    ("task", "kind"), [(TaskSpec.vision_tiny(), VisionCollator), (AUDIO, DefaultCollator)], ids=["vision", "audio"]
)
def test_the_modality_chooses(registry: CollatorRegistry, task: TaskSpec, kind: type) -> None:
    assert type(registry.get_collator(task_spec=task)) is kind
    assert type(registry.get_collator(task_spec=task, tokenizer="not theirs")) is kind


def test_the_default_is_torchs() -> None:
    batch = [{"x": torch.ones(2), "y": number} for number in range(3)]
    expected, found = default_collate(batch), DefaultCollator()(batch)
    assert found["x"].equal(expected["x"])
    assert found["y"].equal(expected["y"])


def test_a_registered_collator_is_chosen_by_name_and_by_modality(registry: CollatorRegistry) -> None:
    @registry.register("audio", modality="audio", description="its arguments")
    def create(task_spec: TaskSpec | None = None, sample_rate: int = 16_000):  # noqa: ANN202
        return lambda batch: (task_spec, sample_rate, batch)

    assert registry.get_collator(task_spec=AUDIO, sample_rate=22_050)([1]) == (AUDIO, 22_050, [1])
    assert registry.get_collator(collator_name="audio")([1]) == (None, 16_000, [1])


def test_the_first_of_a_modality_is_the_one_for_it(registry: CollatorRegistry) -> None:
    registry.register("multimodal", modality="vision")(lambda: "multimodal")
    assert isinstance(registry.get_collator(task_spec=TaskSpec.vision_tiny()), VisionCollator)
    assert registry.get_collator(collator_name="multimodal") == "multimodal"


def test_registering_a_name_again_replaces_it(registry: CollatorRegistry) -> None:
    registry.register("vision", modality="vision")(lambda: "mine")
    assert registry.get_collator(task_spec=TaskSpec.vision_tiny()) == "mine"


def test_a_factory_gets_the_tokenizer_if_it_takes_one(registry: CollatorRegistry) -> None:
    registry.register("captions", modality="captions")(lambda tokenizer: tokenizer)
    assert registry.get_collator(TaskSpec("t", "captions", "any"), tokenizer="tokenizer") == "tokenizer"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give task_spec or collator_name"),
        ({"collator_name": "visoin"}, "collator_name='visoin': allowed are text, vision, default"),
        ({"collator_name": "vision", "men": 1}, "unexpected keyword argument 'men'; its parameters are normalize,"),
        ({"task_spec": TaskSpec.lm_tiny()}, "text needs tokenizer="),
        ({"task_spec": TaskSpec("t", "text", "ranking")}, "task_type='ranking' for text: allowed are causal_lm,"),
    ],
)
def test_what_is_refused(registry: CollatorRegistry, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.get_collator(**arguments)


def test_text_without_transformers_says_what_to_install(
    registry: CollatorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"needs the package transformers: pip install 'gpuloader\[data\]'"):
        registry.get_collator(task_spec=TaskSpec.lm_tiny(), tokenizer=object())
