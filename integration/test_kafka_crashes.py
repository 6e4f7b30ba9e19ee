"""Crashes around real Kafka transactions: the real host, coordinator, journal and sink, without Spark.

`integration.engine` makes Spark's calls. Every case ends the same way: a plain ``read_committed`` consumer finds every
row once; another one, which read all the time, saw no row that is not there in the end, and none twice; no transaction
of ours is open; and each partition's last stable offset is its high watermark. That a late duplicate of an EndTxn can
cross over where nobody prevents it is shown by the control in `integration.test_kafka_sink`
(``test_a_late_duplicate_commits_the_next_transaction_only_below_version_5``).
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from connector.cli import main
from connector.kafka.sink.handles import KafkaHandle
from connector.kafka.sink.kafka_sink import KafkaSink
from integration.broker import Cluster
from integration.driver_process import Faults, Place, wait_until
from integration.engine import SCHEMA, Engine, MortalSink, Work, command
from integration.proxy import END_TXN
from integration.topic_output import COMMITTED, LiveReader, TopicOutput
from transactional import faults
from transactional.entry import EntryKind
from transactional.errors import AmbiguousOutcomeError, FencedError, LocationError, RetriableError
from transactional.faults import InjectedFault
from transactional.sink import Options, Outcome

ABORT_SCAN = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
SHORT_MS = "5000"
"""A transaction's timeout that a test can wait for, and that a micro-batch on a busy machine can do with."""


class Query:
    """One query: its work, its place, an armed folder of faults, and a consumer that reads all the time."""

    def __init__(
        self, cluster: Cluster, folder: Path, topic: str, prefix: str, partitions: int, **changes: Any
    ) -> None:
        servers = changes.pop("servers", cluster.bootstrap_servers)
        location = folder / f"location-{topic}"
        self.prefix = prefix
        options = {"kafka.bootstrap.servers": servers, "topic": topic, "transactionalIdPrefix": prefix}
        self.work = Work(str(location), options, partitions=partitions, **changes)
        self.output = TopicOutput(cluster.bootstrap_servers, topic, prefix)
        self.place = Place(location, self.output)
        self.faults = Faults(folder / "faults")
        self.reader: LiveReader | None = LiveReader(self.output)

    def engine(self, prepared: Callable[[int], None] = lambda batch: None, timeout_ms: str = "") -> Engine:
        """A new driver, perhaps with another timeout of its transactions."""
        more = {"kafka.transaction.timeout.ms": timeout_ms} if timeout_ms else {}
        return Engine(replace(self.work, options={**self.work.options, **more}), prepared)

    def die(self, *points: str, error: bool = False, passes: int = 0, timeout_ms: str = "") -> None:
        """Live until the points have fired; the first is passed by `passes` times before."""
        if passes:
            self.faults.arm(points[0], "pause", passes)
            self.faults.resume(points[0])
        for point in points:
            self.faults.arm(point, "raise")
        with pytest.raises(InjectedFault):
            self.engine(timeout_ms=timeout_ms).run(error=error)
        assert self.faults.armed() == []
        self.place.check_partial(self.work.expected)

    def finish(self, engine: Engine | None = None) -> None:
        """Run a driver to the end of the work and check everything."""
        (engine or self.engine()).run()
        self.check(self.work.expected)

    def accept(self) -> None:
        """Start it where another query has had its prefix, which an older copy would look like; then accept the location."""
        with pytest.raises(LocationError, match=r"LOCATION_PUT_BACK.*another query used this prefix"):
            self.engine().run()
        assert main(["restore", "--as-is", str(self.place.location), "--claim", "--yes"]) == 0

    def check(self, expected: int) -> None:
        """Exactly these rows are there, once, and nothing of ours is left at the broker."""
        self.place.check_whole(expected)
        if self.reader is not None:
            assert self.reader.finish(self.output.ends(COMMITTED)) == Counter(range(expected))

    def check_nothing_lost(self) -> None:
        """No decided transaction had to be written again: a repair would hide that one was aborted by mistake."""
        assert not {EntryKind.REPAIR, EntryKind.VOID, EntryKind.VERDICT} & set(self.place.kinds())

    def known(self) -> list[KafkaHandle]:
        """Handles of prepared and decided transactions that are not settled."""
        return cast("list[KafkaHandle]", self.place.ledger().known_handles())

    def sink(self) -> KafkaSink:
        """The bare sink, for who looks at transactions or meddles with them."""
        return KafkaSink(Options(self.work.options), SCHEMA)

    def outcomes(self, handles: Sequence[KafkaHandle]) -> list[Outcome]:
        """What the broker says of them."""
        sink = self.sink()
        try:
            return [state.outcome for state in sink.inspect(handles)]
        finally:
            sink.close()

    def lose(self) -> None:
        """What is decided and not committed gets lost, as by a stale run's sweep that paused after it had listed."""
        sink = self.sink()
        try:
            sink.abort(self.known())
        finally:
            sink.close()

    def wait_expired(self, handles: Sequence[KafkaHandle]) -> list[Outcome]:
        """Wait until the broker has given up what is still open of these; returns how all of them ended."""
        wait_until(lambda: Outcome.PREPARED not in self.outcomes(handles), "transactions expire")
        return self.outcomes(handles)

    def forget_reader(self) -> None:
        """Go on without the consumer that read all the time: what it has read may be gone."""
        self.close()
        self.reader = None

    def close(self) -> None:
        """End the reader."""
        if self.reader is not None:
            self.reader.close()


