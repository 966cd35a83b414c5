"""Collators by name and by task, against torch's own arithmetic, Pillow, `Compose` and what the papers say."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from making import picture
from torch.utils.data import default_collate

from gpuloader.compat import (
    CollatorRegistry,
    DataLoaderConfig,
    DataLoaderFactory,
    LanguageModelingDataCollator,
    TaskSpec,
    UniversalDataModule,
    VisionDataCollator,
)
from gpuloader.errors import ConfigError

AUDIO = TaskSpec(name="speech", modality="audio", task_type="classification")


@pytest.fixture
def registry() -> CollatorRegistry:
    return CollatorRegistry()


def test_one_registry_serves_the_process() -> None:
    assert CollatorRegistry.get_instance() is CollatorRegistry.get_instance()


def test_the_modality_chooses(registry: CollatorRegistry) -> None:
    vision = registry.get_collator(task_spec=TaskSpec.vision_tiny(), tokenizer="not theirs")
    assert isinstance(vision, VisionDataCollator)
    assert registry.get_collator(task_spec=AUDIO) is default_collate


def test_a_registered_collator_is_chosen_by_name_and_by_modality(registry: CollatorRegistry) -> None:
    @registry.register("audio", modality="audio", description="its arguments")
    def create(task_spec: TaskSpec | None = None, tokenizer: object = None, sample_rate: int = 16_000) -> Any:  # noqa: ANN401
        return lambda batch: (task_spec, tokenizer, sample_rate, batch)

    assert registry.get_collator(task_spec=AUDIO, sample_rate=22_050)([1]) == (AUDIO, None, 22_050, [1])
    assert registry.get_collator(collator_name="audio", tokenizer=2)([1]) == (None, 2, 16_000, [1])


def test_the_first_of_a_modality_is_the_one_for_it(registry: CollatorRegistry) -> None:
    registry.register("multimodal", modality="vision")(lambda: "multimodal")
    assert isinstance(registry.get_collator(task_spec=TaskSpec.vision_tiny()), VisionDataCollator)
    assert registry.get_collator(collator_name="multimodal") == "multimodal"
    registry.register("vision", modality="vision")(lambda: "mine")
    assert registry.get_collator(task_spec=TaskSpec.vision_tiny()) == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give task_spec or collator_name"),
        ({"collator_name": "visoin"}, "collator_name='visoin': allowed are text, vision, default"),
        ({"task_spec": TaskSpec.lm_tiny()}, "text needs tokenizer="),
        ({"task_spec": TaskSpec("t", "text", "ranking")}, "task_type='ranking' for text: allowed are causal_lm,"),
    ],
)
def test_a_collator_that_cannot_be_made(registry: CollatorRegistry, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.get_collator(**arguments)


# --- images

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@pytest.mark.parametrize(
    ("arguments", "statistics"),
    [
        ({}, IMAGENET),
        ({"mean": CIFAR10[0], "std": CIFAR10[1]}, CIFAR10),
        ({"normalize": False}, ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))),
    ],
)
def test_images_are_stacked_and_normalised(
    arguments: dict[str, object], statistics: tuple[tuple[float, ...], ...]
) -> None:
    images = torch.rand(4, 3, 5, 6)
    batch = VisionDataCollator(**arguments)([{"pixel_values": image, "labels": i} for i, image in enumerate(images)])
    mean, std = (torch.tensor(values)[:, None, None] for values in statistics)
    torch.testing.assert_close(batch["pixel_values"], (images - mean) / std)
    assert batch["labels"].equal(torch.arange(4))


def test_one_channel_has_the_average_of_three_and_no_labels_if_there_are_none() -> None:
    images = torch.rand(2, 1, 4, 4)
    batch = VisionDataCollator()([{"pixel_values": image} for image in images])
    mean, std = (sum(values) / 3 for values in IMAGENET)
    torch.testing.assert_close(batch["pixel_values"], (images - mean) / std)
    assert set(batch) == {"pixel_values"}


IMAGE = picture(6, 8)
ARRAY = np.asarray(IMAGE)
WHOLE = torch.from_numpy(ARRAY.copy()).permute(2, 0, 1)


@pytest.mark.parametrize(
    "sample",
    [
        {"pixel_values": WHOLE / 255, "labels": 3},
        {"pixel_values": (WHOLE / 255).tolist(), "labels": 3},  # as Hugging Face's data sets have arrays
        {"image": WHOLE, "label": 3},
        {"image": ARRAY, "label": torch.tensor(3)},
        {"img": IMAGE, "label": 3, "id": "of no use"},  # CIFAR-10 of Hugging Face
        (IMAGE, 3),  # torchvision's data sets
    ],
    ids=["floats", "lists", "bytes", "array", "Pillow", "pair"],
)
def test_samples_of_all_kinds_give_the_same(sample: object) -> None:
    batch = VisionDataCollator(normalize=False)([sample, sample])
    torch.testing.assert_close(batch["pixel_values"], (WHOLE / 255).expand(2, 3, 6, 8))
    assert batch["labels"].equal(torch.tensor([3, 3]))


@pytest.mark.parametrize(
    ("arguments", "samples", "message"),
    [
        ({"mean": [0.5]}, None, r"mean=\[0.5\], std=None: allowed is a number for each channel"),
        ({}, [{"text": "no image"}], "a sample has text: it needs one of pixel_values, image, img"),
        ({}, [(torch.rand(3, 4, 4), 0), (torch.rand(3, 5, 4), 0)], "cannot be stacked"),
        ({}, [(torch.rand(4, 4, 4), 0)], "images have 4 channels, mean and std have 3"),
        ({}, [(b"bytes", 0)], "Compose.load decodes the bytes of files"),
    ],
)
def test_images_that_are_refused(arguments: dict[str, object], samples: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        VisionDataCollator(**arguments)(samples)


# --- texts

WORDS = ["[PAD]", "[UNK]", "[MASK]", "[EOS]", *"abcdefghijklmnopqrstuvwxyz"]
PAD, UNK, MASK, EOS = range(4)


def make_tokenizer(**special: str | None) -> Any:  # noqa: ANN401
    """One that knows WORDS, by their numbers."""
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed; scripts/test_integrations installs it"
    )
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    given = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]", "eos_token": "[EOS]", **special}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given)


def test_text_without_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"needs the package transformers: pip install 'gpuloader\[data\]'"):
        LanguageModelingDataCollator(object())


@pytest.mark.parametrize(
    "samples",
    [
        [{"text": "a b c"}, {"text": "d"}],
        [{"input_ids": [4, 5, 6], "other": "x"}, {"input_ids": [7]}],
        ["a b c", "d"],
        [torch.tensor([4, 5, 6]), torch.tensor([7])],
    ],
    ids=["text", "ids", "strings", "tensors"],
)
def test_a_batch_is_padded_to_its_longest(samples: list[object]) -> None:
    batch = LanguageModelingDataCollator(make_tokenizer())(samples)
    assert {name: value.tolist() for name, value in batch.items()} == {
        "input_ids": [[4, 5, 6], [7, PAD, PAD]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "labels": [[4, 5, 6], [7, -100, -100]],
    }


def test_a_list_of_texts_is_a_data_set_of_a_data_module() -> None:
    texts = ["a b", "c d", "e f", "g h"]  # strings, as the paths of shards are
    module = UniversalDataModule(texts, ["a a"], TaskSpec.lm_tiny(), make_tokenizer(), batch_size=2, num_workers=0)
    batches = [batch["input_ids"].tolist() for batch in module.train_dataloader()]
    assert sorted(row for batch in batches for row in batch) == [[4, 5], [6, 7], [8, 9], [10, 11]]
    assert [batch["input_ids"].tolist() for batch in module.val_dataloader()] == [[[4, 4]]]


def test_what_ends_a_text_is_learned_where_it_also_pads() -> None:
    batch = LanguageModelingDataCollator(make_tokenizer(pad_token="[EOS]"))(["a b [EOS]", "d [EOS]"])
    assert batch["labels"].tolist() == [[4, 5, EOS], [7, EOS, -100]]


@pytest.mark.parametrize(("task_type", "masks"), [("causal_lm", False), ("masked_lm", True)])
def test_the_task_says_which_language_model(task_type: str, masks: bool) -> None:
    torch.manual_seed(0)
    texts = ["a b c d e f g h i j k l m n o p"] * 4
    task = TaskSpec("t", "text", task_type)
    [batch] = DataLoaderFactory().create_dataloader(texts, DataLoaderConfig(), task, make_tokenizer())
    assert (MASK in batch["input_ids"]) == masks
    assert (-100 in batch["labels"]) == masks


@pytest.mark.parametrize(
    ("special", "arguments", "samples", "message"),
    [
        ({"pad_token": None}, {}, None, "set tokenizer.pad_token = tokenizer.eos_token"),
        ({"mask_token": None}, {"mlm": True}, None, "mlm=True needs one with a mask token"),
        ({}, {}, [{"image": 1}], "a sample has image: it needs input_ids or text"),
    ],
)
def test_texts_that_are_refused(special: Any, arguments: dict[str, Any], samples: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        LanguageModelingDataCollator(make_tokenizer(**special), **arguments)(samples)
