"""The sink's calls, on executors and on the driver, with producers and a cluster that do as they are told."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from connector.kafka.client.protocol import EXACTLY_ONCE
from connector.kafka.client.topics import short_id
from connector.kafka.sink.kafka_sink import KafkaSink, KafkaTransaction
from connector.kafka.sink.transaction import ABANDONED_AT_MOST, FRESH_SECONDS
from tests.connector.kafka.sink.fake_producer import FakeProducer
from tests.connector.kafka.sink.fake_sink_cluster import FakeCluster
from transactional.checkpoint import DecidedCheckpoint
from transactional.errors import (
    FencedError,
    LocationError,
    OptionError,
    ProtocolError,
    RetriableError,
    RowRefusedError,
    StoreError,
)
from transactional.failure import Remedy, failure_of
from transactional.history import History
from transactional.sink import Cutoff, Options, TransactionContext

SCHEMA = pa.schema([("value", pa.string())])
CHECKPOINT = DecidedCheckpoint(1, [0], 0)
OVER = Cutoff("query", 9, 0)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return FakeCluster("out").plug_in(monkeypatch)


def sink(**options: str) -> KafkaSink:
    given = {"kafka.bootstrap.servers": "b:9092", "topic": "out", "transactionalIdPrefix": "q", **options}
    return KafkaSink(Options(given), SCHEMA)


def context(attempt: int = 5, partition: int = 2) -> TransactionContext:
    return TransactionContext("query", 0, partition, attempt, "q", "nonce")


def rows(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"value": list(values)}, schema=SCHEMA)


def begun(cluster: FakeCluster, **options: str) -> tuple[KafkaSink, KafkaTransaction]:
    """A sink's transaction whose rows were taken by two partitions."""
    made = sink(**options)
    transaction = made.beginTransaction(context())
    parts = [("out", 0), ("out", 1)]
    cluster.state(transaction.name, "Ongoing", epoch=transaction.producer_epoch, parts=parts)
    return made, transaction


# -- a task -------------------------------------------------------------------------------------------------------------


def test_a_task_opens_a_transaction_under_its_id_and_learns_its_epoch(cluster: FakeCluster) -> None:
    cluster.state("q.2.5", "CompleteCommit", epoch=8)
    transaction = sink().beginTransaction(context())
    [producer] = cluster.producers
    assert transaction.name == producer.settings["transactional.id"] == "q.2.5"
    assert (transaction.producer_id, transaction.producer_epoch) == (7, 9)
    assert producer.calls[-2:] == ["init", "begin"]
    assert producer.settings["transaction.timeout.ms"] == producer.settings["message.timeout.ms"] == 900_000
    assert producer.settings["delivery.report.only.error"] is True
    assert producer.settings["max.in.flight.requests.per.connection"] == "2"


def test_an_id_with_an_open_transaction_is_left_alone(cluster: FakeCluster) -> None:
    for number in (5, 6):
        cluster.state(f"q.2.{number}", "Ongoing")
    assert sink().beginTransaction(context()).name not in {"q.2.5", "q.2.6"}


def test_a_warm_up_changes_nothing_at_the_brokers_and_its_producer_is_the_one_that_begins(cluster: FakeCluster) -> None:
    cluster.state("q.2.5", "CompleteCommit", epoch=8)
    made = sink()
    made.warmUp(context())
    [producer] = cluster.producers
    assert "init" not in producer.calls
    assert cluster.states["q.2.5"].state == "CompleteCommit"
    transaction = made.beginTransaction(context())
    assert (transaction.name, transaction.producer_epoch) == ("q.2.5", 9)
    assert cluster.producers == [producer]
    assert producer.calls[-2:] == ["init", "begin"]


def test_an_id_that_another_task_has_taken_since_the_warm_up_is_left_alone(cluster: FakeCluster) -> None:
    made = sink()
    made.warmUp(context())
    cluster.clock.advance(2 * FRESH_SECONDS)
    cluster.state("q.2.5", "Ongoing", epoch=3)
    transaction = made.beginTransaction(context())
    first, second = cluster.producers
    assert transaction.name == second.settings["transactional.id"] != "q.2.5"
    assert "init" not in first.calls
    assert cluster.states["q.2.5"].producer_epoch == 3
    assert cluster.open_admins == 1