MakeQuery = Callable[..., Query]


@pytest.fixture
def make_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeQuery]:
    """Make a query with a topic of its own on a cluster."""
    made: list[Query] = []
    monkeypatch.setenv(faults.VARIABLE, str(tmp_path / "faults"))

    def make(cluster: Cluster, partitions: int = 4, prefix: str | None = None, **changes: Any) -> Query:
        topic = f"crashes-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(topic, partitions=partitions)
        made.append(Query(cluster, tmp_path, topic, prefix or f"q-{topic}", partitions, **changes))
        return made[-1]

    yield make
    for query in made:
        query.close()
    MortalSink.bury()


@pytest.fixture(scope="module")
def proxied() -> Iterator[Cluster]:
    with Cluster(proxy=True, properties=ABORT_SCAN) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mortal() -> Iterator[Cluster]:
    """A cluster that tests kill."""
    with Cluster(properties=ABORT_SCAN) as cluster:
        yield cluster


# -- the matrix -----------------------------------------------------------------------------------------------------

POINTS = [point for point in faults.POINTS if point not in ("journal.created", "source.latest")]


def die_at(query: Query, point: str, error: bool) -> None:
    """Die at the point, by the shortest way to it."""
    if point == "abort.journalled":
        if any(part.lost for batch in query.place.ledger().batches.values() for part in batch.parts):
            query.engine().run(1)  # a repair is of a decided micro-batch, which no abort touches
        query.die("task.written", point, error=True)
        return
    if point == "recovery.settling":
        query.die("decision.written")
    if point.startswith("repair."):
        query.die("commit.one")
        query.lose()
    query.die(point, error=error)


