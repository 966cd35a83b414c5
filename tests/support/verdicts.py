"""Verdicts of the gate as values: rows of tests compare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuloader.images.limits import RefusalError


def verdict(judge: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """What a function of the gate returns; or the cause, a string, if it refuses."""
    try:
        return judge(*arguments)
    except RefusalError as refused:
        return refused.cause
