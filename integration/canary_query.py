"""A driver whose sink got a secret in every option of an object store: ``python -m integration.canary_query FOLDER``.

It writes a stream and a batch to Delta tables with Spark's UI, event log and the log of all that knows options at its most
talkative, keeps what the UI says in ``FOLDER/ui``, and prints plans and progress.
"""

from __future__ import annotations

import json
import logging
import sys
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from integration.jobs import Job, build_session
from integration.told_query import log_all

__all__ = ["main"]

PAGES = (
    "/api/v1/applications/{app}/sql?details=true&planDescription=true&length=100",
    "/api/v1/applications/{app}/environment",
    "/api/v1/applications/{app}/jobs",
    "/api/v1/applications/{app}/stages?details=true",
    "/StreamingQuery/",
    "/SQL/",
    "/SQL/execution/?id=0",
    "/SQL/execution/?id=1",
    "/SQL/execution/?id=2",
    "/environment/",
)


def main(folder: Path) -> int:
    """Run with the options of ``job.json``."""
    options: dict[str, str] = json.loads((folder / "job.json").read_text())
    (folder / "job.json").unlink()  # it holds the secrets
    (folder / "events").mkdir(exist_ok=True)
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    # PySpark's own wire between a user's program and its JVM: whoever turns this log on reads what they write.
    logging.getLogger("py4j").setLevel(logging.INFO)
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
    }
    session = build_session(Job(str(folder / "checkpoint"), "", conf=conf))
    for name in ("execution.streaming", "execution.python", "execution.datasources", "catalyst"):
        log_all(session, f"org.apache.spark.sql.{name}")
    _run(session, folder, options)
    _keep_pages(session, folder / "ui")
    session.stop()
    return 0


def _run(session: SparkSession, folder: Path, options: dict[str, str]) -> None:
    rows: Any = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    writer = rows.writeStream.format("2pc-delta").options(**options).option("path", str(folder / "table"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(True)
    print("PROGRESS", [progress.json for progress in query.recentProgress], flush=True)
    batch: Any = session.range(3).write.format("2pc-delta").mode("append").options(**options)
    more = {"path": str(folder / "table-2"), "checkpointLocation": str(folder / "batch"), "txnAppId": "a"}
    batch.options(**more).option("txnVersion", "1").save()


def _keep_pages(session: SparkSession, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number, page in enumerate(PAGES):
        url = f"{session.sparkContext.uiWebUrl}{page.format(app=session.sparkContext.applicationId)}"
        with urllib.request.urlopen(url) as answer:
            (folder / str(number)).write_bytes(answer.read())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
