"""A test here that fails names the installed version of what it tests: `OTHER_SIDE` of its module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    try:
        return (yield)
    except Exception as error:
        raise AssertionError(f"{pyfuncitem.module.OTHER_SIDE} is not as gpuloader.internals takes it to be") from error
