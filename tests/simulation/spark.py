"""Spark as a query meets it: planning, tasks, attempts, speculation, and its logs, around the real host of the sink."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from connector.spark.host import HostedStreamWriter
from connector.spark.hosted_sink import STARTED_AFTER, HostedSink
from tests.simulation.auditor import KEYS
from tests.simulation.processes import Process
from transactional.errors import LocationError
from transactional.sink import Options

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["LOCATION", "QUERY", "Query", "SparkFailed"]

LOCATION = "/simulated/query"
QUERY = "00000000-0000-0000-0000-00000000000a"
SPARK_KEEPS = 10  # micro-batches; more than maxBatchesPerCheckpoint
ATTEMPTS = 3  # of a task
SCHEMA = StructType().add("value", "string")


class SparkFailed(RuntimeError):
    """Spark ends the query for a reason of its own."""


def offset(start: int, end: int, barrier: Mapping[str, Any]) -> dict[str, Any]:
    """Return an end of a micro-batch as the source writes it: rows before it, and the last barrier at or before it."""
    positions = {"start": {"t": {"0": start}}, "topics": {"t": {"0": end}}}
    return {"barrier": barrier, "interval": 1000, "source": "barrier-kafka", **positions}


@cache
def arrow_batch(rows: tuple[int, ...]) -> pa.RecordBatch:
    """Return rows as a task gets them."""
    return pa.RecordBatch.from_pydict({"value": pa.array(map(str, rows), pa.string())})


class Query:
    """One streaming query: what Spark does for it in any driver."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.read = 0
        """Rows that any micro-batch has planned to read."""
        self.last = False
        """Whether what is planned from here on is the end of the input."""

    def drive(self, driver: str) -> None:
        """Run the query in a driver, until it fails or has come to its end."""
        files = self._world.files
        started = str(self._sink().position())
        while True:
            offsets, commits = self._newest("offsets"), self._newest("commits")
            batch = offsets if offsets > commits else offsets + 1
            if batch > offsets:
                if batch > 0 and self.last and self._is_end(batch - 1):
                    return
                line = json.dumps(self._plan_end(batch), sort_keys=True)
                if not files.create(f"offsets/{batch}", f"v1\n{{}}\n{line}\n".encode()):
                    raise SparkFailed("concurrent update to the log")
            self._micro_batch(driver, batch, started)
            files.create(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}\n')
            for log in ("offsets", "commits"):
                files.delete([f"{log}/{batch - SPARK_KEEPS}"])

    def end_of(self, batch: int, place: str) -> int:
        """Return how many rows there are up to the end of a micro-batch, as a location has it."""
        text = self._world.disk[place][f"offsets/{batch}"].decode()
        end: int = json.loads(text.splitlines()[2])["topics"]["t"]["0"]
        return end

    def _newest(self, log: str) -> int:
        return max((int(name) for name in self._world.files.names(log) if name.isdigit()), default=-1)

    def _line(self, batch: int) -> dict[str, Any]:
        try:
            text = self._world.files.read(f"offsets/{batch}").decode()
        except FileNotFoundError:
            raise SparkFailed(f"batch {batch} does not exist") from None
        found: dict[str, Any] = json.loads(text.splitlines()[2])
        return found

    def _is_end(self, batch: int) -> bool:
        end, before = self._line(batch), self._line(batch - 1) if batch else None
        if end["topics"]["t"]["0"] < self.read or end.get("planned") or end["barrier"]["kind"] != "final":
            return False
        return before is None or before["barrier"] != end["barrier"]

    def _plan_end(self, batch: int) -> dict[str, Any]:
        """Return the source's answer to `latestOffset`."""
        world = self._world
        before = self._line(batch - 1) if batch else offset(0, 0, {"number": 0})
        if before.get("planned"):
            end, *rest = before["planned"]
            world.see("planned end")
            return {**end, **({"planned": rest} if rest else {})}
        begin = before["topics"]["t"]["0"]
        if self.last:
            kind, rows = "final", max(self.read - begin, 1)
        else:
            kind = world.choices.one_of(("checkpoint", "none", "none", "no data", "none", "checkpoint", "final"))
            rows = 0 if kind == "no data" else world.choices.below(4) + (kind == "none")
        barrier = before["barrier"]
        if kind in ("checkpoint", "final") or not batch:
            name = kind if kind == "final" else "checkpoint"
            barrier = {"kind": name, "number": barrier["number"] + 1, "timestamp": int(world.time * 1000)}
        self.read = max(self.read, begin + rows)
        return offset(begin, begin + rows, barrier)

    # -- a micro-batch ------------------------------------------------------------------------------------------------

    def writer(self, started: str) -> HostedStreamWriter:
        """As Spark makes it anew for every call."""
        return HostedStreamWriter(self._sink(started))

    def _sink(self, started: str = "") -> HostedSink:
        options = Options({**self._world.options, "checkpointLocation": self._world.here, STARTED_AFTER: started})
        return HostedSink(self._world.sink, options, SCHEMA)

    def _micro_batch(self, driver: str, batch: int, started: str) -> None:
        line, before = self._line(batch), self._line(batch - 1) if batch else offset(0, 0, {"number": 0})
        if line["start"] != before["topics"] and (line["topics"], line["barrier"]) != (
            before["topics"],
            before["barrier"],
        ):
            reason = f"micro-batch {batch} does not begin where the one before it ended"
            raise LocationError("OFFSETS_DISAGREE", reason=reason, partitions=["t-0"])
        rows = range(before["topics"]["t"]["0"], line["topics"]["t"]["0"])
        planned = self.writer(started)
        self._call(driver, f"plan {batch}", lambda: planned.prepare(False))
        messages: list[Any] = [None] * KEYS
        try:
            self._run_tasks(driver, batch, planned, rows, messages)
            self._call(driver, f"commit {batch}", lambda: self.writer(started).commit(messages, batch))
        except Exception:
            try:
                self._call(driver, f"abort {batch}", lambda: self.writer(started).abort(messages, batch))
            except Exception as second:  # noqa: BLE001 - judged
                self._world.auditor.stopped(f"abort of {driver}", second)
            raise

    def _call(self, driver: str, what: str, act: Callable[[], Any]) -> Any:
        """Do something in a Python worker of the driver, which lives on if the driver dies."""
        head = self._world.scheduler.current
        assert head is not None
        worker = self._world.spawn(f"{driver} {what}", act, driver)
        if head.journal is not None and self._world.choices.below(2) == 0:
            worker.journal = head.journal  # Spark uses the worker again
        head.journal = None
        self._world.wait_until(lambda: worker.over)
        head.journal = None if worker.dead else worker.journal
        if worker.error is not None:
            raise worker.error
        if worker.dead:
            raise SparkFailed("the Python worker died")
        return worker.result

    def _run_tasks(
        self, driver: str, batch: int, planned: HostedStreamWriter, rows: range, messages: list[Any]
    ) -> None:
        """Run a task for each key; of some two attempts at once: the one that is done first counts."""
        running = {key: [self._attempt(driver, batch, planned, rows, key, 0)] for key in range(KEYS)}
        for key, attempts in running.items():
            if self._world.weights["speculation"] and self._world.choices.below(8) == 7:
                attempts.append(self._attempt(driver, batch, planned, rows, key, 1))
        for key, attempts in running.items():
            while messages[key] is None:
                self._world.wait_until(partial(_is_decided, attempts))
                done = [attempt for attempt in attempts if _is_done(attempt)]
                if done:
                    messages[key] = done[0].result
                elif len(attempts) < ATTEMPTS:
                    attempts.append(self._attempt(driver, batch, planned, rows, key, len(attempts)))
                else:
                    raise attempts[-1].error or SparkFailed("a task failed for the third time")

    def _attempt(
        self, driver: str, batch: int, planned: HostedStreamWriter, rows: range, key: int, number: int
    ) -> Process:
        own = tuple(row for row in rows if row % KEYS == key)

        def batches() -> Iterator[pa.RecordBatch]:
            half = len(own) // 2
            for part in (own[:half], own[half:]):
                if part:
                    yield arrow_batch(part)

        task = self._world.spawn(f"{driver} task {batch}.{key}.{number}", lambda: planned.write(batches()), driver)
        task.task = (self._world.query_id(), batch, key, number)
        return task


def _is_done(attempt: Process) -> bool:
    return attempt.over and not attempt.dead and attempt.error is None


def _is_decided(attempts: Sequence[Process]) -> bool:
    return attempts[-1].over or any(map(_is_done, attempts))
