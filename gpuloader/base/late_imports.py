"""Imports large packages when they are first needed."""

from __future__ import annotations

import importlib
from types import ModuleType

from gpuloader.base.signals import deferred_signals


def import_late(name: str) -> ModuleType:
    """Imports a module, and delays signals until it is done.

    If the import of torch is interrupted, the process cannot use torch: the next import finds half of it.
    """
    with deferred_signals():
        return importlib.import_module(name)
