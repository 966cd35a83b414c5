"""Texts and tokens of samples to a batch, by transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gpuloader.errors import ConfigError

_IGNORED = -100  # cross_entropy's ignore_index


class TextCollator:
    """A batch of a language model: "input_ids", "attention_mask" and "labels", (B, longest of the batch) int64 each.

    A sample is a mapping with `input_ids` or `text`, a text, or the ids themselves, as a tensor or a list. The batch is
    made by `DataCollatorForLanguageModeling` of transformers. Labels are the ids, for a causal language model, or the
    ids that were chosen for a masked one: 15 % of the tokens, of which 80 % become the mask, 10 % another token, and
    10 % stay. They are -100, which torch's `cross_entropy` leaves out, at padding and at what was not chosen.

    Args:
        tokenizer: of transformers, with a padding token.
        mlm: masks tokens, for a masked language model. What is masked follows torch's random numbers.
        mlm_probability: the share of tokens that is chosen.
        max_length: cuts longer samples off.

    Raises:
        ConfigError: transformers is not installed, or the tokenizer cannot be used.
    """

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401 - transformers need not be installed
        mlm: bool = False,
        mlm_probability: float = 0.15,
        *,
        max_length: int | None = None,
    ) -> None:
        if tokenizer is None:
            raise ConfigError("text needs tokenizer=: one of transformers, such as AutoTokenizer.from_pretrained(...)")
        try:
            from transformers import DataCollatorForLanguageModeling
        except ImportError as error:
            raise ConfigError(f"text needs the package transformers: pip install 'gpuloader[data]' ({error})") from None
        if tokenizer.pad_token_id is None:
            raise ConfigError("tokenizer: it has no padding token; tokenizer.pad_token = tokenizer.eos_token gives one")
        if mlm and tokenizer.mask_token_id is None:
            raise ConfigError("tokenizer: mlm=True needs one with a mask token, such as BERT's")
        self._tokenizer, self._mlm, self._max_length = tokenizer, mlm, max_length
        self._collate = DataCollatorForLanguageModeling(tokenizer, mlm=mlm, mlm_probability=mlm_probability)

    def __call__(self, batch: Sequence[Any]) -> dict[str, torch.Tensor]:
        rows = [torch.as_tensor(self._ids(sample), dtype=torch.long).tolist()[: self._max_length] for sample in batch]
        collated = self._collate([{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows])
        if not self._mlm:  # transformers ignores all padding tokens, also the one that ends a text where it is the same
            collated["labels"] = collated["input_ids"].masked_fill(collated["attention_mask"] == 0, _IGNORED)
        return dict(collated)

    def _ids(self, sample: Any) -> Any:  # noqa: ANN401
        if isinstance(sample, Mapping):
            found = [sample[name] for name in ("input_ids", "text") if name in sample]
            if not found:
                raise ConfigError(f"a sample has {', '.join(map(str, sample))}: it needs input_ids or text")
            sample = found[0]
        return self._tokenizer(sample)["input_ids"] if isinstance(sample, str) else sample
