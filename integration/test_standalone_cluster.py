"""A query on Spark's standalone cluster, of which each kind of process is killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from integration.broker import Cluster
from integration.driver_process import DriverProcess, wait_until
from integration.standalone import StandaloneCluster
from integration.topic_jobs import produce_keyed, topic_to_topic
from integration.topic_output import COMMITTED, LiveReader

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(900)]

BATCHES = 60
SETTINGS = {"spark.executor.cores": "1", "spark.executor.memory": "512m", "spark.cores.max": "2"}


def test_a_topic_is_copied_once_while_executor_worker_master_and_driver_are_killed(
    kafka: Cluster, topic_name: str, tmp_path: Path
) -> None:
    job, output = topic_to_topic(kafka, topic_name)
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        job = replace(job, batches=BATCHES, master=cluster.address, conf=SETTINGS)
        produce_keyed(kafka, f"{topic_name}-in", range(job.batches * job.rows))
        with closing(LiveReader(output)) as reader, DriverProcess(tmp_path, job, output) as driver:

            def goes_on() -> None:
                driver.wait_committed(driver.place.committed() + 3)

            driver.start()
            goes_on()
            first, second = cluster.workers
            [executor] = wait_until(lambda: cluster.executors(first), "an executor")
            os.kill(executor, signal.SIGKILL)
            goes_on()
            cluster.kill(second)
            goes_on()
            cluster.start_worker()
            assert cluster.master is not None
            cluster.kill(cluster.master)
            goes_on()
            cluster.start_master()
            goes_on()
            driver.kill()
            driver.finish()
            assert reader.finish(output.ends(COMMITTED)) == Counter(range(driver.expected))
