"""Collators: functions that turn the components of a batch's samples into its values, for a loader's `fields`.

A collator takes one component's bytes for each sample of a batch. It returns a list, a numpy array, or a dictionary of
arrays, with a row for each sample. Arrays become tensors on the loader's device. Collators run in the reading thread.
For invalid bytes a collator raises one of `REFUSALS`, such as ValueError, and the loader's error names the sample.

The collators below parse each component alone. If one fails, its sample is bad, like an image that cannot be decoded.
`gpuloader.Field` does the same with your function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from math import prod
from tokenize import TokenError
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.text import counted
from gpuloader.errors import describe

__all__ = [
    "REFUSALS",
    "Collator",
    "as_arrays",
    "as_bytes",
    "as_floats",
    "as_integers",
    "as_json",
    "as_text",
    "as_vectors",
    "padded",
    "register_collator",
    "stacked",
    "tokenized",
]

Collator: TypeAlias = Callable[[Sequence[bytes]], Any]
"""Takes one component's bytes for each sample of a batch; returns lists or arrays, also in a mapping or a tuple."""

REFUSALS = (ValueError, ArithmeticError, RecursionError, MemoryError)
"""The errors that a collator may raise for invalid bytes; the loader's error then names the sample."""

_BY_EXTENSION: dict[str, Collator] = {}
_NUMBERS = "?bBhHiIlLqQefdFD"  # numpy's codes of the dtypes that torch has


def register_collator(extension: str) -> Callable[[Collator], Collator]:
    """Registers a function as the default collator of an extension, for fields that name no collator.

    Example:
        >>> from gpuloader.collators import register_collator
        >>> @register_collator("stars")
        ... def count(components):
        ...     return [len(component) for component in components]
    """

    def register(collator: Collator) -> Collator:
        _BY_EXTENSION[_normalize(extension)] = collator
        return collator

    return register


def collator_of(extension: str) -> Collator:
    """Returns the collator of an extension: the registered one, or `as_bytes`."""
    return _BY_EXTENSION.get(_normalize(extension), as_bytes)


@dataclass(frozen=True)
class Parsing:
    """A collator in two parts.

    Attributes:
        parse: converts one component to a value; for invalid bytes it raises one of `REFUSALS`.
        collate: converts the B values to the collator's result.
    """

    parse: Callable[[bytes], Any]
    collate: Callable[[list[Any]], Any]

    def __call__(self, components: Sequence[bytes]) -> Any:  # noqa: ANN401
        return self.collate([self.parse(component) for component in components])


def in_parts(collator: Collator) -> Parsing:
    """Returns a collator's two parts; a user's collator is all `collate`."""
    return collator if isinstance(collator, Parsing) else _PARTS.get(id(collator), Parsing(bytes, collator))


def wrong_rows(name: str, value: Any, samples: int) -> str | None:  # noqa: ANN401
    """Returns a message about the part of a collator's result that has another number of rows; None if all fit."""
    if isinstance(value, Mapping):
        parts = (wrong_rows(f"{name}[{part!r}]", its_value, samples) for part, its_value in value.items())
        return next((wrong for wrong in parts if wrong), None)
    if not isinstance(value, list) and not getattr(value, "ndim", 0):  # arrays and tensors of any library have `ndim`
        return None
    rows = len(value)
    if rows == samples:
        return None
    return (
        f"the field {name} has {counted(rows, 'row')} for {counted(samples, 'sample')}: its collator must give a "
        f"row for each sample; put values that are not by sample into a tuple"
    )


def _normalize(extension: str) -> str:
    return extension.lower().removeprefix(".")


def as_bytes(components: Sequence[bytes]) -> list[bytes]:
    """Returns the components unchanged, in a list.

    Example:
        >>> from gpuloader.collators import as_bytes
        >>> as_bytes([b"\\x00\\x01"])
        [b'\\x00\\x01']
    """
    return list(components)


@register_collator("json")
def as_json(components: Sequence[bytes]) -> list[Any]:
    """Parses JSON; returns a list of values.

    Example:
        >>> from gpuloader.collators import as_json
        >>> as_json([b'{"boxes": 2}', b"[]"])
        [{'boxes': 2}, []]
    """
    return in_parts(as_json)(components)