@pytest.mark.parametrize(("number", "point"), list(enumerate(POINTS)), ids=POINTS)
def test_every_row_is_there_once_wherever_the_driver_dies(
    kafka: Cluster, make_query: MakeQuery, number: int, point: str
) -> None:
    """Partitions and ways to fail take turns; all of them together are in the matrix."""
    query = make_query(kafka, partitions=4 if number % 2 else 1)
    die_at(query, point, error=bool(number // 2 % 2))
    query.finish()
    if not point.startswith("repair."):
        query.check_nothing_lost()


@pytest.mark.matrix
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("error", [False, True], ids=["death", "error"])
@pytest.mark.parametrize("point", POINTS)
def test_every_row_is_there_once_after_one_and_two_deaths_at_every_point(
    kafka: Cluster, make_query: MakeQuery, point: str, error: bool, times: int, partitions: int
) -> None:
    query = make_query(kafka, partitions=partitions)
    for _ in range(times):
        die_at(query, point, error)
    query.finish()
    if not point.startswith("repair."):
        query.check_nothing_lost()


@pytest.mark.matrix
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize(
    ("first", "then", "error"),
    [(first, then, bool(number % 2)) for number, (first, then) in enumerate(itertools.permutations(POINTS, 2))],
)
def test_every_row_is_there_once_after_deaths_at_any_two_points(
    kafka: Cluster, make_query: MakeQuery, first: str, then: str, error: bool, partitions: int
) -> None:
    query = make_query(kafka, partitions=partitions)
    die_at(query, first, error)
    die_at(query, then, not error)
    query.finish()
    if not (first + then).count("repair."):
        query.check_nothing_lost()


@pytest.mark.parametrize("committed", [pytest.param(k, marks=[] if k == 2 else pytest.mark.matrix) for k in (1, 2, 3)])
def test_a_death_after_k_of_n_commits_is_gone_on_with(kafka: Cluster, make_query: MakeQuery, committed: int) -> None:
    query = make_query(kafka)
    query.die("commit.one", passes=committed - 1)
    assert Outcome.COMMITTED in query.outcomes(query.known())
    query.finish()
    query.check_nothing_lost()


# -- brokers that die -----------------------------------------------------------------------------------------------


def test_a_broker_killed_while_prepared_transactions_are_undecided(mortal: Cluster, make_query: MakeQuery) -> None:
    query = make_query(mortal)

    def kill(batch: int) -> None:
        if batch == 0:
            mortal.kill()
            mortal.start()

    query.finish(query.engine(prepared=kill))
    query.check_nothing_lost()


def test_a_broker_killed_while_decided_transactions_are_not_committed(mortal: Cluster, make_query: MakeQuery) -> None:
    """The driver lives: its commit waits for the broker."""
    query = make_query(mortal)
    query.faults.arm("decision.written", "pause")
    with ThreadPoolExecutor(2) as pool:
        life = pool.submit(query.engine().run)
        wait_until(lambda: query.faults.fired("decision.written") or life.done(), "the decision")
        mortal.kill()
        broker = pool.submit(mortal.start)
        query.faults.resume("decision.written")
        broker.result()
        life.result()
    query.check(query.work.expected)
    query.check_nothing_lost()


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("commit.called", marks=pytest.mark.matrix),
        pytest.param("decision.written", marks=pytest.mark.matrix),
        "commit.one",
    ],
)
def test_broker_and_driver_killed_together(mortal: Cluster, make_query: MakeQuery, point: str) -> None:
    query = make_query(mortal)
    query.die(point)
    mortal.kill()
    mortal.start()
    query.finish()
    query.check_nothing_lost()


# -- transactions that expire ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_decided_transactions_that_all_expired_are_written_anew(kafka: Cluster, make_query: MakeQuery) -> None:
    query = make_query(kafka)
    query.die("decision.written", timeout_ms=SHORT_MS)
    assert query.wait_expired(query.known()) == [Outcome.LOST] * 3
    query.finish()
    assert EntryKind.VOID in query.place.kinds()
    assert EntryKind.REPAIR not in query.place.kinds()


@pytest.mark.slow
def test_repair_writes_exactly_what_expired_where_some_were_committed(kafka: Cluster, make_query: MakeQuery) -> None:
    query = make_query(kafka)
    query.die("commit.one", timeout_ms=SHORT_MS)
    handles = query.known()
    assert query.wait_expired(handles) == [Outcome.COMMITTED, Outcome.LOST, Outcome.LOST]
    query.finish()
    repairs = [entry for entry in query.place.entries() if entry.kind == EntryKind.REPAIR]
    assert [part["partition"] for entry in repairs for part in entry.body["parts"]] == [1, 2]
    # A read_uncommitted consumer sees what was lost a second time, and nothing else.
    lost = [value for writer in (1, 2) for value in query.work.values(0, writer)]
    assert query.output.all_rows() == Counter(range(query.work.expected)) + Counter(lost)


@pytest.mark.matrix
def test_nothing_is_written_again_where_all_were_committed(kafka: Cluster, make_query: MakeQuery) -> None:
    query = make_query(kafka)
    query.die("commit.done", timeout_ms=SHORT_MS)
    handles = query.known()
    assert query.outcomes(handles) == [Outcome.COMMITTED] * 3
    over = max(handle["preparedAt"] + handle["timeoutMs"] for handle in handles) / 1000
    wait_until(lambda: time.time() > over, "the timeouts are over")
    query.finish()
    assert query.output.all_rows() == Counter(range(query.work.expected))
    query.check_nothing_lost()


@pytest.mark.slow
def test_undecided_transactions_that_expired_while_the_driver_was_down_are_written_anew(
    kafka: Cluster, make_query: MakeQuery
) -> None:
    query = make_query(kafka)
    query.die("commit.called", timeout_ms=SHORT_MS)
    wait_until(lambda: not query.output.open_transactions(), "transactions expire")
    assert query.place.ledger().batches == {}
    query.finish()


