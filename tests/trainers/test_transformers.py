"""`gpuloader.trainers.transformers` where its packages are missing; tests/integrations has it in real runs."""

import sys
from importlib import import_module

import pytest

from gpuloader.errors import InstallationError


def test_without_transformers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gpuloader.trainers.transformers", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InstallationError, match="pip install transformers accelerate"):
        import_module("gpuloader.trainers.transformers")