def test_brokers_that_do_not_answer_the_connections_of_the_warm_up_are_connected_again(cluster: FakeCluster) -> None:
    made = sink()
    made.warmUp(context())

    def fail() -> None:
        raise RetriableError("KAFKA_TIMEOUT", reason="planted")

    cluster.clock.advance(2 * FRESH_SECONDS)
    cluster.then[cluster.described + 1] = fail
    assert made.beginTransaction(context()).name == "q.2.5"
    assert len(cluster.producers) == 2
    assert cluster.open_admins == 1


def test_a_warm_up_for_no_row_leaves_no_connection(cluster: FakeCluster) -> None:
    made = sink()
    made.warmUp(context())
    made.close()
    assert cluster.open_admins == 0
    assert cluster.states == {}
    assert "init" not in cluster.producers[0].calls


def test_a_warm_up_that_fails_leaves_the_begin_to_find_out(cluster: FakeCluster) -> None:
    def fail() -> None:
        assert cluster.limit is not None
        raise RetriableError("KAFKA_TIMEOUT", reason="planted")

    cluster.then[1] = fail
    made = sink()
    with pytest.raises(RetriableError, match="planted"):
        made.warmUp(context())
    assert cluster.open_admins == 0
    assert made.beginTransaction(context()).name == "q.2.5"


@pytest.mark.parametrize(("asked", "lifetime"), [("120000", 120.0), ("2147483647", None), (None, 300.0)])
def test_prepared_transactions_live_as_long_as_the_timeout(
    cluster: FakeCluster, asked: str | None, lifetime: float | None
) -> None:
    cluster.longest = 2**31 - 1 if asked else 300_000
    assert sink(**({} if asked is None else {"kafka.transaction.timeout.ms": asked})).lifetime() == lifetime


@pytest.mark.parametrize("asked", ["120000", None])
def test_the_timeout_is_the_user_s_or_what_the_brokers_allow(cluster: FakeCluster, asked: str | None) -> None:
    cluster.longest = 300_000
    options = {} if asked is None else {"kafka.transaction.timeout.ms": asked}
    assert sink(**options).beginTransaction(context()).timeout_ms == int(asked or 300_000)


@pytest.mark.parametrize(
    ("name", "condition", "kind"),
    [
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "MISSING_RIGHT", StoreError),
        ("_TIMED_OUT", "WRITE_FAILED", RetriableError),
        ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", RetriableError),
    ],
)
def test_a_transaction_that_can_not_be_opened_leaves_no_connection(
    cluster: FakeCluster, name: str, condition: str, kind: type[Exception]
) -> None:
    cluster.next_producer = FakeProducer()
    cluster.next_producer.fails = [name]
    with pytest.raises(kind, match=condition):
        sink().beginTransaction(context())
    assert cluster.open_admins == 0
    assert not cluster.producers[0].closed


def test_an_id_that_its_coordinator_does_not_know_right_after_its_init_is_written_again(cluster: FakeCluster) -> None:
    cluster.then[2] = cluster.states.clear
    with pytest.raises(RetriableError, match="PRODUCER_FENCED"):
        sink().beginTransaction(context())
    assert cluster.open_admins == 0


def test_what_is_prepared_is_delivered_and_named_and_its_producer_is_dropped_but_never_closed(
    cluster: FakeCluster,
) -> None:
    made, transaction = begun(cluster)
    made.write(transaction, rows("a", "b"))
    made.write(transaction, rows("c"))
    handle = made.preCommit(transaction)
    assert handle is not None
    assert (handle["transactionalId"], handle["producerId"], handle["producerEpoch"]) == ("q.2.5", 7, 0)
    assert (handle["clusterId"], handle["endTxnVersion"], handle["timeoutMs"]) == ("cluster", 5, 60_000)
    back = json.loads(json.dumps(handle))
    assert set(made.targets([back])) == {short_id(cluster.topic_infos["out"].topic_id)}
    assert made.output([back], CHECKPOINT) == {"out-0": 100, "out-1": 101}
    [producer] = cluster.producers
    assert [row["value"] for _, row in producer.rows] == [b"a", b"b", b"c"]
    assert producer.calls[-1] == "flush"
    assert not producer.closed
    assert transaction.producer is None
    assert cluster.open_admins == 0
    with pytest.raises(ProtocolError, match="PROTOCOL_VIOLATED"):
        made.write(transaction, rows("d"))
    with pytest.raises(ProtocolError, match="PROTOCOL_VIOLATED"):
        made.preCommit(transaction)


