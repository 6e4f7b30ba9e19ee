"""A sink under ``writeStream``, in the order in which Spark calls it: planning, tasks, commit or abort. No JVM."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from connector.location.location import CheckpointLocation
from connector.spark import internals
from connector.spark.host import HostedStreamWriter, data_source_for
from connector.spark.hosted_sink import HostedSink, TaskMessage
from transactional.capabilities import WarmsUp
from transactional.checkpoint import Mode
from transactional.errors import (
    FencedError,
    JournalError,
    LocationError,
    OptionError,
    ProtocolError,
    RetriableError,
    TwoPhaseCommitError,
)
from transactional.ledger import Ledger
from transactional.sink import Options, TransactionContext
from transactional.testing import FailingSink, MemoryTransactions

SCHEMA = StructType([StructField("value", LongType())])
QUERY = "6f4e5c5c-1111-4222-8333-444455556666"


class SharedSink(WarmsUp, FailingSink):
    """Sinks of one test share a store, and fail as the test says."""

    shared = MemoryTransactions()
    planted: dict[str, list[Exception]] = {}
    log: list[str] = []

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema, self.shared)
        self.failures = self.planted

    def close(self) -> None:
        self.log.append("close")

    def warmUp(self, context: TransactionContext) -> None:
        pass

    def _called(self, method: str, numbers: list[int]) -> None:
        self.log.append(method)
        super()._called(method, numbers)


class Spark:
    """A checkpoint location, and Spark's calls: in what a test says are the planning worker, tasks and the commit worker."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.path, self.patch = path, patch
        self.options = {"checkpointlocation": str(path), "transactionalIdPrefix": "q"}
        for log in ("offsets", "commits"):
            (path / log).mkdir(parents=True)
        (path / "metadata").write_text(json.dumps({"id": QUERY}))
        patch.setattr(SharedSink, "shared", MemoryTransactions())
        patch.setattr(SharedSink, "planted", {})
        patch.setattr(SharedSink, "log", [])
        self.drive("first driver")

    def drive(self, driver: str) -> None:
        """From here on it is this driver."""
        self.patch.setattr(internals, "driver_identity", lambda: driver)

    def in_task(self, batch: int, partition: int = 0, attempt: int = 0, query: str = QUERY) -> None:
        """From here on this task runs."""
        self.patch.setattr(internals, "task_batch", lambda: (query, batch, partition, attempt))

    def offsets(self, batch: int) -> None:
        """Spark's own: written before the planning."""
        (self.path / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"end":{batch}}}')

    def commits(self, batch: int) -> None:
        (self.path / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def writer(self) -> HostedStreamWriter:
        """As the commit worker makes it: with nothing planned."""
        return HostedStreamWriter(HostedSink(SharedSink, Options(self.options), SCHEMA))

    def planned(self, batch: int, overwrite: bool = False) -> HostedStreamWriter:
        """As the planning worker makes it, and as it travels to the executors."""
        self.offsets(batch)
        writer = self.writer()
        writer.prepare(overwrite)
        found: HostedStreamWriter = pickle.loads(pickle.dumps(writer))
        return found

    def task(
        self, writer: HostedStreamWriter, batch: int, partition: int, *values: int, attempt: int = 0
    ) -> TaskMessage:
        """One task of a micro-batch."""
        self.in_task(batch, partition, attempt)
        message = writer.write(batches(*values))
        assert isinstance(message, TaskMessage)
        found: TaskMessage = pickle.loads(pickle.dumps(message))
        return found

    def micro_batch(self, batch: int, *parts: tuple[int, ...]) -> None:
        """A whole one, as it goes well."""
        writer = self.planned(batch)
        messages = [self.task(writer, batch, number, *values) for number, values in enumerate(parts)]
        self.writer().commit(messages, batch)
        self.commits(batch)

    def rows(self) -> list[int]:
        return [row["value"] for row in SharedSink.shared.rows()]

    def ledger(self) -> Ledger:
        return CheckpointLocation(str(self.path)).journal().load()


def batches(*values: int) -> Iterator[pa.RecordBatch]:
    """A task's Arrow batches: one row each, and empty ones between them, as Spark may send them."""
    for value in values:
        yield pa.record_batch({"value": pa.array([], pa.int64())})
        yield pa.record_batch({"value": pa.array([value], pa.int64())})


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(tmp_path / "place", monkeypatch)


def test_micro_batches_are_visible_once_each_is_committed(spark: Spark) -> None:
    writer = spark.planned(0)
    messages = [spark.task(writer, 0, 0, 1, 2), spark.task(writer, 0, 1, 3)]
    assert spark.rows() == [], "prepared is not visible"
    spark.writer().commit(messages, 0)
    assert spark.rows() == [1, 2, 3]
    spark.commits(0)
    spark.micro_batch(1, (4,))
    assert spark.rows() == [1, 2, 3, 4]
    assert [list(checkpoint.batches) for checkpoint in spark.ledger().checkpoints.values()] == [[0], [1]]


def test_every_sink_that_is_built_is_closed(spark: Spark) -> None:
    spark.micro_batch(0, (1,))
    assert SharedSink.log.count("close") >= 3, "planning, task, commit"
    SharedSink.log.clear()
    SharedSink.planted["write"] = [ValueError("planted")]
    writer = spark.planned(1)
    with pytest.raises(ValueError, match="planted"):
        spark.task(writer, 1, 0, 5)
    assert SharedSink.log[-2:] == ["rollback", "close"]


def test_spaces_around_the_prefix_do_not_belong_to_it(spark: Spark) -> None:
    spark.options["transactionalIdPrefix"] = " q "
    spark.planned(0)
    [run] = spark.ledger().runs.values()
    assert run.prefix == "q"


def test_a_task_without_rows_opens_nothing_and_still_acknowledges(spark: Spark) -> None:
    writer = spark.planned(0)
    message = spark.task(writer, 0, 0)
    assert (message.acknowledgement.parts[0].handle, message.acknowledgement.parts[0].rows) == (None, 0)
    spark.in_task(0, 1)
    other = writer.write(iter([pa.record_batch({"value": pa.array([], pa.int64())})]))
    assert SharedSink.shared.numbers() == []
    spark.writer().commit([message, other], 0)
    assert spark.ledger().checkpoints


@pytest.fixture
def warm(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set by a warm-up; what a test plants for it is raised after that."""
    event = threading.Event()

    def warmUp(self: SharedSink, context: TransactionContext) -> None:
        self.log.append(f"warmUp {context.partitionId}")
        event.set()
        for failure in self.planted.pop("warmUp", ()):
            raise failure

    monkeypatch.setattr(SharedSink, "warmUp", warmUp)
    return event


def test_a_task_that_had_rows_in_two_micro_batches_is_warmed_up_while_it_waits_for_its_first_one(
    spark: Spark, warm: threading.Event
) -> None:
    for batch, parts in enumerate([((1,), (), (2,)), ((3,), (4,), ())]):
        spark.micro_batch(batch, *parts)
    assert not warm.is_set()
    writer = spark.planned(2)

    def waiting() -> Iterator[pa.RecordBatch]:
        assert warm.wait(30)
        assert SharedSink.log[-1] == "warmUp 0"
        yield from batches(5)

    spark.in_task(2, 0)
    messages = [writer.write(waiting()), spark.task(writer, 2, 1), spark.task(writer, 2, 2, 6)]
    assert [called for called in SharedSink.log if "warmUp" in called] == ["warmUp 0"]
    spark.writer().commit(messages, 2)
    assert spark.rows() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("fails", [False, True])
def test_a_warm_up_for_no_row_leaves_nothing_and_its_failure_is_not_the_task_s(
    spark: Spark, warm: threading.Event, fails: bool
) -> None:
    spark.micro_batch(0, (1,))
    spark.micro_batch(1, (2,))
    writer = spark.planned(2)
    SharedSink.planted["warmUp"] = [RuntimeError("planted")] if fails else []
    message = spark.task(writer, 2, 0)
    assert warm.is_set()
    assert (message.acknowledgement.parts[0].handle, message.acknowledgement.parts[0].rows) == (None, 0)
    assert SharedSink.log[-2:] == ["warmUp 0", "close"]
    spark.writer().commit([message], 2)
    assert spark.rows() == [1, 2]


def test_rows_that_fail_during_a_warm_up_fail_the_task(spark: Spark, warm: threading.Event) -> None:
    spark.micro_batch(0, (1,))
    spark.micro_batch(1, (2,))
    writer = spark.planned(2)
    SharedSink.planted["warmUp"] = [RuntimeError("not this one")]
    spark.in_task(2, 0)
    with pytest.raises(ValueError, match="planted"):
        writer.write(map(_refuse, batches(1)))
    assert SharedSink.log[-2:] == ["warmUp 0", "close"]


def _refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("planted")


def test_each_task_s_transaction_says_whose_it_is(spark: Spark) -> None:
    writer = spark.planned(0)
    spark.task(writer, 0, 3, 1, attempt=77)
    [number] = SharedSink.shared.numbers()
    context = SharedSink.shared.context(number)
    assert (context.queryId, context.batchId, context.partitionId, context.taskAttemptId) == (QUERY, 0, 3, 77)
    assert context.prefix == "q"
    assert len(context.nonce) == 16
    assert context.run == max(spark.ledger().runs)


@pytest.mark.parametrize("wrong", ["batch", "query", "unplanned"])
def test_a_task_with_the_plan_of_another_micro_batch_writes_nothing(spark: Spark, wrong: str) -> None:
    writer = spark.planned(0)
    spark.in_task(1 if wrong == "batch" else 0, query="another" if wrong == "query" else QUERY)
    with pytest.raises(ProtocolError, match="CONCURRENT_COMMIT"):
        (spark.writer() if wrong == "unplanned" else writer).write(batches(1))
    assert SharedSink.shared.numbers() == []


@pytest.mark.parametrize("step", ["beginTransaction", "write", "preCommit"])
def test_a_task_that_fails_rolls_back_what_it_began_and_its_retry_counts(spark: Spark, step: str) -> None:
    writer = spark.planned(0)
    SharedSink.planted[step] = [RetriableError("WRITE_FAILED", "planted")]
    with pytest.raises(RetriableError, match="planted"):
        spark.task(writer, 0, 0, 1)
    assert ("rollback" in SharedSink.log) == (step != "beginTransaction")
    assert SharedSink.shared.unfinished() == []
    spark.writer().commit([spark.task(writer, 0, 0, 1, attempt=1)], 0)
    assert spark.rows() == [1]


def test_the_rows_of_a_loser_of_speculation_are_swept(spark: Spark) -> None:
    writer = spark.planned(0)
    spark.task(writer, 0, 0, 1, attempt=8)
    spark.writer().commit([spark.task(writer, 0, 0, 1, attempt=9)], 0)
    assert spark.rows() == [1]
    assert SharedSink.shared.unfinished() == []


def test_an_abort_gives_the_micro_batch_up_and_it_is_written_again(spark: Spark) -> None:
    writer = spark.planned(0)
    messages = [spark.task(writer, 0, 0, 1), None]
    spark.writer().abort(messages, 0)
    assert SharedSink.shared.unfinished() == []
    assert spark.rows() == []
    with pytest.raises(TwoPhaseCommitError):
        spark.writer().commit(messages, 0)
    spark.drive("second driver")
    spark.micro_batch(0, (1,), (2,))
    assert spark.rows() == [1, 2]


def test_a_commit_that_lacks_a_task_s_acknowledgement_decides_nothing(spark: Spark) -> None:
    writer = spark.planned(0)
    with pytest.raises(ProtocolError, match="PROTOCOL_VIOLATED"):
        spark.writer().commit([spark.task(writer, 0, 0, 1), None], 0)
    assert spark.rows() == []
    assert not spark.ledger().checkpoints


def test_an_abort_behind_the_decision_takes_nothing_back(spark: Spark) -> None:
    writer = spark.planned(0)
    messages = [spark.task(writer, 0, 0, 1)]
    spark.writer().commit(messages, 0)
    spark.writer().abort(messages, 0)
    assert spark.rows() == [1]


def test_a_decided_micro_batch_that_spark_replays_is_drained(spark: Spark) -> None:
    writer = spark.planned(0)
    spark.writer().commit([spark.task(writer, 0, 0, 1, 2)], 0)
    spark.drive("second driver")  # the first died before commits/0
    again = spark.planned(0)
    SharedSink.log.clear()
    message = spark.task(again, 0, 0, 1, 2)
    assert message.acknowledgement.drained
    assert (message.acknowledgement.parts[0].rows, message.acknowledgement.parts[0].handle) == (2, None)
    assert SharedSink.log == ["close"], "nothing is written, and nothing asked, for rows that are there"
    spark.writer().commit([message], 0)
    assert spark.rows() == [1, 2]


def decide_and_lose_the_second(spark: Spark, messages: Sequence[TaskMessage]) -> None:
    """Decide a checkpoint of two parts, of which the first is committed and the second lost."""
    first, second = SharedSink.shared.numbers()
    SharedSink.planted["commit"] = [RetriableError("WRITE_FAILED", "planted")] * 50
    with pytest.raises(TwoPhaseCommitError):
        spark.writer().commit(messages, 0)
    SharedSink.planted.clear()
    SharedSink.shared.commit(first)
    SharedSink.shared.expire(second)


def test_a_lost_part_of_a_decided_checkpoint_is_written_again_and_compared(spark: Spark) -> None:
    writer = spark.planned(0)
    messages = [spark.task(writer, 0, 0, 1, 2), spark.task(writer, 0, 1, 3)]
    decide_and_lose_the_second(spark, messages)
    spark.drive("second driver")
    again = spark.planned(0)
    assert again._plan is not None
    assert again._plan.mode is Mode.REPAIR
    assert spark.task(again, 0, 0, 1, 2).acknowledgement.drained
    with pytest.raises(TwoPhaseCommitError, match="REPLAY_DIFFERS"):
        spark.task(again, 0, 1, 4)
    with pytest.raises(TwoPhaseCommitError, match="REPLAY_DIFFERS"):
        spark.task(again, 0, 2, 3)
    spark.writer().commit([spark.task(again, 0, 0, 1, 2), spark.task(again, 0, 1, 3)], 0)
    assert sorted(spark.rows()) == [1, 2, 3]


def texts(*values: str) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"value": list(values)})])


def recorded_by(message: TaskMessage, digest: str) -> None:
    """Let a task's rows have this digest."""
    part = replace(message.acknowledgement.parts[0], digest=digest)
    message.acknowledgement = replace(message.acknowledgement, parts=[part])


def test_a_digest_of_an_encoding_that_this_release_does_not_know_is_refused_as_such(spark: Spark) -> None:
    """A newer release has decided the checkpoint, and committed a part of it."""
    writer = spark.planned(0)
    messages = [spark.task(writer, 0, number, number) for number in (0, 1)]
    for message in messages:
        recorded_by(message, "3:0000000000000007")
    with spark.patch.context() as newer:
        newer.setattr("transactional.recovery.rows.ENCODING_VERSION", 3)
        newer.setattr("transactional.digest.ENCODING_VERSION", 3)
        decide_and_lose_the_second(spark, messages)
    spark.drive("second driver")
    again = spark.planned(0)
    with pytest.raises(JournalError, match=r"FORMAT_UNKNOWN.*micro-batch 0.*encoding 3.*encoding 2.*later"):
        spark.writer().commit([spark.task(again, 0, number, number) for number in (0, 1)], 0)
    assert spark.rows() == [0]


def test_tasks_of_two_releases_are_refused_before_anything_is_decided(spark: Spark) -> None:
    writer = spark.planned(0)
    messages = [spark.task(writer, 0, number, number) for number in (0, 1)]
    recorded_by(messages[1], "1:0000000000000007")
    with pytest.raises(ProtocolError, match="different releases of this package"):
        spark.writer().commit(messages, 0)
    assert 0 not in spark.ledger().batches
    recorded_by(messages[1], "1:0000000000000000")  # of no rows: every release says the same
    spark.writer().commit(messages, 0)
    assert sorted(spark.rows()) == [0, 1]


def test_a_driver_that_was_followed_by_another_commits_nothing(spark: Spark) -> None:
    writer = spark.planned(0)
    messages = [spark.task(writer, 0, 0, 1)]
    spark.drive("second driver")
    spark.planned(0)
    spark.drive("first driver")
    with pytest.raises(FencedError):
        spark.writer().commit(messages, 0)
    assert spark.rows() == []


def test_what_can_not_work_is_refused_at_the_planning(spark: Spark) -> None:
    with pytest.raises(OptionError, match=r"OUTPUT_MODE.*complete"):
        spark.planned(0, overwrite=True)
    spark.options["txnVersion"] = "3"
    with pytest.raises(OptionError, match="FORBIDDEN_OPTION"):
        spark.planned(0)
    assert not spark.ledger().position


def test_a_micro_batch_of_sources_with_names_needs_to_know_which_of_them_the_query_has(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'v2\n{"batchWatermarkMs":0}\nalpha:{"end":0}\nbeta:7'
    monkeypatch.setattr(spark, "offsets", lambda batch: (spark.path / "offsets" / str(batch)).write_text(text))
    with pytest.raises(OptionError, match=r"SPARK_OFFSETS_UNKNOWN.*register\(spark\) before start\(\)"):
        spark.planned(0)
    spark.options["startedSources"] = '["alpha"]'
    with pytest.raises(LocationError, match=r"SOURCE_REMOVED.*beta.*barrier stop"):
        spark.planned(0)
    assert not spark.ledger().position
    spark.options["startedSources"] = '["alpha", "beta", "gamma"]'
    spark.micro_batch(0, (1, 2))
    assert spark.rows() == [1, 2]


@pytest.mark.parametrize("phase", list(internals.Phase))
def test_only_the_planning_worker_s_call_recovers(spark: Spark, phase: internals.Phase) -> None:
    spark.offsets(0)
    spark.patch.setattr(internals, "phase", lambda: phase)
    source: Any = data_source_for(SharedSink)
    writer = source(spark.options).streamWriter(SCHEMA, False)
    assert source.name() == "2pc-recording"
    assert (writer._plan is not None) == (phase is internals.Phase.PLANNING)
    assert bool(spark.ledger().position) == (phase is internals.Phase.PLANNING)


def test_errors_quote_no_secret_of_the_options(spark: Spark) -> None:
    spark.options["sink.password"] = "hunter22"
    writer = spark.planned(0)
    SharedSink.planted["write"] = [RetriableError("WRITE_FAILED", "the store refused hunter22")]
    with pytest.raises(RetriableError) as caught:
        spark.task(writer, 0, 0, 1)
    assert "hunter22" not in str(caught.value)
