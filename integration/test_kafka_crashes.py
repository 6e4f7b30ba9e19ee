"""Crashes around real Kafka transactions: the real host, coordinator, journal and sink, without Spark.

`integration.engine` makes Spark's calls. Every case ends the same way: a plain ``read_committed`` consumer finds every
row once; another one, which read all the time, saw no row that is not there in the end, and none twice; no transaction
of ours is open; and each partition's last stable offset is its high watermark. That a late duplicate of an EndTxn can
cross over where nobody prevents it is shown by the control in `integration.test_kafka_sink`
(``test_a_late_duplicate_commits_the_next_transaction_only_below_version_5``).
"""

from __future__ import annotations

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
from typing import Any

import pytest
from confluent_kafka import Producer

from connector.cli import main
from connector.kafka.sink.handles import KafkaHandle
from integration.broker import Cluster
from integration.driver_process import wait_until
from integration.engine import Engine, MortalSink, command
from integration.engine_query import KafkaQuery
from integration.proxy import END_TXN
from transactional import faults
from transactional.entry import EntryKind
from transactional.errors import AmbiguousOutcomeError, FencedError, RetriableError
from transactional.sink import Outcome

ABORT_SCAN = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
SHORT: dict[str, Any] = {"kafka.transaction.timeout.ms": "5000"}
"""A transaction's timeout that a test can wait for, and that a micro-batch on a busy machine can do with."""


MakeQuery = Callable[..., KafkaQuery]


@pytest.fixture
def make_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeQuery]:
    """Make a query with a topic of its own on a cluster."""
    made: list[KafkaQuery] = []
    monkeypatch.setenv(faults.VARIABLE, str(tmp_path / "faults"))

    def make(cluster: Cluster, **changes: Any) -> KafkaQuery:
        made.append(KafkaQuery(cluster, tmp_path, **changes))
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


@pytest.mark.parametrize("committed", [pytest.param(k, marks=[] if k == 2 else pytest.mark.matrix) for k in (1, 2, 3)])
def test_a_death_after_k_of_n_commits_is_gone_on_with(kafka: Cluster, make_query: MakeQuery, committed: int) -> None:
    query = make_query(kafka)
    query.faults.arm("commit.one", "pause", committed - 1)
    query.faults.resume("commit.one")
    query.die("commit.one")
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
    query.check()
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
    query.die("decision.written", **SHORT)
    assert query.wait_expired(query.known()) == [Outcome.LOST] * 3
    query.finish()
    assert EntryKind.VOID in query.place.kinds()
    assert EntryKind.REPAIR not in query.place.kinds()


@pytest.mark.slow
def test_repair_writes_exactly_what_expired_where_some_were_committed(kafka: Cluster, make_query: MakeQuery) -> None:
    query = make_query(kafka)
    query.die("commit.one", **SHORT)
    handles = query.known()
    assert query.wait_expired(handles) == [Outcome.COMMITTED, Outcome.LOST, Outcome.LOST]
    query.finish()
    assert query.repaired() == [1, 2]
    # A read_uncommitted consumer sees what was lost a second time, and nothing else.
    lost = [value for writer in (1, 2) for value in query.work.values(0, writer)]
    assert query.output.all_rows() == Counter(range(query.work.expected)) + Counter(lost)


@pytest.mark.matrix
def test_nothing_is_written_again_where_all_were_committed(kafka: Cluster, make_query: MakeQuery) -> None:
    query = make_query(kafka)
    query.die("commit.done", **SHORT)
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
    query.die("commit.called", **SHORT)
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
        query.engine(wait, **SHORT).run()
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


def initialise_all(query: KafkaQuery, cluster: Cluster, handles: Sequence[KafkaHandle], commit: bool) -> None:
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
    assert query.repaired() == [1]


def test_the_second_query_with_a_prefix_stops_the_first(kafka: Cluster, make_query: MakeQuery) -> None:
    first = make_query(kafka)
    second = make_query(kafka, prefix=first.prefix)
    running = first.engine()
    running.run(1)
    second.engine().run()
    with pytest.raises(FencedError, match="PREFIX_TAKEN") as taken:
        running.run()
    assert first.prefix in str(taken.value)
    second.check()
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
    query.check()


# -- topics ---------------------------------------------------------------------------------------------------------


def resolve(query: KafkaQuery, part: str, decision: str) -> int:
    """What an operator does whom an error tells to; returns the command's status."""
    (checkpoint,) = query.place.ledger().unsettled()
    chosen = ["--checkpoint", str(checkpoint.id), "--part", part, "--as", decision]
    return main(["resolve", query.work.location, *chosen, "--yes"])


def accept_loss(query: KafkaQuery, stopped: AmbiguousOutcomeError) -> None:
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
    query.close()
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
