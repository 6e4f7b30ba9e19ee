"""`supervise` in a session: restarts, rewinds, and stops at any step; no transaction is open after any of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector.operations.signals import StopRequest
from connector.operations.supervised_query import supervise
from integration.broker import Cluster
from integration.crash_matrix import POINTS, REPAIRS, nothing_is_open, provoke
from integration.driver_process import Faults, Place, wait_until
from integration.jobs import Job, start
from integration.live_query import LiveQuery
from integration.test_interval_crashes import finish, pile_up
from integration.test_rewind import barrier, lose_all
from integration.topic_jobs import interval_job, produce_keyed
from transactional.restart import FixedDelay, NoRestart, RestartStrategy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SECONDS = 180.0

QUICK = ("recovery.claimed", "task.written", "commit.one")
"""Points of `make test`: in planning, in a task, in the middle of a commit."""


class Supervised:
    """A job's query under `supervise`, in a thread of the test's own program."""

    def __init__(
        self, session: SparkSession, query: LiveQuery, strategy: RestartStrategy, timeout: float = 60.0
    ) -> None:
        self.place: Place = query.place
        self.wish = StopRequest()
        self.starts = 0
        self.error: BaseException | None = None
        self._job = query.job
        self._session = session
        self._over = threading.Event()
        self._strategy = strategy
        self._timeout = timeout
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def _start(self) -> StreamingQuery:
        self.starts += 1
        self._session.createDataFrame([], "value LONG")  # makes it the active session of this thread, as Spark wants it
        return start(self._session, self._job)

    def _supervise(self) -> None:
        try:
            supervise(self._start, self._strategy, stop_timeout=self._timeout, stop=self.wish)
        except BaseException as problem:  # noqa: BLE001 - handed to the test
            self.error = problem
        finally:
            self._over.set()

    def why_dead(self) -> str | None:
        """See `wait_until`."""
        return f"supervise has returned: {self.error!r}" if self._over.is_set() else None

    def end(self) -> BaseException | None:
        """Wait until it returns; what it raised."""
        assert self._over.wait(SECONDS), "supervise does not return"
        self._thread.join()
        return self.error


@contextmanager
def supervised(
    session: SparkSession, query: LiveQuery, strategy: RestartStrategy, timeout: float = 60.0
) -> Iterator[Supervised]:
    """As `Supervised`; stopped in the end."""
    found = Supervised(session, query, strategy, timeout)
    try:
        yield found
    finally:
        found.wish.ask()
        found.wish.ask()
        found.end()


def test_a_query_that_fails_by_plan_is_started_as_often_as_its_strategy_says(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    query = LiveQuery(spark, tmp_path)
    faults.arm("commit.looked", "raise", 3)
    with supervised(spark, query, FixedDelay(2, 0.1)) as run:
        error = run.end()
        assert error is not None
        assert "fault point commit.looked" in str(error)
        assert run.starts == 3
    restarts = query.place.ledger().restarts
    assert [(each.by, each.number, each.delay, each.rewound) for each in restarts] == [
        ("supervise", number, 0.1, False) for number in (1, 2)
    ]
    assert restarts[0].reason == "transactional.faults.InjectedFault: fault point commit.looked"
    shown = barrier("checkpoints", "show", str(query.place.location))
    assert "started again by supervise (number 2, after 0.1 s)" in shown.stdout
    with query:
        query.finish()


def test_a_query_that_came_back_writes_every_row_once_and_is_stopped_by_the_command(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    query = LiveQuery(spark, tmp_path)
    faults.arm("commit.one", "kill")
    with supervised(spark, query, FixedDelay(3, 0.1)) as run:
        wait_until(lambda: run.place.committed() >= 2, "the job's rows", alive=run.why_dead)
        stopped = barrier("stop", str(query.place.location))
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        assert run.end() is None
        assert run.starts == 2
    nothing_is_open(query.place)
    query.place.check_whole(query.expected)


def test_what_no_restart_fixes_ends_the_supervision(spark: SparkSession, tmp_path: Path) -> None:
    job = Job("", "", sink={"maxBatchesPerCheckpoint": "none"})
    with supervised(spark, LiveQuery(spark, tmp_path, job), FixedDelay(9, 0)) as run:
        assert "[INVALID_OPTION]" in str(run.end())
        assert run.starts == 1


def stop_at(spark: SparkSession, folder: Path, faults: Faults, point: str, times: int = 1) -> None:
    """Ask for a stop while the query stands still at a point; then let it go on."""
    query = LiveQuery(spark, folder)
    with query:
        if point in (*REPAIRS, "recovery.settling"):
            provoke(faults, point, 1)
            query.start()
            query.wait_failed()
            if point in REPAIRS:
                query.place.output.lose(query.place.output.open_transactions())
        elif point == "abort.journalled":
            provoke(faults, point, 1)
        faults.arm(point, "pause", times)
        with supervised(spark, query, FixedDelay(1, 0.1)) as run:
            wait_until(lambda: faults.fired(point), f"fault {point}", SECONDS, run.why_dead)
            run.wish.ask()
            if query.place.ledger().newest_run is not None and point not in ("recovery.claimed", "abort.journalled"):
                wait_until(lambda: query.place.ledger().stopping, "the request in the journal", SECONDS, run.why_dead)
            faults.clear()
            faults.resume(point)
            assert run.end() is None
        nothing_is_open(query.place)
        query.place.check_partial(query.expected)
        query.finish()


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=[] if point in QUICK else [pytest.mark.matrix]) for point in POINTS]
)
def test_a_stop_that_is_asked_for_at_any_step_leaves_nothing_open(
    spark: SparkSession, tmp_path: Path, faults: Faults, point: str
) -> None:
    stop_at(spark, tmp_path, faults, point)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(p, marks=[] if p == "task.written" else [pytest.mark.matrix])
        for p in ("task.begun", "task.written", "task.prepared")
    ],
)
def test_a_stop_that_is_forced_in_the_middle_of_tasks_leaves_nothing_open(
    spark: SparkSession, tmp_path: Path, faults: Faults, point: str
) -> None:
    """The tasks stand still, and go on only when Spark has killed them."""
    query = LiveQuery(spark, tmp_path)
    faults.arm(point, "pause", 2)
    with supervised(spark, query, NoRestart()) as run:
        wait_until(lambda: len(faults.fired(point)) == 2, "both tasks", SECONDS, run.why_dead)
        run.wish.ask()
        run.wish.ask()
        assert run.end() is None
    faults.resume(point)
    nothing_is_open(query.place)
    with query:
        query.finish()


def test_a_stop_between_two_lives_ends_what_the_first_has_left(
    spark: SparkSession, tmp_path: Path, faults: Faults
) -> None:
    query = LiveQuery(spark, tmp_path)
    faults.arm("decision.written", "raise")
    with supervised(spark, query, FixedDelay(1, 3600)) as run:
        wait_until(lambda: query.place.ledger().restarts, "the restart's reason", SECONDS, run.why_dead)
        assert query.place.ledger().unsettled()
        run.wish.ask()
        assert run.end() is None
        assert run.starts == 1
    nothing_is_open(query.place)
    with query:
        query.finish()


# -- Kafka --------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_query_whose_prepared_transactions_were_lost_goes_back_by_itself_and_is_stopped_while_it_is_idle(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path
) -> None:
    """The interval is five minutes: nobody waits for its end."""
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, batches=50)
    produce_keyed(kafka, f"{topic_name}-in", range(100))
    with LiveQuery(spark, tmp_path, job, output) as query:
        query.start()
        pile_up(query.place, 3)
        query.stop()
        lose_all(query.place)
        with supervised(spark, query, FixedDelay(2, 0.1)) as run:
            wait_until(
                lambda: query.place.ledger().restarts and len(query.place.ledger().undecided()) >= 9,
                "all rows prepared again",
                alive=run.why_dead,
            )
            [restart] = query.place.ledger().restarts
            assert (restart.condition, restart.rewound) == ("PREPARED_LOST", True)
            run.wish.ask()
            assert run.end() is None
        nothing_is_open(query.place)
        query.place.check_whole(100)
        reasons = [found.reason for found in query.place.ledger().checkpoints.values()]
        assert reasons[-1] == "STOP"
        finish(query, 100)


KAFKA_POINTS = (
    *("source.latest", "task.begun", "task.written", "task.prepared", "commit.called", "commit.looked"),
    *("journal.created", "prepared.written", "recovery.claimed", "recovery.swept"),
)


def stop_on_kafka_at(point: str, spark: SparkSession, query: LiveQuery, faults: Faults) -> None:
    """A supervised query is stopped at a fault point, then run to its end."""
    faults.arm(point, "pause")
    with supervised(spark, query, FixedDelay(1, 0.1)) as run:
        wait_until(lambda: faults.fired(point), f"fault {point}", SECONDS, run.why_dead)
        run.wish.ask()
        faults.resume(point)
        assert run.end() is None
    nothing_is_open(query.place)
    finish(query, 100)


@pytest.mark.matrix
@pytest.mark.parametrize("point", KAFKA_POINTS)
@pytest.mark.parametrize("interval", ["0", "5 min"])
def test_a_stop_on_kafka_leaves_no_transaction_of_the_prefix_open(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, faults: Faults, point: str, interval: str
) -> None:
    if point == "prepared.written" and interval == "0":
        pytest.skip("every micro-batch closes a checkpoint")
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, interval, batches=50)
    produce_keyed(kafka, f"{topic_name}-in", range(100))
    with LiveQuery(spark, tmp_path, job, output) as query:
        query.start(sink={**job.sink, "retainedCheckpoints": "50"})  # other settings: the next start claims a run
        wait_until(lambda: query.place.ledger().accounted >= 2, "some micro-batches")
        query.stop()
        stop_on_kafka_at(point, spark, query, faults)


@pytest.mark.matrix
@pytest.mark.parametrize("point", ["decision.written", "commit.one", "commit.done", "settled.written"])
def test_a_stop_in_the_commit_of_a_long_checkpoint_on_kafka_leaves_nothing_open(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, faults: Faults, point: str
) -> None:
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, "5 min", batches=4)
    produce_keyed(kafka, f"{topic_name}-in", range(100))
    with LiveQuery(spark, tmp_path, job, output) as query:
        stop_on_kafka_at(point, spark, query, faults)


@pytest.mark.matrix
def test_a_stop_in_the_middle_of_a_rewind_leaves_nothing_open(
    kafka: Cluster, spark: SparkSession, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rewind is at work in the test's own process: so are its fault points."""
    own = Faults(tmp_path / "own-faults")
    monkeypatch.setenv("BARRIER_FAULTS", str(own.folder))
    job, output = interval_job(kafka, topic_name, "2pc-kafka", tmp_path, batches=50)
    produce_keyed(kafka, f"{topic_name}-in", range(100))
    with LiveQuery(spark, tmp_path, job, output) as query:
        query.start()
        pile_up(query.place, 3)
        query.stop()
        query.place.output.lose(query.place.output.open_transactions()[:1])
        own.arm("rewind.begun", "pause")
        with supervised(spark, query, FixedDelay(2, 0.1)) as run:
            wait_until(lambda: own.fired("rewind.begun"), "the rewind", SECONDS, run.why_dead)
            run.wish.ask()
            own.resume("rewind.begun")
            assert run.end() is None
        nothing_is_open(query.place)
        finish(query, 100)
