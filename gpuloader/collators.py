"""What becomes of the components beside the images of a batch: `fields` of a loader.

A collator takes the bytes of a component of each sample of a batch, and gives what stands for them in the batch: a
list, or numpy arrays, also several by name, which become tensors on the loader's device. It runs in the reading thread.
For bytes that it cannot take it raises ValueError; the loader says which sample they are of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Collator: TypeAlias = Callable[[Sequence[bytes]], Any]

_BY_EXTENSION: dict[str, Collator] = {}


def register_collator(extension: str) -> Callable[[Collator], Collator]:
    """Makes a function the collator of an extension, for the fields that are asked for without one."""

    def register(collator: Collator) -> Collator:
        _BY_EXTENSION[extension.lower().removeprefix(".")] = collator
        return collator

    return register


def collator_of(extension: str) -> Collator:
    """The collator of an extension: the registered one, or `as_bytes`."""
    return _BY_EXTENSION.get(extension, as_bytes)


def as_bytes(components: Sequence[bytes]) -> list[bytes]:
    """A list of them as they are."""
    return list(components)


@register_collator("json")
def as_json(components: Sequence[bytes]) -> list[Any]:
    """A list of parsed values."""
    return [json.loads(component) for component in components]


@register_collator("txt")
@register_collator("text")
def as_text(components: Sequence[bytes]) -> list[str]:
    """A list of texts, which are UTF-8."""
    return [component.decode() for component in components]


@register_collator("cls")
def as_integers(components: Sequence[bytes]) -> NDArray[np.int64]:
    """(B,) int64 of numbers in ASCII."""
    return np.array([int(component) for component in components], np.int64)


def as_floats(components: Sequence[bytes]) -> NDArray[np.float32]:
    """(B,) float32 of numbers in ASCII."""
    return np.array([float(component) for component in components], np.float32)


def as_vectors(components: Sequence[bytes]) -> NDArray[np.float32]:
    """(B, n) float32 of numbers in ASCII between white space, commas, or in JSON's brackets, as many in each sample."""
    vectors = [component.decode().strip(" []\n").replace(",", " ").split() for component in components]
    return np.stack([np.array(vector, np.float32) for vector in vectors])


def as_arrays(components: Sequence[bytes]) -> list[NDArray[Any]]:
    """A list of arrays of `.npy` components, which may differ in shape; objects are never unpickled."""
    return [np.load(BytesIO(component), allow_pickle=False) for component in components]


@register_collator("npy")
def stacked(components: Sequence[bytes]) -> NDArray[Any]:
    """(B, ...) of `.npy` components of one shape, such as soft labels.

    Raises:
        ValueError: they differ in shape.
    """
    arrays = as_arrays(components)
    if len(shapes := sorted({array.shape for array in arrays})) > 1:
        raise ValueError(f"arrays of shapes {shapes[:5]} cannot be stacked: use `padded` or `as_arrays` for this field")
    return np.stack(arrays)


def padded(components: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    """Of `.npy` components that differ in their first dimension: "values" (B, longest, ...), 0 behind each one's end,
    and "lengths" (B,) int64.
    """
    arrays = as_arrays(components)
    lengths = np.array([len(array) for array in arrays], np.int64)
    values = np.zeros((len(arrays), lengths.max(), *arrays[0].shape[1:]), np.result_type(*arrays))
    for row, array in enumerate(arrays):
        values[row, : len(array)] = array
    return {"values": values, "lengths": lengths}


def tokenized(tokenizer: Any, **options: Any) -> Collator:  # noqa: ANN401
    """Texts through a tokenizer of Hugging Face's: "input_ids" and "attention_mask", (B, longest) int64 each, padded.

    Args:
        tokenizer: of `transformers`, with a padding token.
        options: for it, such as `truncation=True, max_length=77`.
    """

    def collate(components: Sequence[bytes]) -> dict[str, NDArray[Any]]:
        return dict(tokenizer(as_text(components), **{"padding": True, "return_tensors": "np", **options}))

    return collate
