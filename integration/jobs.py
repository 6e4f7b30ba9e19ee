"""The jobs that tests kill: ``python -m integration.jobs NAME --location .. --output .. --batches N`` is one driver.

Each event is one line of JSON on standard output: ``session``, ``started``, ``batch``, ``failed``, ``finished``. A line
``stop`` on standard input stops the query. Exit status: 0 finished or stopped, 3 the query failed and no restart is left.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connector.location import offset_log
from connector.location.location import CheckpointLocation
from integration.class_archive import archive_options
from integration.file_sink import FileSink
from integration.probed_sink import ProbedFileSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["JOBS", "Job", "build_session", "jvm_options", "newest", "parse", "start"]

FAILED = 3
LOOK_EVERY = 0.05
"""Seconds between two looks at the query: far below a micro-batch."""

TWO_HOSTS = "two-hosts"
"""A master that is a cluster of two hosts with a core each."""

QUICK_JVM = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss2m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""A driver lives for seconds here: it should start fast, not run fast. To verify Spark's classes takes half of a start."""


RAW_LOCAL_FILES = {"spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs"}
"""Spark's logs are written without checksums: Hadoop starts three processes for each entry instead of six."""


def jvm_options() -> str:
    """A driver's; what one that is killed leaves lies in the folder for temporary files, which tests have of their own."""
    return f"{QUICK_JVM} {archive_options()} -Djava.io.tmpdir={tempfile.gettempdir()}"


