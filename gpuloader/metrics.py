"""Exports what loaders count as metrics, to Prometheus or OpenTelemetry. Each needs the extra of its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from gpuloader import __version__
from gpuloader.errors import ConfigError
from gpuloader.loading.loader import GPULoader

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider, Observation
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

__all__ = ["export_to_opentelemetry", "export_to_prometheus"]

_DESCRIPTIONS = {
    "batches": "Batches delivered",
    "samples": "Samples delivered, padding included",
    "elapsed_seconds": "Time spent in loops over the loader",
    "waiting_seconds": "Time that these loops waited for the loader",
    "decoding_seconds": "Time waited for decoded images",
    "delivering_seconds": "Time waited for delivery: labels to the device, mixing",
    "reading_seconds": "Time of the reading thread for reading bytes",
    "gating_seconds": "Time of the reading thread for the gate, draws, labels and fields",
    "ready_batches": "Batches that are read and wait to be decoded",
    "bad_images": "Bad images that were replaced or left out",
    "cache_hits": "How often a batch found a shard in the cache",
    "cache_misses": "How often a batch had to wait for a shard's download",
    "cache_downloaded_bytes": "Bytes of shards downloaded",
    "cache_held_bytes": "Bytes that the cache holds, for all processes",
}
_GAUGES = {"ready_batches", "bad_images", "cache_held_bytes"}  # the others never decrease
_UNITS = {"seconds": "s", "bytes": "By"}


def export_to_prometheus(registry: CollectorRegistry | None = None, /, **loaders: GPULoader[Any]) -> PrometheusMetrics:
    """Adds the stats of loaders to the metrics that Prometheus scrapes from this process.

    The metrics are `gpuloader_waiting_seconds_total` and so on: the names of `Stats.scalars`, with the labels `loader`
    (its keyword here) and `rank`. Their values are read at each scrape. A loader that no longer exists is left out.

    Args:
        registry: where to add them; None takes the default registry of `prometheus_client`.
        loaders: all loaders of this process to export, each under the name to give it.

    Returns:
        What was added, for `registry.unregister`.

    Raises:
        ConfigError: `prometheus_client` is not installed, there is no loader, or the registry has such metrics already.

    Example:
        >>> from gpuloader import GPULoader
        >>> from gpuloader.metrics import export_to_prometheus
        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> loader, registry = GPULoader("shards/", 8, "cpu"), CollectorRegistry()
        >>> _ = export_to_prometheus(registry, train=loader)
        >>> 'gpuloader_samples_total{loader="train",rank="0"} 0.0' in generate_latest(registry).decode()
        True
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise _missing("Prometheus", "prometheus_client", "prometheus", error) from None
    metrics = PrometheusMetrics(loaders)
    try:
        (REGISTRY if registry is None else registry).register(metrics)
    except ValueError as error:
        raise ConfigError(
            f"this registry has gpuloader's metrics already ({error}): name all loaders in one call, or first "
            f"unregister what the earlier call returned"
        ) from None
    return metrics


def export_to_opentelemetry(provider: MeterProvider | None = None, /, **loaders: GPULoader[Any]) -> None:
    """Adds the stats of loaders to the metrics that this process exports by OpenTelemetry.

    The metrics are `gpuloader.waiting_seconds` and so on: the names of `Stats.scalars`, with the attributes `loader`
    (its keyword here) and `rank`. Their values are read at each export. A loader that no longer exists is left out.

    Args:
        provider: the meter provider; None takes the global one.
        loaders: all loaders of this process to export, each under the name to give it.

    Raises:
        ConfigError: `opentelemetry` is not installed, or there is no loader.

    Example:
        >>> from gpuloader import GPULoader
        >>> from gpuloader.metrics import export_to_opentelemetry
        >>> from opentelemetry.sdk.metrics import MeterProvider
        >>> from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        >>> reader = InMemoryMetricReader()
        >>> export_to_opentelemetry(MeterProvider([reader]), train=GPULoader("shards/", 8, "cpu"))
    """
    try:
        from opentelemetry.metrics import get_meter
    except ImportError as error:
        raise _missing("OpenTelemetry", "opentelemetry", "opentelemetry", error) from None
    exported = _Exported(loaders)
    meter = get_meter("gpuloader", __version__, provider)
    for metric, description in _DESCRIPTIONS.items():
        create = meter.create_observable_gauge if metric in _GAUGES else meter.create_observable_counter
        unit = _UNITS.get(metric.rpartition("_")[2], "1")
        create(f"gpuloader.{metric}", [partial(_observe, exported, metric)], unit, description)


class PrometheusMetrics:
    """A collector of `prometheus_client`; `export_to_prometheus` makes it."""

    def __init__(self, loaders: Mapping[str, GPULoader[Any]]) -> None:
        self._exported = _Exported(loaders)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics as they are now."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        now = list(self._exported.read())
        for metric, description in _DESCRIPTIONS.items():
            family = GaugeMetricFamily if metric in _GAUGES else CounterMetricFamily
            values = family(f"gpuloader_{metric}", description, labels=["loader", "rank"])
            for name, rank, scalars in now:
                if metric in scalars:
                    values.add_metric([name, str(rank)], scalars[metric])
            yield values

    describe = collect  # by which a registry finds duplicates


class _Exported:
    """The loaders to export; it does not keep them alive."""

    def __init__(self, loaders: Mapping[str, GPULoader[Any]]) -> None:
        if not loaders:
            raise ConfigError("no loader to export: name at least one, such as `train=loader`")
        for name, loader in loaders.items():
            if not isinstance(loader, GPULoader):
                raise ConfigError(f"{name} is a {type(loader).__name__}: allowed is a GPULoader")
        self._loaders = {name: ref(loader) for name, loader in loaders.items()}

    def read(self) -> Iterator[tuple[str, int, dict[str, float]]]:
        """Yields each loader's name, its rank and its numbers now."""
        for name, reference in self._loaders.items():
            if (loader := reference()) is not None:
                scalars = {key.partition("/")[2]: value for key, value in loader.stats().scalars().items()}
                yield name, loader.world.rank, scalars


def _observe(exported: _Exported, metric: str, _: object) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation

    for name, rank, scalars in exported.read():
        if metric in scalars:
            yield Observation(scalars[metric], {"loader": name, "rank": rank})


def _missing(what: str, package: str, extra: str, error: ImportError) -> ConfigError:
    return ConfigError(f"{what} needs the package {package}: pip install 'gpuloader[{extra}]' ({error})")
