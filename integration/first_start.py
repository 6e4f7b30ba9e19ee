"""A first start, and a start from each state of the files in which a kill would have ended it.

``python -m integration.first_start FOLDER URL``. One session runs a query with state once, and what a kill would leave is
copied before each call that changes a file or an object. Then it puts back each distinct copy, with a dead process in the
record of the start, and starts the query from it. It prints a line a state: its files, an error or nothing, and the rows.

URL is the checkpoint location: in FOLDER/root, where `integration/file_calls.c` copies FOLDER/root, or in the S3 of the
environment, before whose endpoint a proxy is put that copies the location's objects, and FOLDER/root too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import connector
from connector.spark import first_start
from integration.file_sink import FileSink, committed_rows
from integration.jars import resolve_s3a
from integration.object_store import BUCKET, AnswerProxy

__all__ = ["main"]

UNIQUE = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{16,}|~\d+$")

Files = dict[str, bytes]
"""Names below the root, or below the location's URL, with what they hold."""


def main(arguments: Sequence[str]) -> int:
    """Run it."""
    folder, url = Path(arguments[0]), arguments[1]
    (folder / "root").mkdir()
    (folder / "input").mkdir()
    (folder / "input" / "a.txt").write_text("1\n2\n3\n2\n")
    store = Remote(folder, url) if "://" in url else Local(folder)
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = session.config("spark.sql.shuffle.partitions", "1")
    with store.recording() as proxy:
        for key, value in store.settings(proxy).items():
            session = session.config(key, value)
        spark = session.getOrCreate()
        connector.register(spark, FileSink)
        store.begin()
        print(json.dumps(_run(spark, folder, url)), flush=True)
        for state in _distinct(store.end()):
            store.put_back(dict(_of_a_dead_process(name, data) for name, data in state.items()))
            print(json.dumps([sorted(_shape(state)), *_run(spark, folder, url)]), flush=True)
        spark.stop()
    return 0


class Local:
    """A location in FOLDER/root: the process runs under `integration/file_calls.c`."""

    def __init__(self, folder: Path) -> None:
        self._root, self._states = folder / "root", folder / "states"

    def recording(self) -> AbstractContextManager[Any]:
        """Open what records."""
        return nullcontext()

    def settings(self, _: Any) -> dict[str, str]:
        """Spark's."""
        return {}

    def begin(self) -> None:
        """Record from now on."""
        self._states.mkdir()

    def end(self) -> list[Files]:
        """End the recording; return the copies in the order of the calls."""
        recorded = self._states.rename(self._states.with_name("recorded"))
        folders = sorted(recorded.iterdir(), key=lambda path: path.stat().st_ctime_ns)
        return [_read(each) for each in folders]

    def put_back(self, state: Files) -> None:
        """Replace all files."""
        shutil.rmtree(self._root)
        _write(self._root, state)


class Remote:
    """A location in S3, with the output in FOLDER/root."""

    def __init__(self, folder: Path, url: str) -> None:
        import boto3  # type: ignore[import-untyped]

        self._root, self._states = folder / "root", list[Files]()
        self._prefix = url.removeprefix(f"s3a://{BUCKET}/") + "/"
        self._endpoint, self._records = os.environ["AWS_ENDPOINT_URL"], False
        self._bucket = boto3.resource("s3", endpoint_url=self._endpoint).Bucket(BUCKET)

    def recording(self) -> AbstractContextManager[AnswerProxy]:
        """Put a proxy before the store, for Spark and for this project's own client."""
        proxy = AnswerProxy(self._endpoint, self._record)
        os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        return proxy

    def settings(self, proxy: AnswerProxy) -> dict[str, str]:
        """Spark's."""
        return {
            "spark.jars": ",".join(map(str, resolve_s3a())),
            "spark.hadoop.fs.s3a.endpoint": proxy.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }

    def begin(self) -> None:
        """Record from now on."""
        self._records = True

    def end(self) -> list[Files]:
        """End the recording; return the copies in the order of the requests."""
        self._records = False
        return self._states

    def put_back(self, state: Files) -> None:
        """Replace all objects below the URL, and all files."""
        shutil.rmtree(self._root)
        _write(self._root, {name: data for name, data in state.items() if not name.startswith("location/")})
        self._bucket.objects.filter(Prefix=self._prefix).delete()
        for name, data in state.items():
            if name.startswith("location/"):
                self._bucket.put_object(Key=self._prefix + name.removeprefix("location/"), Body=data)

    def _record(self) -> None:
        if self._records:
            self._states.append(self._copy())

    def _copy(self) -> Files:
        listed = self._bucket.objects.filter(Prefix=self._prefix)
        objects = {f"location/{each.key.removeprefix(self._prefix)}": each.get()["Body"].read() for each in listed}
        return {**_read(self._root), **objects}


def _run(spark: SparkSession, folder: Path, url: str) -> tuple[str, list[str]]:
    """Run the query over all rows; return its error, and the rows that were committed."""
    rows = spark.readStream.format("text").load(str(folder / "input")).dropDuplicates()
    writer = rows.writeStream.format(FileSink.name()).option("path", str(folder / "root" / "output"))
    try:
        query = writer.option("checkpointLocation", url).trigger(availableNow=True).start()
        query.awaitTermination()
    except Exception as problem:  # noqa: BLE001 - the test judges
        return str(problem)[:2000], []
    return "", sorted(str(row["value"]) for row in committed_rows(folder / "root" / "output"))


def _of_a_dead_process(name: str, data: bytes) -> tuple[str, bytes]:
    """Return a record of a start as a dead process wrote it, under the name that goes with it; or any other file."""
    if not re.search(r"^location/barrier/starts/[^/]*\.json$", name) or not data:
        return name, data
    process = json.loads(data)
    dead = json.dumps({**process, "started": process["started"] - 1}, sort_keys=True).encode()
    return f"location/{first_start.record_name(dead)}", dead


def _read(root: Path) -> Files:
    return {
        str(path.relative_to(root)) + ("/" if path.is_dir() else ""): b"" if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
    }


def _write(root: Path, files: Files) -> None:
    root.mkdir()
    for name, data in sorted(files.items()):
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _distinct(recorded: Iterable[Files]) -> list[Files]:
    """Return one copy of each state, with names that differ in ids only taken for one; in the order of the calls."""
    found: dict[tuple[str, ...], Files] = {}
    for state in recorded:
        found.setdefault(tuple(sorted(_shape(state))), state)
    return list(found.values())


def _shape(state: Files) -> set[str]:
    return {
        f"{UNIQUE.sub('*', name.removesuffix('/'))} {'/' if name.endswith('/') else len(data)}"
        for name, data in state.items()
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
