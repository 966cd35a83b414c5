"""What tests of loaders share: a clock, and what is built."""

from __future__ import annotations

from typing import Any

import pytest
from loaders import Clock

from gpuloader.loading.delivery import deliver
from gpuloader.pipelines import graph_pipeline


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """That of every loader and its reader."""
    clock = Clock()

    def deliver_slowly(*arguments: Any) -> Any:  # noqa: ANN401
        clock.spend(clock.delivering_seconds)
        return deliver(*arguments)

    monkeypatch.setattr("gpuloader.loading.loader.time", clock)
    monkeypatch.setattr("gpuloader.loading.opening.time", clock)
    monkeypatch.setattr("gpuloader.loading.reading.time", clock)
    monkeypatch.setattr("gpuloader.loading.loader.deliver", deliver_slowly)
    return clock


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Has an entry for each pipeline that a loader, or its triage, has built since."""
    pipelines: list[object] = []

    def build_and_note(inputs: Any, feed: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        pipelines.append(kwargs)
        return graph_pipeline(inputs, feed, **kwargs)

    monkeypatch.setattr("gpuloader.chain.decode.graph_pipeline", build_and_note)
    monkeypatch.setattr("gpuloader.pipelines.triage.graph_pipeline", build_and_note)
    return pipelines