@register_collator("txt")
@register_collator("text")
def as_text(components: Sequence[bytes]) -> list[str]:
    """Decodes UTF-8; returns a list of texts.

    Example:
        >>> from gpuloader.collators import as_text
        >>> as_text([b"a cat", b"a dog"])
        ['a cat', 'a dog']
    """
    return in_parts(as_text)(components)


@register_collator("cls")
def as_integers(components: Sequence[bytes]) -> NDArray[np.int64]:
    """Parses numbers in ASCII; returns (B,) int64.

    Example:
        >>> from gpuloader.collators import as_integers
        >>> as_integers([b"3", b"5"])
        array([3, 5])
    """
    return in_parts(as_integers)(components)


def as_floats(components: Sequence[bytes]) -> NDArray[np.float32]:
    """Parses numbers in ASCII; returns (B,) float32.

    Example:
        >>> from gpuloader.collators import as_floats
        >>> as_floats([b"0.5", b"2"])
        array([0.5, 2. ], dtype=float32)
    """
    return in_parts(as_floats)(components)


def as_vectors(components: Sequence[bytes]) -> NDArray[np.float32]:
    """Parses several numbers in ASCII; returns (B, n) float32.

    White space or commas separate the numbers. JSON's brackets are allowed.

    Raises:
        ValueError: samples have different numbers of values.

    Example:
        >>> from gpuloader.collators import as_vectors
        >>> as_vectors([b"1 2", b"[3, 4]"]).tolist()
        [[1.0, 2.0], [3.0, 4.0]]
    """
    return in_parts(as_vectors)(components)


def _vector(component: bytes) -> NDArray[np.float32]:
    text = component.decode().strip().removeprefix("[").removesuffix("]").strip()
    return _float32([float(number) for number in re.split(r"\s*,\s*|\s+", text)])


