"""Values that count as false in Python, which an argument must not take for its default."""

from __future__ import annotations

from collections.abc import Callable

from gpuloader.errors import GPULoaderError

FALSE_VALUES = (False, 0, 0.0, "", (), [], {}, b"")


def taken(call: Callable[[object], object]) -> str:
    """Returns those of the values that a call takes, as text; it must refuse the others with an error of gpuloader."""
    values = []
    for value in FALSE_VALUES:
        try:
            call(value)
        except GPULoaderError:
            continue
        values.append(repr(value))
    return " ".join(values)
