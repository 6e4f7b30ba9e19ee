"""Files as a release writes them, which later releases have to read.

``unshare --uts bash -c 'hostname driver && .venv/bin/python -m integration.golden_release'`` makes a folder in
``tests/golden/release``: the checkpoint location of a query with state, a savepoint of it, and what the commands say of both.
`tests/test_golden_release.py` reads the files of all releases.
"""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path

from connector.cli import main as barrier
from integration import ROOT
from integration.broker import Cluster
from integration.jobs import Job, build_session
from integration.topic_jobs import produce

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
        said = {
            "checkpoints": answer("checkpoints", "list", location),
            "savepoints": answer("savepoint", "list", SCRATCH),
        }
    shutil.copytree(SCRATCH, target)
    (target / "said.json").write_text(json.dumps(said, indent=1) + "\n")


def answer(*words: str | Path) -> object:
    """Return what a command says as JSON."""
    with redirect_stdout(StringIO()) as printed:
        assert barrier([*map(str, words), "--output", "json"]) == 0
    return json.loads(printed.getvalue())


if __name__ == "__main__":
    main()
