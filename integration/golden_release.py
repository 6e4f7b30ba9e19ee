"""Files as a release writes them, which later releases have to read.

``unshare --uts bash -c 'hostname driver && .venv/bin/python -m integration.golden_release'`` makes a folder in
``tests/golden/release``: the checkpoint location of a query with state, a savepoint of it, the locations of two dead drivers
(one had prepared micro-batches, the other had decided a checkpoint), and what the commands say of all.
`tests/test_golden_release.py` reads the files of all releases.
"""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from connector.cli import main as barrier
from integration import ROOT
from integration.broker import Cluster
from integration.driver_process import DriverProcess, wait_until
from integration.jobs import Job, build_session
from integration.topic_jobs import interval_job, produce

SCRATCH = Path("/tmp/barrier/golden")
"""The journal has this path."""


def main() -> None:
    """Make the files of this release."""
    target = ROOT / "tests" / "golden" / "release" / version("barrier-kafka")
    shutil.rmtree(SCRATCH, ignore_errors=True)
    if target.exists():
        raise SystemExit(f"{target} exists: the files of a release do not change")
    location, savepoint = SCRATCH / "location", SCRATCH / "savepoint"
    with Cluster(port=19092) as cluster:
        servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
        cluster.create_topic("orders", partitions=2)
        cluster.create_topic("counts", partitions=2)
        spark = build_session(Job(str(location), "counts"))
        for first in (0, 10, 20):
            produce(cluster, "orders", range(first, first + 10))
            rows = spark.readStream.format("barrier-kafka").options(
                **servers, subscribe="orders", startingOffsets="earliest"
            )
            times = rows.load().selectExpr("timestamp_seconds(CAST(CAST(value AS STRING) AS LONG)) AS time")
            counts = times.withWatermark("time", "1 second").groupBy("time").count()
            query = (
                counts.selectExpr("CAST(unix_seconds(time) AS STRING) AS key", "CAST(count AS STRING) AS value")
                .writeStream.format("2pc-kafka")
                .options(**servers, topic="counts", transactionalIdPrefix="golden", checkpointLocation=str(location))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        spark.stop()
        assert barrier(["savepoint", "take", str(location), str(savepoint)]) == 0
        die(cluster, "prepared")
        die(cluster, "decided")
        said = {
            "checkpoints": answer("checkpoints", "list", location),
            "savepoints": answer("savepoint", "list", SCRATCH),
            "prepared": answer("checkpoints", "list", SCRATCH / "prepared"),
            "decided": answer("checkpoints", "list", SCRATCH / "decided"),
        }
    shutil.copytree(SCRATCH, target)
    (target / "said.json").write_text(json.dumps(said, indent=1) + "\n")


def die(cluster: Cluster, state: str) -> None:
    """Make the location of a driver that died with two prepared micro-batches, or after it had decided a checkpoint."""
    job, output = interval_job(cluster, state, "2pc-kafka", SCRATCH, batches=3)
    produce(cluster, f"{state}-in", range(3 * job.rows))
    job = replace(job, location=str(SCRATCH / state))
    with TemporaryDirectory() as folder, DriverProcess(Path(folder), job, output) as driver:
        if state == "decided":
            driver.faults.arm("decision.written", "kill-jvm")
        driver.start()
        if state == "decided":
            driver.wait_death("decision.written")
        else:
            wait_until(lambda: driver.place.kinds().count("prepared") == 2, "two prepared micro-batches")


def answer(*words: str | Path) -> object:
    """Return what a command says as JSON."""
    with redirect_stdout(StringIO()) as printed:
        assert barrier([*map(str, words), "--output", "json"]) == 0
    return json.loads(printed.getvalue())


if __name__ == "__main__":
    main()