def test_a_transaction_without_rows_has_no_handle(cluster: FakeCluster) -> None:
    made, transaction = begun(cluster)
    assert made.preCommit(transaction) is None
    assert cluster.open_admins == 0


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["another epoch", "aborted", "unknown"])
def test_a_transaction_that_is_not_open_any_more_is_not_prepared(cluster: FakeCluster, how: str, when: str) -> None:
    made, transaction = begun(cluster)
    made.write(transaction, rows("a"))

    def change() -> None:
        if how == "another epoch":
            cluster.state(transaction.name, "Ongoing", epoch=transaction.producer_epoch + 1, parts=[("out", 0)])
        elif how == "aborted":
            cluster.state(transaction.name, "CompleteAbort", epoch=transaction.producer_epoch)
        else:
            cluster.states.clear()

    # Looked at before the offsets of its rows are asked for, and after.
    cluster.then[cluster.described + (1 if when == "before" else 2)] = change
    with pytest.raises(RetriableError, match="PRODUCER_FENCED") as caught:
        made.preCommit(transaction)
    assert failure_of(caught.value).remedy is Remedy.RESTART
    assert not cluster.then


def test_a_topic_that_is_deleted_while_rows_are_written_to_it_is_not_prepared(cluster: FakeCluster) -> None:
    made, transaction = begun(cluster)
    made.write(transaction, rows("a"))
    cluster.topic_infos.clear()
    with pytest.raises(RetriableError, match=r"TOPIC_CHANGED.*were deleted.*: out\."):
        made.preCommit(transaction)


def test_rows_that_are_not_delivered_in_time_prepare_nothing(cluster: FakeCluster) -> None:
    made, transaction = begun(cluster)
    made.write(transaction, rows("a"))
    [producer] = cluster.producers
    made._clock = producer.clock  # type: ignore[assignment]
    producer.stays = 1
    with pytest.raises(RetriableError, match=r"WRITE_FAILED.*1 rows were not delivered"):
        made.preCommit(transaction)
    assert producer.clock.passed >= transaction.timeout_ms / 1000


def test_a_row_that_is_refused_while_the_rest_is_delivered_is_named(cluster: FakeCluster) -> None:
    made, transaction = begun(cluster)
    made.write(transaction, rows("a"))
    cluster.producers[0].rejected = [("MSG_SIZE_TOO_LARGE", b"x" * 9, 1)]
    with pytest.raises(RowRefusedError, match=r"ROW_TOO_LARGE.*9 bytes for out \[1\]"):
        made.preCommit(transaction)


def test_a_failure_that_follows_from_a_lost_id_is_named_by_the_coordinator(cluster: FakeCluster) -> None:
    made, transaction = begun(cluster)
    made.write(transaction, rows("a"))
    cluster.producers[0].rejected = [("_MSG_TIMED_OUT", b"x", 1)]
    cluster.state(transaction.name, "Empty", epoch=transaction.producer_epoch + 1)
    with pytest.raises(RetriableError, match="PRODUCER_FENCED"):
        made.preCommit(transaction)


def test_rows_that_no_broker_took_before_their_transaction_began_have_no_other_taker(cluster: FakeCluster) -> None:
    made, transaction = begun(cluster)
    made.write(transaction, rows("a"))
    cluster.producers[0].rejected = [("_MSG_TIMED_OUT", b"x", 1)]
    cluster.state(transaction.name, "Empty", epoch=transaction.producer_epoch)
    with pytest.raises(RetriableError, match="WRITE_FAILED"):
        made.preCommit(transaction)


