"""What tests of loaders share: a clock, and what is built."""

from __future__ import annotations

from typing import Any

import pytest
from loaders import Clock

from gpuloader.loading.delivery import deliver
from gpuloader.pipelines import build


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """That of every loader and its reader."""
    clock = Clock()

    def deliver_slowly(*arguments: Any) -> Any:  # noqa: ANN401
        clock.spend(clock.delivering_seconds)
        return deliver(*arguments)

    monkeypatch.setattr("gpuloader.loading.loader.time", clock)
    monkeypatch.setattr("gpuloader.loading.reader.time", clock)
    monkeypatch.setattr("gpuloader.loading.loader.deliver", deliver_slowly)
    return clock


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Has an entry for each pipeline that a loader, or its triage, has built since."""
    pipelines: list[object] = []

    def build_and_note(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        pipelines.append(args)
        return build(*args, **kwargs)

    monkeypatch.setattr("gpuloader.loading.decoding.build", build_and_note)
    monkeypatch.setattr("gpuloader.pipelines.triage.build", build_and_note)
    return pipelines
