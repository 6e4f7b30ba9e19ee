"""Spark Connect, declarative pipelines, and other versions of PySpark than the one that the tests run; each with a kill."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from integration.broker import Cluster
from integration.driver_process import wait_until
from integration.other_spark import OtherSpark, fetch
from integration.ports import Ports
from integration.releases import SPARK_4_1, SPARK_4_3, on_spark_4_1, on_spark_4_3
from integration.session import kill_group
from integration.topic_output import TopicOutput

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(1200)]

ROWS = 1000
WANTED = Counter(range(ROWS))

PIPELINE = """\
name: copy
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""

FLOW = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

servers = "{servers}"
dp.create_sink("out", "2pc-kafka", {{"kafka.bootstrap.servers": servers, "topic": "{target}"}})


@dp.append_flow(target="out")
def copied():
    rows = SparkSession.active().readStream.format("barrier-kafka").option("kafka.bootstrap.servers", servers)
    rows = rows.option("subscribe", "{source}").option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "50")
    return rows.load().selectExpr("key", "value")
"""


@pytest.fixture(scope="module")
def spark_4_3() -> OtherSpark:
    return fetch(SPARK_4_3)


@pytest.fixture(scope="module")
def spark_4_1() -> OtherSpark:
    return fetch(SPARK_4_1)


def output(kafka: Cluster, topic: str) -> TopicOutput:
    kafka.create_topic(topic, partitions=2)
    return TopicOutput(kafka.bootstrap_servers, topic, "")


def feed(kafka: Cluster, topic: str) -> None:
    kafka.create_topic(topic, partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(ROWS):
        producer.produce(topic, key=str(number), value=str(number))
    producer.flush()


def settled(location: Path) -> int:
    """How many micro-batches Spark has committed."""
    return len([file for file in location.rglob("commits/*") if file.name.isdigit()])


@on_spark_4_3
def test_a_query_of_a_connect_client_whose_server_is_killed_goes_on_at_another_server(
    kafka: Cluster, topic_name: str, spark_4_3: OtherSpark, tmp_path: Path
) -> None:
    source, target, location = f"{topic_name}-in", f"{topic_name}-out", tmp_path / "location"
    feed(kafka, source)
    out = output(kafka, target)
    ports = Ports()
    port = ports.reserve()
    command = [sys.executable, "-m", "integration.connect_query", str(port), kafka.bootstrap_servers]
    for micro_batches in (3, 10):
        with ExitStack() as stack:
            stack.enter_context(spark_4_3.connect_server(port, tmp_path))
            log = tmp_path / "client.log"
            client = stack.enter_context(spark_4_3.running([*command, source, target, str(location)], log, tmp_path))
            wait_until(
                lambda: settled(location) >= micro_batches,  # noqa: B023 - called before the next turn
                f"{micro_batches} micro-batches",
                alive=lambda: log.read_text()[-2000:] if client.poll() is not None else None,  # noqa: B023
            )
    ports.release()
    assert out.rows() == WANTED


@on_spark_4_3
def test_a_declarative_pipeline_that_is_killed_goes_on_and_writes_every_row_once(
    kafka: Cluster, topic_name: str, spark_4_3: OtherSpark, tmp_path: Path
) -> None:
    source, target = f"{topic_name}-in", f"{topic_name}-out"
    feed(kafka, source)
    out = output(kafka, target)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(PIPELINE.format(folder=tmp_path))
    flow = FLOW.format(servers=kafka.bootstrap_servers, source=source, target=target)
    (tmp_path / "transformations" / "copy.py").write_text(flow)
    command = [str(spark_4_3.home / "bin" / "spark-pipelines"), "run", "--conf", "spark.driver.memory=512m"]
    log = tmp_path / "pipeline.log"
    with spark_4_3.running(command, log, tmp_path) as pipeline:
        wait_until(
            lambda: settled(tmp_path / "storage") >= 3,
            "three micro-batches",
            alive=lambda: log.read_text()[-2000:] if pipeline.poll() is not None else None,
        )
        kill_group(pipeline)
    before = out.rows()
    assert before < WANTED, "it was killed too late"
    with spark_4_3.running(command, log, tmp_path) as pipeline:
        assert pipeline.wait(300) == 0, log.read_text()[-2000:]
    assert out.rows() == WANTED


@on_spark_4_1
def test_the_sinks_of_spark_4_1_write_every_row_of_another_source_once(
    kafka: Cluster, topic_name: str, spark_4_1: OtherSpark, tmp_path: Path
) -> None:
    out, location, files = output(kafka, topic_name), tmp_path / "location", tmp_path / "files"
    files.mkdir()
    for first in range(0, ROWS, 100):
        (files / f"{first:04}.txt").write_text("".join(f"{number}\n" for number in range(first, first + 100)))
    command = [sys.executable, "-m", "integration.files_query", kafka.bootstrap_servers, str(files), topic_name]
    log = tmp_path / "query.log"
    with spark_4_1.running([*command, str(location)], log, tmp_path) as query:
        wait_until(
            lambda: settled(location) >= 3,
            "three micro-batches",
            alive=lambda: log.read_text()[-2000:] if query.poll() is not None else None,
        )
        kill_group(query)
    assert out.rows() < WANTED, "it was killed too late"
    with spark_4_1.running([*command, str(location)], log, tmp_path) as query:
        assert query.wait(300) == 0, log.read_text()[-2000:]
    assert out.rows() == WANTED


@on_spark_4_1
def test_the_source_says_that_a_stream_needs_spark_4_2(spark_4_1: OtherSpark, kafka: Cluster, topic_name: str) -> None:
    kafka.create_topic(topic_name, partitions=1)
    program = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "rows = spark.readStream.format('barrier-kafka')\n"
        f"rows = rows.option('kafka.bootstrap.servers', '{kafka.bootstrap_servers}').option('subscribe', '{topic_name}')\n"
        "query = rows.load().writeStream.format('console').start()\n"
        "query.awaitTermination()\n"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=spark_4_1.environment(), capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode
    assert "SPARK_TOO_OLD" in run.stderr, run.stderr[-3000:]