def test_a_rollback_aborts_and_drops_everything_and_fails_never(cluster: FakeCluster) -> None:
    made, transaction = begun(cluster)
    made.write(transaction, rows("a"))
    made.rollback(transaction)
    [producer] = cluster.producers
    assert producer.calls[-1] == "abort"
    assert not producer.closed
    assert transaction.producer is None
    assert cluster.open_admins == 0
    made.rollback(transaction)


def test_producers_whose_abort_fails_are_kept_and_only_so_many(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collections import deque

    kept: deque[Any] = deque(maxlen=ABANDONED_AT_MOST)
    monkeypatch.setattr("connector.kafka.sink.transaction._abandoned", kept)
    for _ in range(ABANDONED_AT_MOST + 2):
        cluster.states.clear()
        made, transaction = begun(cluster)
        cluster.producers[-1].fails = ["_TIMED_OUT"]
        made.rollback(transaction)
    assert list(kept) == cluster.producers[2:]


def test_at_least_once_has_no_transaction_and_no_coordinator(cluster: FakeCluster) -> None:
    made = sink(deliveryGuarantee="at-least-once")
    transaction = made.beginTransaction(context())
    made.write(transaction, rows("a"))
    assert made.preCommit(transaction) is None
    [producer] = cluster.producers
    assert "transactional.id" not in producer.settings
    assert producer.calls == ["produce_batch", "flush"]
    assert cluster.described == cluster.open_admins == 0
    other = made.beginTransaction(context())
    made.rollback(other)
    assert cluster.producers[1].calls == ["purge"]
    assert (made.lifetime(), made.guardRun(None)) == (None, {})


# -- the driver ---------------------------------------------------------------------------------------------------------


def test_the_target_is_cluster_and_topic_and_nothing_is_initialised_by_looking(cluster: FakeCluster) -> None:
    assert sink().identify() == {"cluster": "cluster", "topic": "out", "topicId": cluster.topic_infos["out"].topic_id}
    assert "init" not in cluster.producers[0].calls
    assert sink().lifetime() == 900.0


@pytest.mark.parametrize(
    ("operations", "told"), [([4], "READ on topic out"), ([3], "WRITE on topic out"), ([], "WRITE on topic out")]
)
def test_a_right_that_is_lacking_is_named_before_the_first_row(
    cluster: FakeCluster, operations: Sequence[int], told: str
) -> None:
    cluster.topic_infos["out"] = cluster.topic("out", operations)
    with pytest.raises(StoreError, match=rf"MISSING_RIGHT.*lacks {told}"):
        sink().identify()


def test_a_topic_that_is_not_there_and_a_timeout_that_is_too_long_are_refused(cluster: FakeCluster) -> None:
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*900001.*at most 900000"):
        sink(**{"kafka.transaction.timeout.ms": "900001"}).identify()
    cluster.longest = None  # may not be read
    sink(**{"kafka.transaction.timeout.ms": "900001"}).identify()
    with pytest.raises(OptionError, match=r"UNKNOWN_TOPIC.*topic other"):
        sink(topic="other").identify()


def test_brokers_that_lack_a_request_or_the_ids_of_topics_are_refused_and_named(cluster: FakeCluster) -> None:
    for each in EXACTLY_ONCE:
        complete = dict(cluster.versions)
        cluster.versions[each.key] = (0, each.version - 1)
        with pytest.raises(
            StoreError, match=rf"KAFKA_REFUSED.*do not support {each.name} version {each.version} \(to "
        ):
            sink().identify()
        cluster.versions = complete
    cluster.versions = {}
    sink(deliveryGuarantee="at-least-once").identify()
    with pytest.raises(StoreError, match=r"KAFKA_REFUSED.*Produce version 3 .*, Fetch version 12 .*, ListTransactions"):
        sink().identify()
    cluster.versions = complete
    cluster.topic_infos["out"] = replace(cluster.topic_infos["out"], topic_id=str(uuid.UUID(int=0)))
    with pytest.raises(StoreError, match=r"KAFKA_REFUSED.*give out no id"):
        sink().identify()


def test_a_run_takes_the_prefix_keeps_it_and_sees_that_another_took_it(cluster: FakeCluster) -> None:
    mark = sink().guardRun(None)
    assert mark == {"producerId": 7, "epoch": 0}
    assert sink().guardRun(mark) == mark, "the same run again initialises nothing"
    assert cluster.states["q.run"].producer_epoch == 0
    cluster.init_producer_id("q.run", 1)
    with pytest.raises(FencedError, match="PREFIX_TAKEN"):
        sink().guardRun(mark)
    assert sink().guardRun(None) == {"producerId": 7, "epoch": 2}


def test_a_request_of_the_run_that_was_not_answered_may_arrive_late(cluster: FakeCluster) -> None:
    """A coordinator that stood still takes it from its socket, after the next try was answered."""
    cluster.unanswered = 1
    mark = sink().guardRun(None)
    assert mark == {"producerId": 7, "epoch": 0, "unanswered": 1, "late": 1}
    cluster.init_producer_id("q.run", 1)
    assert sink().guardRun(mark) == mark
    cluster.init_producer_id("q.run", 1)
    with pytest.raises(FencedError, match="PREFIX_TAKEN"):
        sink().guardRun(mark)


def test_a_request_of_an_earlier_run_may_arrive_in_a_later_one(cluster: FakeCluster) -> None:
    earlier = {"producerId": 7, "epoch": 0, "unanswered": 1, "late": 1}
    cluster.state("q.run", "Empty")
    later = sink()
    later.checkHistory(History("q", 1, True, mark=earlier, late=[earlier]))
    mark = later.guardRun(None)
    assert mark == {"producerId": 7, "epoch": 1, "unanswered": 0, "late": 1}
    cluster.init_producer_id("q.run", 1)
    assert sink().guardRun(mark) == mark
    sink().checkHistory(History("q", 1, True, mark=mark, late=[earlier, mark]))
    cluster.init_producer_id("q.run", 1)
    with pytest.raises(LocationError, match="LOCATION_PUT_BACK"):
        sink().checkHistory(History("q", 1, True, mark=mark, late=[earlier, mark]))


def test_an_id_that_the_brokers_have_forgotten_is_left_alone(cluster: FakeCluster) -> None:
    """A query that has run for a week, or had another prefix since: a mark that nobody records would shut out its next run."""
    mark = {"producerId": 7, "epoch": 1}
    assert sink().guardRun(mark) == mark
    assert "q.run" not in cluster.states
    cluster.init_producer_id("q.run", 1)
    with pytest.raises(FencedError, match="PREFIX_TAKEN"):
        sink().guardRun(mark)


def test_nothing_is_asked_for_no_handles_and_connections_are_one_and_closed(cluster: FakeCluster) -> None:
    made = sink()
    made.commit([], CHECKPOINT)
    assert (list(made.abort([])), list(made.inspect([]))) == ([], [])
    assert cluster.open_admins == 0
    made.lifetime()
    made.identify()
    assert cluster.open_admins == 1
    made.close()
    made.close()
    assert cluster.open_admins == 0


def test_the_sweep_leaves_what_is_known_other_prefixes_and_what_is_over(cluster: FakeCluster) -> None:
    made, transaction = begun(cluster)
    made.write(transaction, rows("a"))
    handle = made.preCommit(transaction)
    assert handle is not None
    for name in ("q.x.2.5", "other.2.5", "q.2.64", "q.run"):
        cluster.state(name, "Ongoing")
    cluster.state("q.0.0", "CompleteCommit")
    assert made.sweep([handle], OVER) == 0


def test_over_many_partitions_a_checkpoint_names_only_the_topics(cluster: FakeCluster) -> None:
    made, transaction = begun(cluster)
    made.write(transaction, rows("a"))
    parts = [("out", number) for number in range(101)]
    cluster.state(transaction.name, "Ongoing", epoch=transaction.producer_epoch, parts=parts)
    leaders = dict.fromkeys(range(101), 1)
    cluster.topic_infos["out"] = replace(cluster.topic_infos["out"], leaders=leaders)
    handle = made.preCommit(transaction)
    assert handle is not None
    output = made.output([handle], CHECKPOINT)
    assert output == {"partitions": 101, "topics": ["out"]}
    options = Options({"kafka.bootstrap.servers": "b:9092"})
    assert set(KafkaSink.datasets(options, output)) == {("kafka://b:9092", "out")}
