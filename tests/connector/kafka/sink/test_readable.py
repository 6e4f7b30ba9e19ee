"""From EndTxn's NONE to rows that can be read: markers that come late, that were left out, that others have written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from connector.kafka.client.admin import SECOND_LOOK_SECONDS
from connector.kafka.sink.fates import Fate
from connector.kafka.sink.handles import parse_handle
from connector.kafka.sink.readable import PATIENCE_SECONDS
from tests.connector.kafka.sink.fake_cluster import EPOCH, PRODUCER, FakeCluster, described, prepared
from transactional.clock import Deadline
from transactional.errors import AmbiguousOutcomeError, RetriableError, StoreError, TransactionLostError

OPEN, PENDING, COMMITTED, ABORTED, CUT, GONE, UNKNOWN = (
    Fate.OPEN,
    Fate.PENDING,
    Fate.COMMITTED,
    Fate.ABORTED,
    Fate.CUT,
    Fate.GONE,
    Fate.UNKNOWN,
)


def cluster_of(state: str, *fates: Fate, above: int = 1) -> FakeCluster:
    """One transaction, ``q.0.1``, as its coordinator and its partitions show it."""
    return FakeCluster(
        {"q.0.1": described(state, above)}, {(PRODUCER, number): fate for number, fate in enumerate(fates)}
    )


def ensure(cluster: FakeCluster, version: int = 5, seconds: float = 60.0) -> list[dict[str, Any]]:
    transaction = prepared(version=version, partitions=len(cluster.fates))
    return cluster.ender().ensure_readable([transaction], Deadline(seconds, cluster.clock))


def after(cluster: FakeCluster, seconds: float, change: Callable[[], None]) -> None:
    """Change something when so much time has passed."""

    def look() -> None:
        if cluster.clock.passed >= seconds:
            change()

    cluster.when_probed = look


def test_rows_that_can_be_read_cost_one_question_and_no_wait() -> None:
    cluster = cluster_of("CompleteCommit", COMMITTED, COMMITTED)
    assert ensure(cluster) == []
    assert (len(cluster.probes), cluster.described_leaders, cluster.clock.passed) == (2, 0, 0.0)
    assert cluster.limit is None


def test_markers_that_are_on_their_way_are_waited_for_without_asking_the_leaders() -> None:
    cluster = cluster_of("PrepareCommit", OPEN, COMMITTED)
    after(cluster, 0.05, lambda: cluster.fates.update({(PRODUCER, 0): COMMITTED}))
    assert ensure(cluster) == []
    assert (cluster.described_leaders, cluster.markers) == (0, [])
    # What can be read already is not asked again.
    assert sum(probe.partition == ("t", 1) for probe in cluster.probes) == 1


def test_markers_that_do_not_come_are_no_evidence_while_the_coordinator_still_writes_them() -> None:
    cluster = cluster_of("PrepareCommit", OPEN, COMMITTED)
    with pytest.raises(RetriableError, match="MARKERS_PENDING") as pending:
        ensure(cluster)
    assert "t [0]" in str(pending.value)
    assert "t [1]" not in str(pending.value)
    assert cluster.markers == []
    assert 60 <= cluster.clock.passed < 61


@pytest.mark.parametrize(("version", "above"), [(5, 1), (4, 0)])
def test_a_marker_that_was_left_out_is_written_at_the_epoch_of_the_end(version: int, above: int) -> None:
    cluster = cluster_of("CompleteCommit", OPEN, COMMITTED, above=above)
    repaired = ensure(cluster, version)
    assert cluster.markers == [(("t", 0), PRODUCER, EPOCH + above, True, version)]
    assert repaired == [
        {
            "transactionalId": "q.0.1",
            "producerId": PRODUCER,
            "producerEpoch": EPOCH,
            "topic": "t",
            "partition": 0,
            "offset": 4,
            "marker": "commit",
            "proof": f"coordinator: CompleteCommit at epoch {EPOCH + above}",
        }
    ]
    assert cluster.clock.passed >= PATIENCE_SECONDS


def test_a_marker_of_a_commit_by_an_earlier_version_keeps_the_epoch() -> None:
    """Somebody else has committed it: at its own epoch it can only be this transaction."""
    cluster = cluster_of("CompleteCommit", OPEN, above=0)
    assert len(ensure(cluster, version=5)) == 1
    assert cluster.markers == [(("t", 0), PRODUCER, EPOCH, True, 4)]


def test_a_marker_that_comes_after_the_coordinator_was_asked_is_not_written_twice() -> None:
    cluster = cluster_of("CompleteCommit", OPEN)
    asked: list[float] = []

    def complete() -> None:
        asked.append(cluster.clock.passed)
        cluster.fates[PRODUCER, 0] = COMMITTED  # between the two questions

    cluster.when_described = complete
    assert ensure(cluster) == []
    assert (len(asked), cluster.markers) == (1, [])


def test_without_the_right_to_write_markers_the_query_stops_and_says_what_to_grant() -> None:
    cluster = cluster_of("CompleteCommit", COMMITTED, OPEN)
    cluster.marker_code = 31
    with pytest.raises(StoreError, match="MARKERS_SKIPPED") as stopped:
        ensure(cluster)
    for told in ("q.0.1", "t [1]", "offset 4", "CLUSTER_ACTION", "kafka-transactions.sh"):
        assert told in str(stopped.value)


def test_a_marker_that_its_leader_refuses_is_named() -> None:
    cluster = cluster_of("CompleteCommit", OPEN)
    cluster.marker_code = 47
    with pytest.raises(StoreError, match="INVALID_PRODUCER_EPOCH") as stopped:
        ensure(cluster)
    assert stopped.value.condition == "MARKERS_SKIPPED"


@pytest.mark.parametrize(
    ("state", "above"),
    [("Empty", 2), ("CompleteAbort", 1), ("CompleteCommit", 2), ("Ongoing", 2)],
)
def test_without_proof_of_the_commit_no_marker_is_written(state: str, above: int) -> None:
    cluster = cluster_of(state, OPEN, above=above)
    with pytest.raises(StoreError, match="MARKERS_SKIPPED") as stopped:
        ensure(cluster)
    assert cluster.markers == []
    assert "barrier resolve" in str(stopped.value)


def test_the_commit_marker_of_another_partition_is_proof_too() -> None:
    cluster = cluster_of("Empty", COMMITTED, OPEN, above=2)
    assert [each["proof"] for each in ensure(cluster)] == ["t [0] shows the transaction's rows before offset 10"]
    assert len(cluster.markers) == 1


def test_a_transaction_that_markers_from_outside_aborted_whole_is_lost() -> None:
    cluster = cluster_of("CompleteCommit", ABORTED, ABORTED)
    with pytest.raises(TransactionLostError, match="TRANSACTION_LOST") as lost:
        ensure(cluster)
    assert lost.value.handles == [dict(prepared(partitions=2).handle)]


@pytest.mark.parametrize(
    ("fates", "told"),
    [
        ((COMMITTED, ABORTED), "t [1] lists the transaction's rows from offset 4 as aborted"),
        ((OPEN, ABORTED), "t [1] lists the transaction's rows from offset 4 as aborted"),
        ((COMMITTED, CUT), "t [1] lost the transaction's rows from offset 6 to 10"),
        ((CUT, CUT), "t [1] lost the transaction's rows from offset 6 to 10"),
        ((COMMITTED, UNKNOWN), "t [1] has its unknown marker"),
    ],
)
def test_a_transaction_of_which_a_part_is_lost_is_for_a_person_to_resolve(fates: tuple[Fate, ...], told: str) -> None:
    cluster = cluster_of("CompleteCommit", *fates)
    with pytest.raises(AmbiguousOutcomeError, match="OUTCOME_UNKNOWN") as stopped:
        ensure(cluster)
    assert told in str(stopped.value)
    assert "barrier resolve" in str(stopped.value)
    assert cluster.markers == []


@pytest.mark.parametrize("first", [ABORTED, CUT, GONE, UNKNOWN, PENDING])
def test_one_answer_of_a_leader_that_was_replaced_is_no_evidence(first: Fate) -> None:
    """It was paused, wakes, and answers from what it knew; the next question goes to who leads now."""
    cluster = cluster_of("CompleteCommit", COMMITTED, first)
    after(cluster, SECOND_LOOK_SECONDS / 2, lambda: cluster.fates.update({(PRODUCER, 1): COMMITTED}))
    assert ensure(cluster) == []
    assert cluster.markers == []


def test_a_marker_that_followers_do_not_have_yet_is_waited_for() -> None:
    cluster = cluster_of("CompleteCommit", COMMITTED, PENDING)
    with pytest.raises(RetriableError, match="MARKERS_PENDING") as pending:
        ensure(cluster)
    assert "t [1]" in str(pending.value)
    assert cluster.markers == []


def test_a_transaction_that_hangs_in_one_look_only_gets_no_marker() -> None:
    cluster = cluster_of("CompleteCommit", OPEN)
    after(cluster, PATIENCE_SECONDS + SECOND_LOOK_SECONDS / 2, lambda: cluster.fates.update({(PRODUCER, 0): COMMITTED}))
    assert ensure(cluster) == []
    assert cluster.markers == []


@pytest.mark.parametrize("code", [47, 48, 52])
def test_a_marker_that_somebody_newer_has_made_needless_is_looked_at_again(code: int) -> None:
    cluster = cluster_of("CompleteCommit", OPEN)
    cluster.marker_code = code
    cluster.when_marked = lambda: cluster.fates.update({(PRODUCER, 0): COMMITTED})
    assert ensure(cluster) == []
    assert len(cluster.markers) == 1


def test_a_topic_that_was_deleted_holds_nothing_up() -> None:
    assert ensure(cluster_of("CompleteCommit", COMMITTED, GONE)) == []


def test_a_stranger_s_open_transaction_holds_readers_back_and_not_us() -> None:
    cluster = cluster_of("CompleteCommit", COMMITTED)
    cluster.fates[PRODUCER + 1, 0] = OPEN
    transaction = prepared()
    assert cluster.ender().ensure_readable([transaction], Deadline(60, cluster.clock)) == []
    assert cluster.described_leaders == 1
    assert cluster.markers == []


def test_what_was_aborted_below_a_stranger_s_open_transaction_is_found_in_the_log() -> None:
    cluster = cluster_of("CompleteCommit", ABORTED)
    cluster.fates[PRODUCER + 1, 0] = OPEN
    with pytest.raises(TransactionLostError):
        cluster.ender().ensure_readable([prepared()], Deadline(60, cluster.clock))


def test_what_one_look_found_open_is_asked_about_once_a_partition() -> None:
    """What has ended any of them stands behind the witnesses of all."""
    cluster = FakeCluster()
    transactions = []
    for number in range(3):
        each = prepared(f"q.{number}.0", producer=number)
        handle = {**each.handle, "written": {"t": [[0, 10 + number, 0]]}}
        transactions.append(parse_handle(handle))
        cluster.states[each.name] = described("Ongoing", producer=number)
        cluster.fates[number, 0] = OPEN
    ender, deadline = cluster.ender(), Deadline(60, cluster.clock)
    assert all(state.ready for state in ender.look(transactions))
    ender.commit(transactions, deadline)
    cluster.probes.clear()
    assert ender.ensure_readable(transactions, deadline) == []
    assert [probe.offset for probe in cluster.probes] == [12]
    # Another process has not seen them open: a marker may stand before the last witness, so each is asked at its own.
    cluster.probes.clear()
    assert cluster.ender().ensure_readable(transactions, deadline) == []
    assert [probe.offset for probe in cluster.probes] == [10, 11, 12]
