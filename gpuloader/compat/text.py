"""Collates texts and tokens into a batch, with transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gpuloader.errors import ConfigError

_IGNORED = -100  # cross_entropy's ignore_index


class TextCollator:
    """Makes a batch for a language model: "input_ids", "attention_mask" and "labels", each (B, longest) int64.

    A sample is a mapping with `input_ids` or `text`, a text, or the ids themselves, as a tensor or a list. The batch is
    made by transformers' `DataCollatorForLanguageModeling`. For a causal language model, labels are the ids. For a
    masked one, 15 % of the tokens are chosen: 80 % of them become the mask, 10 % another token, and 10 % stay. Labels
    are -100, which torch's `cross_entropy` ignores, at padding and at tokens that were not chosen.

    Args:
        tokenizer: from transformers, with a padding token.
        mlm: masks tokens, for a masked language model. torch's random numbers choose them.
        mlm_probability: the share of tokens that is chosen.
        max_length: cuts off longer samples.

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
            raise ConfigError("text needs tokenizer=, from transformers, such as AutoTokenizer.from_pretrained(...)")
        try:
            from transformers import DataCollatorForLanguageModeling
        except ImportError as error:
            raise ConfigError(f"text needs the package transformers: pip install 'gpuloader[data]' ({error})") from None
        if tokenizer.pad_token_id is None:
            raise ConfigError("tokenizer: it has no padding token; set tokenizer.pad_token = tokenizer.eos_token")
        if mlm and tokenizer.mask_token_id is None:
            raise ConfigError("tokenizer: mlm=True needs one with a mask token, such as BERT's")
        self._tokenizer, self._mlm, self._max_length = tokenizer, mlm, max_length
        self._collate = DataCollatorForLanguageModeling(tokenizer, mlm=mlm, mlm_probability=mlm_probability)

    def __call__(self, batch: Sequence[Any]) -> dict[str, torch.Tensor]:
        rows = [torch.as_tensor(self._ids(sample), dtype=torch.long).tolist()[: self._max_length] for sample in batch]
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
