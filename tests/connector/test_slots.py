"""How many tasks a cluster can run at the same time, by its settings."""

from __future__ import annotations

import pytest

from connector.registration.slots import slots_of

YARN = {"spark.executor.instances": "10", "spark.executor.cores": "4"}
GROWS = {"spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "4"}


@pytest.mark.parametrize(
    ("master", "settings", "expected"),
    [
        ("local[3]", {}, 8),
        ("local", {"spark.task.cpus": "2"}, 4),
        ("local[*]", {"spark.task.cpus": "20"}, 1),
        ("local[3]", {"spark.default.parallelism": "5"}, 5),
        ("local-cluster[3, 2, 1024]", {}, 6),
        ("yarn", YARN, 40),
        ("yarn", YARN | {"spark.task.cpus": "2"}, 20),
        ("k8s://https://host:6443", {"spark.executor.instances": "10"}, 10),
        ("spark://host:7077", {"spark.executor.instances": "10"}, None),
        ("spark://host:7077", {"spark.cores.max": "12"}, 12),
        ("spark://host:7077", YARN, None),
        ("spark://host:7077", YARN | {"spark.cores.max": "12"}, 12),
        ("spark://host:7077", {}, None),
        ("yarn", {}, None),
        ("yarn", GROWS, None),
        ("yarn", GROWS | {"spark.executor.instances": "2"}, None),
        ("yarn", GROWS | {"spark.dynamicAllocation.maxExecutors": "50"}, 200),
        ("yarn", GROWS | {"spark.dynamicAllocation.maxExecutors": "infinity"}, None),
        ("yarn", {"spark.default.parallelism": "0"}, 1),
    ],
)
def test_slots_are_what_the_settings_promise_and_not_what_runs_now(
    master: str, settings: dict[str, str], expected: int | None
) -> None:
    assert slots_of(settings.get, master, 8) == expected