def _stack_vectors(vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    if len(lengths := sorted({len(vector) for vector in vectors})) > 1:
        raise ValueError(f"vectors of {lengths[:5]} numbers cannot be stacked")
    return np.stack(vectors)


def _float32(values: float | Sequence[float]) -> NDArray[np.float32]:
    with np.errstate(over="raise"):  # instead of infinity for a number that is too large
        return np.array(values, np.float32)


def as_arrays(components: Sequence[bytes]) -> list[NDArray[Any]]:
    """Parses `.npy` components, which may differ in shape; returns a list of arrays. It never unpickles objects.

    Example:
        >>> import numpy as np
        >>> from webdataset.writer import numpy_dumps
        >>> from gpuloader.collators import as_arrays
        >>> [array.shape for array in as_arrays([numpy_dumps(np.zeros(2)), numpy_dumps(np.zeros((3, 4)))])]
        [(2,), (3, 4)]
    """
    return in_parts(as_arrays)(components)


def read_array(component: bytes) -> NDArray[Any]:
    """Reads an array that `numpy.save` wrote; checks the size first, because numpy allocates what the header says.

    Raises:
        ValueError: the component is invalid.
    """
    file = BytesIO(component)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read_header(file)
    except (SyntaxError, TokenError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"the header of the array cannot be parsed ({type(error).__name__}: {error})") from None
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which are never unpickled")
    if dtype.itemsize == 0 or any(type(length) is not int or length < 0 for length in shape):  # bools are ints
        raise ValueError(f"an array of shape {shape} and dtype {dtype} ({dtype.itemsize} bytes) is not allowed")
    if (needed_bytes := prod(shape) * dtype.itemsize) > (left_bytes := len(component) - file.tell()):
        raise ValueError(
            f"its array of shape {shape}, {dtype}, needs {needed_bytes:,} bytes, but there are {left_bytes:,}"
        )
    return np.lib.format.read_array(BytesIO(component), allow_pickle=False)  # not `np.load`: that takes other formats


def _numbers(component: bytes) -> NDArray[Any]:
    array = read_array(component)
    if array.dtype.char not in _NUMBERS:
        raise ValueError(f"an array of {array.dtype} cannot become a tensor: use `as_arrays` for this field")
    return array


def _rows(component: bytes) -> NDArray[Any]:
    array = _numbers(component)
    if array.ndim == 0:
        raise ValueError("an array of shape () cannot be padded: it has no dimension")
    return array


@register_collator("npy")
def stacked(components: Sequence[bytes]) -> NDArray[Any]:
    """Parses `.npy` components of one shape, such as soft labels; returns (B, ...).

    Raises:
        ValueError: the arrays differ in shape, or do not hold numbers.

    Example:
        >>> import numpy as np
        >>> from webdataset.writer import numpy_dumps
        >>> from gpuloader.collators import stacked
        >>> stacked([numpy_dumps(np.zeros((3, 4))), numpy_dumps(np.ones((3, 4)))]).shape
        (2, 3, 4)
    """
    return in_parts(stacked)(components)


def _stack(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len(shapes := sorted({array.shape for array in arrays})) > 1:
        raise ValueError(f"arrays of shapes {shapes[:5]} cannot be stacked: use `padded` or `as_arrays` for this field")
    return np.stack(arrays)


def padded(components: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    """Pads `.npy` components that differ in their first dimension with 0.

    Returns a dictionary: "values" (B, longest, ...), and "lengths" (B,) int64.

    Raises:
        ValueError: the arrays have no dimension, differ in other dimensions, or do not hold numbers.

    Example:
        >>> import numpy as np
        >>> from webdataset.writer import numpy_dumps
        >>> from gpuloader.collators import padded
        >>> batch = padded([numpy_dumps(np.ones((2, 4))), numpy_dumps(np.ones((5, 4)))])
        >>> batch["values"].shape, batch["lengths"].tolist()
        ((2, 5, 4), [2, 5])
    """
    return in_parts(padded)(components)


def _pad(arrays: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    if any(array.shape[1:] != arrays[0].shape[1:] for array in arrays):
        shapes = sorted({array.shape for array in arrays})
        raise ValueError(f"arrays of shapes {shapes[:5]} cannot be padded: they may differ in the first dimension only")
    lengths = np.array([len(array) for array in arrays], np.int64)
    values = np.zeros((len(arrays), lengths.max(), *arrays[0].shape[1:]), np.result_type(*arrays))
    for row, array in enumerate(arrays):
        values[row, : len(array)] = array
    return {"values": values, "lengths": lengths}


def tokenized(tokenizer: Any, **options: Any) -> Collator:  # noqa: ANN401
    """Makes a collator of a Hugging Face tokenizer.

    A batch gets "input_ids" and "attention_mask", each (B, longest) int64, padded. The collator takes components or
    texts: `OneOf("json:captions", None, tokenized(tokenizer))` gives the tokens of one caption.

    Args:
        tokenizer: from `transformers`, with a padding token.
        options: the tokenizer's arguments, such as `truncation=True, max_length=77`.

    Example:
        >>> import numpy as np
        >>> from gpuloader.collators import tokenized
        >>> def tokenizer(texts, **options):  # as those of transformers are called
        ...     return {"input_ids": np.array([[len(text)] for text in texts])}
        >>> tokenized(tokenizer, truncation=True)([b"a cat", b"an eel"])["input_ids"].shape
        (2, 1)
    """
    return Parsing(_text, partial(_tokens, tokenizer, {"padding": True, "return_tensors": "np", **options}))


def _text(value: bytes | str) -> str:
    if not isinstance(value, (bytes, str)):
        raise ValueError(f"{describe(value)} is no text")
    return value if isinstance(value, str) else value.decode()


def _tokens(tokenizer: Any, options: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:  # noqa: ANN401
    return dict(tokenizer(texts, **options))


_PARTS: dict[int, Parsing] = {  # by id: a user's collator may not be hashable
    id(as_json): Parsing(json.loads, list),
    id(as_text): Parsing(bytes.decode, list),
    id(as_integers): Parsing(lambda component: np.int64(int(component)), partial(np.array, dtype=np.int64)),
    id(as_floats): Parsing(lambda component: _float32(float(component)), partial(np.array, dtype=np.float32)),
    id(as_vectors): Parsing(_vector, _stack_vectors),
    id(as_arrays): Parsing(read_array, list),
    id(stacked): Parsing(_numbers, _stack),
    id(padded): Parsing(_rows, _pad),
}