@dataclass(frozen=True)
class Job:
    """What one driver runs."""

    location: str
    output: str
    name: str = "files"
    batches: int = 3
    rows: int = 10
    writers: int = 2
    master: str = "local[2]"
    trigger: str = "0 seconds"
    restarts: int = 0
    mode: str = "append"
    conf: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    sink: dict[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """The command line that gives this job."""
        found = [self.name]
        for key in ("location", "output", "batches", "rows", "writers", "master", "trigger", "restarts", "mode"):
            found += [f"--{key}", str(getattr(self, key))]
        for key in ("conf", "source", "sink"):
            for name, value in getattr(self, key).items():
                found += [f"--{key}", f"{name}={value}"]
        return found


def parse(arguments: Sequence[str]) -> Job:
    """Inverse of `Job.arguments`."""
    parser = argparse.ArgumentParser(prog="python -m integration.jobs", description=__doc__)
    parser.add_argument("name", choices=sorted(JOBS))
    parser.add_argument("--location", required=True, help="checkpoint location")
    parser.add_argument("--output", required=True, help="folder or topic")
    parser.add_argument("--batches", type=int, default=3, help="micro-batches with rows; then the query is stopped")
    parser.add_argument("--rows", type=int, default=10, help="rows per micro-batch")
    parser.add_argument("--writers", type=int, default=2, help="writer tasks")
    parser.add_argument("--master", default="local[2]", help=f"as Spark's, or {TWO_HOSTS}")
    parser.add_argument("--trigger", default="0 seconds", help="a processing time, or availableNow")
    parser.add_argument("--restarts", type=int, default=0, help="times a failed query is started again in this session")
    parser.add_argument("--mode", default="append")
    for key in ("conf", "source", "sink"):
        parser.add_argument(f"--{key}", action="append", default=[], metavar="KEY=VALUE")
    given = vars(parser.parse_args(arguments))
    for key in ("conf", "source", "sink"):
        given[key] = dict(pair.split("=", 1) for pair in given[key])
    return Job(**given)


def build_session(job: Job) -> SparkSession:
    """A session that starts fast and listens on the loopback address only."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": jvm_options(),
        "spark.local.dir": tempfile.gettempdir(),
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.codegen.wholeStage": "false",  # to compile plans takes longer than to run them here
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        **RAW_LOCAL_FILES,
        **job.conf,
    }
    master = _start_hosts(settings, job) if job.master == TWO_HOSTS else job.master
    builder = SparkSession.builder.master(master).appName(f"job {job.name}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _start_hosts(settings: dict[str, str], job: Job) -> str:
    """Start a standalone cluster of two workers with a core each in the driver's JVM; returns its address.

    `local-cluster` has one host, and Spark never runs a task's copies on one host: it speculates in vain there.
    """
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(settings.items())))
    jvm, gateway = SparkContext._jvm, SparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    conf = jvm.org.apache.spark.SparkConf(True)
    deploy = jvm.org.apache.spark.deploy
    port = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)._1().address().port()
    address = gateway.new_array(jvm.java.lang.String, 1)
    address[0] = f"spark://127.0.0.1:{port}"
    folder = str(Path(job.location).parent / "hosts")
    for number in (1, 2):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            f"127.0.0.{number}", 0, 0, 1, 1024, address, folder, jvm.scala.Some(number), conf, jvm.scala.Option.empty()
        )
    return str(address[0])


def files(session: SparkSession, job: Job) -> tuple[DataFrame, str, dict[str, str]]:
    """Spark's own deterministic source -> the file sink. Row values are 0 to batches * rows - 1."""
    from connector.spark.host import data_source_for

    session.dataSource.register(data_source_for(FileSink))
    session.dataSource.register(data_source_for(ProbedFileSink))
    stream = session.readStream.format("rate-micro-batch").options(
        **{"rowsPerBatch": str(job.rows), "numPartitions": str(job.writers), **job.source}
    )
    # Later micro-batches go on without rows until the driver is stopped: the output does not depend on that moment.
    frame = stream.load().where(f"value < {job.batches * job.rows}")
    return frame, job.sink.get("format", FileSink.name()), {"path": job.output}


def shuffled(session: SparkSession, job: Job) -> tuple[DataFrame, str, dict[str, str]]:
    """As `files`, with a shuffle before the writers: what an executor held is gone with it."""
    frame, name, options = files(session, job)
    return frame.repartition(job.writers, "value"), name, options


def routed(session: SparkSession, job: Job) -> tuple[DataFrame, str, dict[str, str]]:
    """As `files`, into several sinks in turn, and every last row to all: `integration.engine.Work.route`."""
    frame, _, _ = files(session, job)
    names = job.sink["sinks"].split(",")
    route = " ".join(f"WHEN {number} THEN '{name}'" for number, name in enumerate(names))
    columns = ("CAST(value AS STRING) AS key", "CAST(value AS STRING) AS value", "CAST(value % 2 AS INT) AS partition")
    return frame.selectExpr(*columns, f"CASE value % {len(names) + 1} {route} END AS route"), "2pc-multi", {}


def kafka(session: SparkSession, job: Job) -> tuple[DataFrame, str, dict[str, str]]:
    """A topic -> a topic, or a Delta table of whole numbers. Needs ``--source`` and ``--sink`` as the formats do."""
    rows = session.readStream.format("barrier-kafka").options(**job.source).load()
    if job.writers == 1:
        rows = rows.coalesce(1)
    if job.sink.get("format") == "2pc-delta":
        return rows.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS value"), "2pc-delta", {"path": job.output}
    return rows.select("key", "value"), "2pc-kafka", {"topic": job.output}


def counted(session: SparkSession, job: Job) -> tuple[DataFrame, str, dict[str, str]]:
    """A topic -> a Delta table: of every row, its key times 1000 plus how many rows of that key came before it."""
    from pyspark.sql.functions import col

    rows = session.readStream.format("barrier-kafka").options(**job.source).load()
    keys = rows.selectExpr("CAST(CAST(value AS STRING) AS LONG) % 5 AS key")

    def count(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        before = state.get[0] if state.exists else 0
        new = sum(len(frame) for frame in frames)
        state.update((before + new,))
        yield pd.DataFrame({"value": [key[0] * 1000 + number for number in range(before, before + new)]})

    numbered = keys.groupBy(col("key")).applyInPandasWithState(count, "value LONG", "n LONG", "append", "NoTimeout")
    return numbered, "2pc-delta", {"path": job.output}


def distinct(session: SparkSession, job: Job) -> tuple[DataFrame, str, dict[str, str]]:
    """A topic of whole numbers -> the file sink, or a topic: each number once, however often it comes."""
    from connector.spark.host import data_source_for

    session.dataSource.register(data_source_for(FileSink))
    rows = session.readStream.format("barrier-kafka").options(**job.source).load()
    numbers = rows.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS value").dropDuplicates(["value"])
    if job.sink.get("format") == "2pc-kafka":
        return numbers.selectExpr("CAST(value AS STRING) AS value"), "2pc-kafka", {"topic": job.output}
    return numbers, FileSink.name(), {"path": job.output}


JOBS: dict[str, Callable[[SparkSession, Job], tuple[DataFrame, str, dict[str, str]]]] = {
    "files": files,
    "shuffled": shuffled,
    "routed": routed,
    "kafka": kafka,
    "counted": counted,
    "distinct": distinct,
}


def start(session: SparkSession, job: Job) -> StreamingQuery:
    """Start the job's query."""
    frame, name, options = JOBS[job.name](session, job)
    extra = {key: value for key, value in job.sink.items() if key != "format"}
    writer = frame.writeStream.format(name).outputMode(job.mode)
    writer = writer.option("checkpointLocation", job.location).options(**{**options, **extra})
    if job.trigger == "availableNow":
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=job.trigger).start()


def newest(location: str | Path, log: str) -> int:
    """The highest micro-batch in ``offsets`` or ``commits`` of a location; -1 where there is none."""
    return offset_log.newest(CheckpointLocation(str(location)), log)


def main(arguments: Sequence[str]) -> int:
    """Run one driver until its job is done, was stopped, or has failed for good."""
    job = parse(arguments)
    stopping = threading.Event()
    threading.Thread(target=_listen, args=(stopping,), daemon=True).start()
    session = build_session(job)
    _say("session", pid=os.getpid())
    for left in range(job.restarts, -1, -1):
        try:
            finished = _run(session, job, stopping)
        except Exception as problem:  # noqa: BLE001 - whatever ends the query is the event that tests wait for.
            _say("failed", error=str(problem), restarts=left)
            continue
        _say("finished", stopped=not finished)
        session.stop()
        return 0
    return FAILED


def _run(session: SparkSession, job: Job, stopping: threading.Event) -> bool:
    """Run the query once; True when all micro-batches are committed, False when it was stopped."""
    query = start(session, job)
    _say("started", query=str(query.id), run=str(query.runId))
    said = -1
    while query.isActive and not stopping.is_set():
        committed = newest(job.location, "commits")
        if committed > said:
            said = committed
            _say("batch", number=committed)
        if committed >= job.batches - 1 and job.trigger != "availableNow":
            break
        time.sleep(LOOK_EVERY)
    problem = query.exception()
    if problem is not None:
        raise problem
    stopped = stopping.is_set()
    query.stop()
    return not stopped


def _listen(stopping: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == "stop":
            stopping.set()


def _say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
