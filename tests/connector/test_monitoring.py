"""Metrics in a driver, and the files for Prometheus and Grafana."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

import barrier_kafka
from connector.serving.samples import METRICS
from tests.connector.cli_place import CliPlace

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture
def place(tmp_path: Path) -> CliPlace:
    """Checkpoint 2 is settled."""
    found = CliPlace(tmp_path)
    found.run()
    found.decided(0, rows=3)
    return found


def test_a_driver_s_registry_follows_the_journal(place: CliPlace) -> None:
    registry = CollectorRegistry()
    collector = barrier_kafka.register_prometheus(str(place), registry)
    labels = {"location": str(place)}
    assert registry.get_sample_value("barrier_committed_rows_total", labels) == 3
    place.decided(1, rows=4)
    assert registry.get_sample_value("barrier_committed_rows_total", labels) == 7
    registry.unregister(collector)
    assert registry.get_sample_value("barrier_committed_rows_total", labels) is None


def test_a_meter_of_opentelemetry_observes_the_same(place: CliPlace) -> None:
    reader = InMemoryMetricReader()
    barrier_kafka.register_opentelemetry(str(place), MeterProvider([reader]).get_meter("orders"))
    seen = json.loads(reader.get_metrics_data().to_json())  # type: ignore[union-attr]
    (scope,) = seen["resource_metrics"][0]["scope_metrics"]
    found = {metric["name"]: metric["data"]["data_points"] for metric in scope["metrics"]}
    (rows,) = found["barrier_committed_rows"]
    assert (rows["value"], rows["attributes"]) == (3, {"location": str(place)})
    assert {"barrier_checkpoints", "barrier_query_state"} <= set(found)
    assert set(found) <= {name.removesuffix("_total") for name in METRICS}


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json"])
def test_rules_and_dashboard_name_metrics_that_there_are(name: str) -> None:
    text = (DOCS / "monitoring" / name).read_text()
    named = set(re.findall(r"\bbarrier_\w+", text))
    assert len(named) > 8
    assert named <= set(METRICS)


def test_the_page_on_metrics_has_all_with_their_labels() -> None:
    page = (DOCS / "monitor.md").read_text()
    rows = {
        found[1]: (found[2], found[3])
        for found in re.finditer(r"^\| `(barrier_\w+)` \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    }
    assert rows == {name: (", ".join(metric.labels), metric.text) for name, metric in METRICS.items()}
