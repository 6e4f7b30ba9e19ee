"""A first start, and a start from each state of the files in which a kill would have ended it.

``python -m integration.first_start FOLDER MOST``, under `integration/file_calls.c`, which copies FOLDER/root before each call
that changes a file there. One session runs a query once, puts back at most MOST of the distinct copies, with a dead process in
the record of the start, and starts the query from each. A line a state: its files, an error or nothing, and the rows.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

import connector
from integration.file_sink import FileSink, committed_rows

__all__ = ["main"]

UNIQUE = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{16,}|~\d+$")


def main(arguments: Sequence[str]) -> int:
    """Run it."""
    folder, most = Path(arguments[0]), int(arguments[1])
    root, states = folder / "root", folder / "states"
    root.mkdir()
    (folder / "input").mkdir()
    (folder / "input" / "a.txt").write_text("1\n2\n3\n")
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = session.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    connector.register(spark, FileSink)
    states.mkdir()
    print(json.dumps(_run(spark, folder)), flush=True)
    states.rename(folder / "recorded")  # ends the recording
    found = _distinct(folder / "recorded")
    early = [state for state in found if not (state / "location" / "offsets" / "0").exists()]
    torn = [state for state in early if list((state / "location" / "offsets").glob(".*.tmp"))]
    for state in [*torn, *(state for state in found if state not in torn)][:most]:
        shutil.rmtree(root)
        shutil.copytree(state, root)
        for record in (root / "location" / "barrier" / "starts").glob("*.json"):
            if record.stat().st_size:
                process = json.loads(record.read_text())
                record.write_text(json.dumps({**process, "started": process["started"] - 1}))
        print(json.dumps([sorted(_shape(state)), *_run(spark, folder)]), flush=True)
    spark.stop()
    return 0


def _run(spark: SparkSession, folder: Path) -> tuple[str, list[str]]:
    """Run the query over all rows; return its error, and the rows that were committed."""
    rows = spark.readStream.format("text").load(str(folder / "input"))
    writer = rows.writeStream.format(FileSink.name()).option("path", str(folder / "root" / "output"))
    try:
        query = (
            writer.option("checkpointLocation", str(folder / "root" / "location")).trigger(availableNow=True).start()
        )
        query.awaitTermination()
    except Exception as problem:  # noqa: BLE001 - the test judges
        return str(problem)[:2000], []
    return "", sorted(str(row["value"]) for row in committed_rows(folder / "root" / "output"))


def _distinct(recorded: Path) -> list[Path]:
    """Return one copy of each state, with names that differ in ids only taken for one; in the order of the calls."""
    found: dict[tuple[str, ...], Path] = {}
    for state in sorted(recorded.iterdir(), key=lambda path: path.stat().st_ctime_ns):
        found.setdefault(tuple(sorted(_shape(state))), state)
    return list(found.values())


def _shape(state: Path) -> set[str]:
    return {
        f"{UNIQUE.sub('*', str(path.relative_to(state)))} {path.stat().st_size if path.is_file() else '/'}"
        for path in state.rglob("*")
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
