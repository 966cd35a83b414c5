"""Importing what is large when it is needed, not before."""

from __future__ import annotations

import gc
import importlib
from types import ModuleType


def import_late(name: str) -> ModuleType:
    """Imports a module, with Python's garbage collector paused.

    DALI, torch and Numba make a million objects that stay. The collector would go through them several times meanwhile,
    for a quarter of the time that importing takes.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if collecting:
            gc.enable()
