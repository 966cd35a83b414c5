"""Networks by name. Those of torchvision and timm: tests/integrations/test_networks.py."""

from __future__ import annotations

import sys

import pytest
import torch

from gpuloader import ConfigError
from gpuloader.tools.training_step import make_model


def test_the_small_one_is_built_in() -> None:
    assert make_model("small")(torch.zeros(2, 3, 32, 32)).shape == (2, 1000)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torchvision", "timm"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        make_model("smal")
    message = str(caught.value)
    assert message.startswith("no network is called 'smal' (did you mean small?); allowed are small and the names of ")
    assert "torchvision cannot be imported" in message
    assert "timm cannot be imported" in message
