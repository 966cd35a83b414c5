"""What Prometheus scrapes and OpenTelemetry exports is what the loaders' stats say at that moment."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias
from urllib.request import urlopen

import pytest
from loaders import CUT, evaluation, spoilt
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Sum
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from serving import Server

from gpuloader import Cache, ConfigError, GPULoader, World
from gpuloader.metrics import export_to_opentelemetry, export_to_prometheus

GAUGES = {"ready_batches", "bad_images", "cache_held_bytes"}
Export: TypeAlias = Callable[..., object]
EITHER = pytest.mark.parametrize("export", [export_to_prometheus, export_to_opentelemetry])


def expected(loader: GPULoader) -> dict[str, float]:
    return {name.removeprefix("gpuloader/"): value for name, value in loader.stats().scalars().items()}


def scraped(text: str) -> dict[tuple[str, str], dict[str, float]]:
    """Of each loader and rank, the metrics by name; a counter's name must end in _total."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        name = family.name.removeprefix("gpuloader_")
        assert family.type == ("gauge" if name in GAUGES else "counter")
        assert family.documentation
        for sample in family.samples:
            assert sample.name == family.name + ("_total" if family.type == "counter" else "")
            found.setdefault((sample.labels["loader"], sample.labels["rank"]), {})[name] = sample.value
    return found


def exported(reader: InMemoryMetricReader) -> dict[tuple[str, int], dict[str, float]]:
    found: dict[tuple[str, int], dict[str, float]] = {}
    data: Any = reader.get_metrics_data()
    for metric in [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics:
        name = metric.name.removeprefix("gpuloader.")
        assert isinstance(metric.data, Gauge if name in GAUGES else Sum)
        assert name in GAUGES or metric.data.is_monotonic
        assert metric.unit == {"seconds": "s", "bytes": "By"}.get(name.split("_")[-1], "1")
        for point in metric.data.data_points:
            found.setdefault((point.attributes["loader"], point.attributes["rank"]), {})[name] = point.value
    return found


def test_a_scrape_and_an_export_have_what_the_stats_say_now(tmp_path: Path) -> None:
    reader, registry = InMemoryMetricReader(), CollectorRegistry()
    train = evaluation(spoilt(tmp_path, {2: CUT}), on_error="skip")
    val = evaluation(tmp_path / "spoilt.tar", 4, world=World(1, 2))
    export_to_prometheus(registry, train=train, val=val)
    export_to_opentelemetry(MeterProvider([reader]), train=train, val=val)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        for _ in range(2):
            next(iter(train))
            page = urlopen(f"http://127.0.0.1:{server.server_port}/metrics").read().decode()
            assert scraped(page) == {("train", "0"): expected(train), ("val", "1"): expected(val)}
            assert exported(reader) == {("train", 0): expected(train), ("val", 1): expected(val)}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert (expected(train)["bad_images"], expected(train)["batches"], expected(val)["batches"]) == (1, 2, 0)


def test_the_cache_is_exported_for_shards_on_stores(shards: list[Path], tmp_path: Path) -> None:
    registry = CollectorRegistry()
    shutil.copy(shards[0], tmp_path)
    with Server(tmp_path) as server, evaluation(f"{server.url}/train-0000.tar", cache=Cache(tmp_path / "c")) as loader:
        export_to_prometheus(registry, train=loader)
        next(iter(loader))
        loader.close()  # else it reads ahead between the two
        values = scraped(generate_latest(registry).decode())["train", "0"]
        assert values == expected(loader)
    size = shards[0].stat().st_size
    assert (values["cache_downloaded_bytes"], values["cache_held_bytes"]) == (size, size)


@EITHER
def test_exporting_does_not_keep_a_loader(shards: list[Path], export: Export) -> None:
    reader, registry = InMemoryMetricReader(), CollectorRegistry()
    place = registry if export is export_to_prometheus else MeterProvider([reader])
    loader = evaluation(shards)
    export(place, train=loader)
    assert scraped(generate_latest(registry).decode()) or exported(reader)
    del loader
    assert scraped(generate_latest(registry).decode()) == exported(reader) == {}


def test_a_closed_loader_still_has_its_numbers(shards: list[Path]) -> None:
    registry = CollectorRegistry()
    with evaluation(shards) as loader:
        export_to_prometheus(registry, train=loader)
        next(iter(loader))
    assert scraped(generate_latest(registry).decode())["train", "0"]["samples"] == 8


def test_other_loaders_are_exported_once_the_first_are_unregistered(shards: list[Path]) -> None:
    registry, loader = CollectorRegistry(), evaluation(shards)
    first = export_to_prometheus(registry, train=loader)
    with pytest.raises(ConfigError, match=r"name all loaders in one call, or first unregister what the earlier"):
        export_to_prometheus(registry, val=loader)
    registry.unregister(first)
    export_to_prometheus(registry, val=loader)
    assert scraped(generate_latest(registry).decode()).keys() == {("val", "0")}


@EITHER
def test_what_cannot_be_exported_is_named(export: Export) -> None:
    with pytest.raises(ConfigError, match="no loader to export: name at least one, such as `train=loader`"):
        export()
    with pytest.raises(ConfigError, match="train is a list: allowed is a GPULoader"):
        export(train=[])


@pytest.mark.parametrize(
    ("export", "package", "advice"),
    [
        (export_to_prometheus, "prometheus_client", r"Prometheus .* pip install 'gpuloader\[prometheus\]'"),
        (export_to_opentelemetry, "opentelemetry", r"OpenTelemetry .* pip install 'gpuloader\[opentelemetry\]'"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, shards: list[Path], export: Export, package: str, advice: str
) -> None:
    for module in [each for each in sys.modules if each.partition(".")[0] == package] or [package]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=advice):
        export(train=evaluation(shards))
