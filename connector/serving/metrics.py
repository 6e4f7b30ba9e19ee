"""Export metrics to Prometheus and OpenTelemetry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from connector.location.location import CheckpointLocation
from connector.serving.facts import ClusterFacts, QueryFacts, look_at_query
from connector.serving.samples import METRICS, Sample, samples

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class QueryCollector:
    """A collector for `prometheus_client`, which exports the metrics of queries and clusters.

    Parameters
    ----------
    queries : Callable[[], Sequence[QueryFacts]]
        Returns the facts of the queries. Called at each scrape.
    clusters : Callable[[], Sequence[ClusterFacts]], optional
        Returns the facts of the clusters. Called at each scrape.
    """

    def __init__(
        self, queries: Callable[[], Sequence[QueryFacts]], clusters: Callable[[], Sequence[ClusterFacts]] = tuple
    ) -> None:
        self._queries, self._clusters = queries, clusters

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that a registry does not call `collect`, which reads journals, before a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all queries and clusters. The registry calls this at each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found: dict[str, Any] = {}
        for sample in samples(self._queries(), self._clusters(), time.time()):
            if sample.name not in found:
                metric = METRICS[sample.name]
                family = CounterMetricFamily if metric.grows else GaugeMetricFamily
                found[sample.name] = family(sample.name, metric.text, labels=metric.labels)
            found[sample.name].add_metric(sample.labels, sample.value)
        yield from found.values()


def register_prometheus(location: str, registry: CollectorRegistry | None = None) -> QueryCollector:
    """Export a query's metrics to Prometheus. Any Python program that can read the location may call this.

    This needs the extra ``barrier-kafka[serve]``.

    Parameters
    ----------
    location : str
        The query's checkpoint location.
    registry : CollectorRegistry, optional
        The registry to use. The default is the registry of the process, which ``prometheus_client.start_http_server`` serves.

    Returns
    -------
    QueryCollector
        The collector; pass it to ``registry.unregister`` to end the export.

    Raises
    ------
    OptionError
        ``NO_EXCLUSIVE_CREATE``: in the location's store, two processes could create the same file.
    """
    from prometheus_client import REGISTRY

    look = _looking(location)
    collector = QueryCollector(lambda: [look()])
    (registry or REGISTRY).register(collector)
    return collector


def register_opentelemetry(location: str, meter: Meter) -> None:
    """Export a query's metrics to OpenTelemetry. Any Python program that can read the location may call this.

    Parameters
    ----------
    location : str
        The query's checkpoint location.
    meter : Meter
        The meter that creates the metrics; ``opentelemetry.metrics.get_meter`` returns one.
    """
    from opentelemetry.metrics import Observation

    look = _looking(location)
    last: tuple[float, list[Sample]] = (0.0, [])

    def observed(name: str) -> Callable[[Any], Iterator[Observation]]:
        def callback(options: Any) -> Iterator[Observation]:
            nonlocal last
            now = time.time()
            if now - last[0] > 1:  # a collection asks for one metric after the other
                last = now, list(samples([look()], (), now))
            labels = METRICS[name].labels
            for sample in last[1]:
                if sample.name == name:
                    yield Observation(sample.value, dict(zip(labels, sample.labels, strict=True)))

        return callback

    for name, metric in METRICS.items():
        create = meter.create_observable_counter if metric.grows else meter.create_observable_gauge
        create(name.removesuffix("_total"), [observed(name)], description=metric.text)


def _looking(path: str) -> Callable[[], QueryFacts]:
    location = CheckpointLocation(path)
    journal, lock = location.journal(), threading.Lock()

    def look() -> QueryFacts:
        with lock:  # scrapes may overlap
            return look_at_query(location, journal)

    return look
