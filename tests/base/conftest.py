"""A failing test of undocumented parts names the installed version of what it tests: `OTHER_SIDE` of its module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    try:
        return (yield)
    except Exception as error:
        if not hasattr(pyfuncitem.module, "OTHER_SIDE"):
            raise
        raise AssertionError(f"{pyfuncitem.module.OTHER_SIDE} is not as gpuloader.base takes it to be") from error