@pytest.mark.slow
def test_a_micro_batch_whose_transactions_expired_before_its_commit_is_not_decided(
    kafka: Cluster, make_query: MakeQuery
) -> None:
    query = make_query(kafka)

    def wait(batch: int) -> None:
        wait_until(lambda: not query.output.open_transactions(), "transactions expire")

    with pytest.raises(RetriableError, match="HANDLE_NOT_ALIVE"):
        query.engine(prepared=wait, timeout_ms=SHORT_MS).run()
    assert EntryKind.DECIDED not in query.place.kinds()
    query.finish()


# -- the network ----------------------------------------------------------------------------------------------------


def through(cluster: Cluster) -> Mapping[str, str]:
    return {"servers": cluster.proxy.bootstrap_servers}


def test_commits_whose_answers_are_lost_are_made_once(proxied: Cluster, make_query: MakeQuery) -> None:
    query = make_query(proxied, **through(proxied))
    lost = proxied.proxy.lose_answer(END_TXN, times=3)
    query.finish()
    assert lost.hits == 3
    query.check_nothing_lost()


def test_commits_that_are_sent_again_during_the_next_micro_batch_change_nothing(
    proxied: Cluster, make_query: MakeQuery
) -> None:
    query = make_query(proxied, **through(proxied))
    duplicates = proxied.proxy.repeat_late(END_TXN, times=3)
    query.engine().run(1)
    assert duplicates.hits == 3

    def send_again(batch: int) -> None:
        before = query.output.open_transactions()
        assert before  # the same transactional ids: the new driver's attempts start at 0 too
        duplicates.release()
        duplicates.wait_until_sent(3)
        assert query.output.open_transactions() == before
        query.place.check_partial(query.work.rows)

    query.finish(query.engine(prepared=send_again))
    query.check_nothing_lost()


def test_a_commit_that_arrives_during_the_next_micro_batch_changes_nothing(
    proxied: Cluster, make_query: MakeQuery
) -> None:
    """Its driver was killed while it waited for the answer; the next one committed in its place."""
    query = make_query(proxied, **through(proxied))
    late = proxied.proxy.delay_request(END_TXN)
    root = str(Path(__file__).parent.parent)
    driver = subprocess.Popen(
        command(query.work),
        cwd=root,
        env={**os.environ, "SPARK_LOCAL_DIRS": "unused"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: late.hits, "the first commit", alive=lambda: None if driver.poll() is None else "it ended")
    finally:
        driver.kill()
        _, problem = driver.communicate()
    assert driver.returncode == -signal.SIGKILL, problem
    query.engine().run(1)

    def arrive(batch: int) -> None:
        before = query.output.open_transactions()
        assert before
        late.release()
        late.wait_until_sent()
        query.place.check_partial(query.work.rows)
        assert query.output.open_transactions() == before

    query.finish(query.engine(prepared=arrive))
    query.check_nothing_lost()


# -- strangers ------------------------------------------------------------------------------------------------------


def initialise_all(query: Query, cluster: Cluster, handles: Sequence[KafkaHandle], commit: bool) -> None:
    """A stranger initialises the ids, and ends a transaction of its own with each, in another topic."""
    elsewhere = f"strange-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(elsewhere)
    for handle in handles:
        stranger = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": handle["transactionalId"]}
        )
        stranger.init_transactions(30)
        stranger.begin_transaction()
        stranger.produce(elsewhere, b"strange")
        if commit:
            stranger.commit_transaction(30)
        else:
            stranger.abort_transaction(30)


def test_ids_that_a_stranger_initialised_after_their_commit_are_settled(kafka: Cluster, make_query: MakeQuery) -> None:
    query = make_query(kafka)
    query.die("commit.done")
    initialise_all(query, kafka, query.known(), commit=False)
    query.finish()
    query.check_nothing_lost()
    assert query.output.all_rows() == Counter(range(query.work.expected))


def test_ids_that_a_stranger_initialised_before_their_commit_are_written_anew(
    kafka: Cluster, make_query: MakeQuery
) -> None:
    query = make_query(kafka)
    query.die("decision.written")
    initialise_all(query, kafka, query.known(), commit=True)
    query.accept()  # a stranger's commit under our ids can't be told from one of ours that an older copy does not know
    query.finish()
    assert EntryKind.VOID in query.place.kinds()


