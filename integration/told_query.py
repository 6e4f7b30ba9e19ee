"""A driver that says everything it can: ``python -m integration.told_query FOLDER`` with a job in ``FOLDER/job.json``.

It copies a topic with the log of all that knows options at its most talkative, prints plans, progress and errors of a
query that works and of some that can't, and exits. What it was told in confidence must be in none of it.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from integration.jobs import Job, build_session

__all__ = ["log_all", "main"]


def main(folder: Path) -> int:
    """Run the queries of ``job.json``: ``source`` and ``sink`` options of one that works, and ``wrong``: changes to them."""
    told = json.loads((folder / "job.json").read_text())
    (folder / "job.json").unlink()  # it holds the secrets
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    # PySpark's own wire between a user's program and its JVM: whoever turns this log on reads what they write.
    logging.getLogger("py4j").setLevel(logging.INFO)
    session = build_session(Job(str(folder / "checkpoint"), ""))
    for name in ("execution.streaming", "execution.python", "execution.datasources", "catalyst"):
        log_all(session, f"org.apache.spark.sql.{name}")
    _run(session, folder / "checkpoint", told["source"], told["sink"])
    for number, (side, change) in enumerate(told["wrong"]):
        options = {"source": told["source"], "sink": told["sink"]}
        options[side] = {**options[side], **change}
        try:
            _run(session, folder / f"wrong-{number}", options["source"], options["sink"])
        except Exception as problem:  # noqa: BLE001 - whatever it is, users see it.
            print(f"REFUSED {number}: {problem!s} {problem!r}", flush=True)
    session.stop()
    return 0


def log_all(session: SparkSession, name: str) -> None:
    """Let a part of Spark log all that it can."""
    log4j: Any = session.sparkContext._jvm
    log4j.org.apache.logging.log4j.core.config.Configurator.setLevel(name, log4j.org.apache.logging.log4j.Level.DEBUG)


def _run(session: SparkSession, location: Path, source: dict[str, str], sink: dict[str, str]) -> None:
    rows: Any = session.readStream.format("barrier-kafka").options(**source).load().select("key", "value")
    rows.explain(True)
    writer = rows.writeStream.format("2pc-kafka").options(**sink).option("checkpointLocation", str(location))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(True)
    print("PROGRESS", [progress.json for progress in query.recentProgress], flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
