"""Texts and tokens to a batch of a language model, against what the papers say. It needs transformers."""

from __future__ import annotations

import pytest
import torch

from gpuloader.compat import DataLoaderConfig, DataLoaderFactory, TaskSpec, TextCollator, UniversalDataModule
from gpuloader.errors import ConfigError

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; scripts/test_integrations installs it"
)

WORDS = ["[PAD]", "[UNK]", "[MASK]", "[EOS]", *"abcdefghijklmnopqrstuvwxyz"]
PAD, UNK, MASK, EOS = range(4)


def make_tokenizer(**special: str) -> object:
    """One that knows WORDS, by their numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    given = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]", "eos_token": "[EOS]", **special}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given)


TOKENIZER = make_tokenizer()


@pytest.mark.parametrize(
    "samples",
    [
        [{"text": "a b c"}, {"text": "d"}],
        [{"input_ids": [4, 5, 6], "other": "x"}, {"input_ids": [7]}],
        [{"input_ids": torch.tensor([4, 5, 6])}, {"input_ids": torch.tensor([7])}],
        ["a b c", "d"],
        [torch.tensor([4, 5, 6]), torch.tensor([7])],
    ],
    ids=["text", "ids", "tensors of ids", "strings", "tensors"],
)
def test_a_batch_is_padded_to_its_longest(samples: list[object]) -> None:
    batch = TextCollator(TOKENIZER)(samples)
    assert {name: value.tolist() for name, value in batch.items()} == {
        "input_ids": [[4, 5, 6], [7, PAD, PAD]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "labels": [[4, 5, 6], [7, -100, -100]],
    }
    assert {value.dtype for value in batch.values()} == {torch.int64}


def test_a_list_of_texts_is_a_data_set_of_a_data_module() -> None:
    texts = ["a b", "c d", "e f", "g h"]  # strings, as the paths of shards are
    module = UniversalDataModule(texts, ["a a"], TaskSpec.lm_tiny(), TOKENIZER, batch_size=2, num_workers=0)
    batches = [batch["input_ids"].tolist() for batch in module.train_dataloader()]
    assert sorted(row for batch in batches for row in batch) == [[4, 5], [6, 7], [8, 9], [10, 11]]
    assert [batch["input_ids"].tolist() for batch in module.val_dataloader()] == [[[4, 4]]]


def test_padding_is_where_the_tokenizer_has_it() -> None:
    batch = TextCollator(make_tokenizer(padding_side="left"))(["a b c", "d"])
    assert batch["labels"].tolist() == [[4, 5, 6], [-100, -100, 7]]


def test_what_ends_a_text_is_learned_where_it_also_pads() -> None:
    batch = TextCollator(make_tokenizer(pad_token="[EOS]"))(["a b [EOS]", "d [EOS]"])
    assert batch["labels"].tolist() == [[4, 5, EOS], [7, EOS, -100]]


def test_longer_samples_are_cut_off() -> None:
    assert TextCollator(TOKENIZER, max_length=2)(["a b c", "d"])["input_ids"].tolist() == [[4, 5], [7, PAD]]


def test_masks_are_those_of_bert() -> None:
    """Devlin et al. 2018, section 3.1: 15 % of the tokens, of which 80 % are masked, 10 % another and 10 % the same."""
    torch.manual_seed(0)
    ids = torch.randint(4, len(WORDS), (200, 200))
    samples = [*ids, torch.tensor([EOS, MASK, UNK])]  # special ones are never chosen
    batch = TextCollator(TOKENIZER, mlm=True)(samples)
    chosen = batch["labels"] != -100
    assert not chosen[-1].any()
    chosen, found = chosen[:-1], batch["input_ids"][:-1]
    assert batch["labels"][:-1][chosen].equal(ids[chosen])
    assert found[~chosen].equal(ids[~chosen])
    share = chosen.float().mean().item()
    masked, same = (found == MASK)[chosen].float().mean().item(), (found == ids)[chosen].float().mean().item()
    assert (share, masked, same) == (
        pytest.approx(0.15, abs=0.01),
        pytest.approx(0.8, abs=0.03),
        pytest.approx(0.1, abs=0.03),
    )


@pytest.mark.parametrize(("task_type", "masks"), [("causal_lm", False), ("masked_lm", True)])
def test_the_task_says_which_language_model(task_type: str, masks: bool) -> None:
    torch.manual_seed(0)
    texts = ["a b c d e f g h i j k l m n o p"] * 4
    [batch] = DataLoaderFactory().create_dataloader(
        texts, DataLoaderConfig(), TaskSpec("t", "text", task_type), TOKENIZER
    )
    assert (MASK in batch["input_ids"]) == masks
    assert (-100 in batch["labels"]) == masks


@pytest.mark.parametrize(
    ("tokenizer", "arguments", "samples", "message"),
    [
        (make_tokenizer(pad_token=None), {}, None, r"no padding token; set tokenizer.pad_token = tokenizer.eos_token"),
        (make_tokenizer(mask_token=None), {"mlm": True}, None, "mlm=True needs one with a mask token"),
        (TOKENIZER, {}, [{"image": 1}], "a sample has image: it needs input_ids or text"),
    ],
)
def test_what_is_refused(tokenizer: object, arguments: dict[str, object], samples: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TextCollator(tokenizer, **arguments)(samples)