def test_an_id_that_a_stranger_initialised_in_the_middle_of_the_commits_is_repaired(
    kafka: Cluster, make_query: MakeQuery
) -> None:
    query = make_query(kafka)
    query.die("commit.one")
    initialise_all(query, kafka, query.known()[1:2], commit=True)
    query.accept()  # a stranger's commit under our ids can't be told from one of ours that an older copy does not know
    query.finish()
    repairs = [entry for entry in query.place.entries() if entry.kind == EntryKind.REPAIR]
    assert [part["partition"] for entry in repairs for part in entry.body["parts"]] == [1]


def test_the_second_query_with_a_prefix_stops_the_first(kafka: Cluster, make_query: MakeQuery) -> None:
    first = make_query(kafka)
    second = make_query(kafka, prefix=first.prefix)
    running = first.engine()
    running.run(1)
    second.engine().run()
    with pytest.raises(FencedError, match="PREFIX_TAKEN") as taken:
        running.run()
    assert first.prefix in str(taken.value)
    second.check(second.work.expected)
    first.accept()  # started again, when the other is gone
    first.finish()


@pytest.mark.parametrize(
    "point", [pytest.param("commit.called", marks=pytest.mark.matrix), "decision.written", "commit.one"]
)
def test_another_query_with_the_prefix_that_sweeps_our_transactions_loses_no_row(
    kafka: Cluster, make_query: MakeQuery, point: str
) -> None:
    first = make_query(kafka)
    second = make_query(kafka, prefix=first.prefix)
    first.die(point)
    second.finish()
    first.accept()
    first.finish()


def test_what_was_prepared_under_a_former_prefix_holds_no_reader_back(kafka: Cluster, make_query: MakeQuery) -> None:
    """So it is where Spark's ``metadata`` was made anew: the prefix is the query's id by default."""
    query = make_query(kafka)
    query.die("commit.called")
    renamed = replace(query.work, options={**query.work.options, "transactionalIdPrefix": f"{query.prefix}-renamed"})
    Engine(renamed).run()
    assert query.output.open_transactions() == []
    query.check(query.work.expected)


# -- topics ---------------------------------------------------------------------------------------------------------


def resolve(query: Query, part: str, decision: str) -> int:
    """What an operator does whom an error tells to; returns the command's status."""
    (checkpoint,) = query.place.ledger().unsettled()
    chosen = ["--checkpoint", str(checkpoint.id), "--part", part, "--as", decision]
    return main(["resolve", query.work.location, *chosen, "--yes"])


def accept_loss(query: Query, stopped: AmbiguousOutcomeError) -> None:
    """Accept the loss of the part that an error names."""
    part = f"{stopped.parameters['batch']}/{stopped.parameters['partition']}"
    assert resolve(query, part, "accept-loss") == 0


@pytest.mark.parametrize("point", ["decision.written", "commit.done"])
@pytest.mark.parametrize("decision", ["accept-loss", "accept-duplicates"])
def test_nothing_is_resolved_by_decision_that_the_brokers_show(
    kafka: Cluster, make_query: MakeQuery, capsys: pytest.CaptureFixture[str], point: str, decision: str
) -> None:
    """Alive or committed: a start settles it; a decision would lose the rows, or double them."""
    query = make_query(kafka)
    query.die(point)
    assert resolve(query, "0/0", decision) == 1
    shown = "committed" if point == "commit.done" else "prepared"
    assert f"the store shows that the transaction is {shown}" in capsys.readouterr().err
    assert EntryKind.RESOLVE not in query.place.kinds()
    query.finish()


def test_an_output_topic_that_was_created_again_after_the_decision_stops_the_query_with_the_way_out(
    kafka: Cluster, make_query: MakeQuery
) -> None:
    query = make_query(kafka)
    query.die("decision.written")
    topic = query.output.topic
    query.forget_reader()
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=query.work.partitions)
    named: list[int] = []
    for handle in query.known():
        with pytest.raises(AmbiguousOutcomeError, match="OUTCOME_UNKNOWN") as stopped:
            query.engine().run()
        assert topic in str(stopped.value)
        assert "barrier resolve" in str(stopped.value)
        assert stopped.value.parameters["handle"] == handle
        assert not query.output.rows()
        named.append(stopped.value.parameters["partition"])
        accept_loss(query, stopped.value)
    assert named == [0, 1, 2]
    query.engine().run()
    wait_until(query.output.is_quiet, "no open transaction, no reader held back")
    # Micro-batch 0 was accepted as lost; what follows is there once.
    assert query.output.rows() == Counter(range(query.work.rows, query.work.expected))
    assert query.place.ledger().unsettled() == []
