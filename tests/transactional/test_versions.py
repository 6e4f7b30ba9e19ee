"""Versions of batch writes: each once, from one frame, to one target. The real coordinator over a store in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connector.cli import main
from connector.location.location import CheckpointLocation
from tests.transactional.bodies import fact_of, lines
from transactional import comparison, faults
from transactional.capabilities import WritesTopics
from transactional.checkpoint import Acknowledgement, Mode, Part, TaskPlan
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.digest import RowDigest, digest_of_all
from transactional.entry import EntryKind
from transactional.errors import (
    FencedError,
    JournalError,
    LocationError,
    PutBackError,
    ReplayMismatchError,
    RetriableError,
    TwoPhaseCommitError,
)
from transactional.history import History
from transactional.journal import Journal, MemoryJournalStore
from transactional.ledger import BatchRecord, Ledger, RunRecord, Written, fold
from transactional.recovery import QueryView
from transactional.recovery.versions import check_topics, check_written
from transactional.sink import Handle, Options, TransactionContext
from transactional.testing import MemoryTransactions, RecordingSink

SCHEMA = pa.schema([("n", pa.int64())])

Frame = Sequence[Sequence[int]]
"""Rows of each writer task."""


class NamedSink(WritesTopics, RecordingSink):
    """Has an identity, and topics that its transactions wrote to."""

    identity: Mapping[str, str] = {}
    written: Sequence[str] = ()

    def identify(self) -> Mapping[str, str]:
        return self.identity

    def targets(self, handles: Sequence[Handle]) -> Sequence[str]:
        return self.written if handles else ()


class Writes:
    """A location of batch writes."""

    def __init__(self, retained: int = 100, location: CheckpointLocation | None = None) -> None:
        store = MemoryJournalStore()
        self.journal: Callable[[], Journal] = location.journal if location else lambda: Journal(store)
        self.transactions = MemoryTransactions()
        self.retained = retained
        self.identity: Mapping[str, str] = {"cluster": "one"}
        self.written: Sequence[str] = ()

    def sink(self) -> NamedSink:
        sink = NamedSink(Options({"transactionalIdPrefix": "p"}), SCHEMA, self.transactions)
        sink.identity, sink.written = self.identity, self.written
        return sink

    def coordinator(self, version: int, driver: str = "A", compare: bool = True) -> CheckpointCoordinator:
        view = QueryView("app", "/writes", version, -1, lines(f"version {version}"), None, gaps=True, compare=compare)
        settings = RunSettings(driver, "2pc-recording", "options", "p", retained=self.retained)
        return CheckpointCoordinator(self.journal(), self.sink(), settings, view)

    def plan(self, version: int, driver: str = "A", compare: bool = True) -> TaskPlan:
        return self.coordinator(version, driver, compare).plan()

    def tasks(self, plan: TaskPlan, frame: Frame) -> list[Acknowledgement | None]:
        return [self.task(plan, partition, rows) for partition, rows in enumerate(frame)]

    def task(self, plan: TaskPlan, partition: int, rows: Sequence[int]) -> Acknowledgement:
        batch = pa.record_batch([pa.array(rows, pa.int64())], schema=SCHEMA)
        digest = RowDigest()
        digest.update(batch)
        drained = plan.drains(partition)
        handle: Any = None
        if not drained and rows:
            sink = self.sink()
            number = sink.beginTransaction(TransactionContext("app", plan.batch, partition, partition, "p", "nonce"))
            sink.write(number, batch)
            handle = dict(sink.preCommit(number))
        part = Part(partition, handle, digest.rows, digest.bytes, digest.hexadecimal())
        return Acknowledgement(plan.token, plan.batch, partition, partition, drained, [part], plan.sources)

    def commit(self, messages: Sequence[Acknowledgement | None], version: int, compare: bool = True) -> None:
        self.coordinator(version, compare=compare).commit(messages, version)

    def save(self, version: int, frame: Frame, compare: bool = True) -> None:
        """One write without trouble."""
        self.commit(self.tasks(self.plan(version, compare=compare), frame), version, compare)

    def rows(self) -> list[int]:
        return sorted(row["n"] for row in self.transactions.rows())

    def ledger(self) -> Ledger:
        return self.journal().load()


# -- a version that was written -----------------------------------------------------------------------------------------


def test_the_same_rows_in_another_order_and_over_another_number_of_tasks_are_the_same_version() -> None:
    writes = Writes()
    writes.save(7, [[1, 2], [3], []])
    writes.save(7, [[3, 1, 2]])
    assert writes.rows() == [1, 2, 3]


def test_a_version_that_was_never_written_is_refused_however_wide_the_gaps_are() -> None:
    writes = Writes()
    for version in (20261229, 20261231, 20270101):  # dates; the write of 20261230 has failed
        writes.save(version, [[version]])
    with pytest.raises(TwoPhaseCommitError, match="VERSION_TOO_LOW"):
        writes.save(20261230, [[20261230]])
    with pytest.raises(ReplayMismatchError, match="VERSION_HAS_OTHER_ROWS"):
        writes.save(20261231, [[1]])
    assert writes.rows() == [20261229, 20261231, 20270101]


def test_a_version_that_is_older_than_the_kept_ones_is_refused_before_a_task_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have been written, or have failed: the journal no longer shows it."""
    monkeypatch.setattr(fold, "KEPT_BATCHES", 2)
    writes = Writes()
    for version in (1, 5, 6, 7):
        writes.save(version, [[version]])
    assert sorted(writes.ledger().batches) == [6, 7]
    for version in (1, 3, 5):
        with pytest.raises(LocationError, match=r"VERSION_TOO_LOW.*above 5.*txnCompareRows=false"):
            writes.plan(version)
        writes.save(version, [[99]], compare=False)
    assert writes.rows() == [1, 5, 6, 7]


@pytest.mark.parametrize("later", [6, 1000])
def test_no_version_overtakes_a_lost_one_even_if_it_was_planned_before_the_loss(
    monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    writes = Writes()
    writes.save(4, [[4]])
    first, second = writes.plan(5), writes.plan(later)

    def lose(point: str) -> None:
        for number in writes.transactions.unfinished() if point == "decision.written" else ():
            writes.transactions.expire(number)

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", lose)
        with pytest.raises(RetriableError, match="LOST_AFTER_DECISION"):
            writes.commit(writes.tasks(first, [[5]]), 5)
    again = writes.plan(5)  # voids the lost version
    with pytest.raises(FencedError, match="CONCURRENT_COMMIT"):
        writes.commit(writes.tasks(second, [[later]]), later)
    writes.commit(writes.tasks(again, [[5]]), 5)
    writes.save(later, [[later]])
    assert writes.rows() == [4, 5, later]


@pytest.mark.parametrize("frame", [[[1, 2]], [[1, 2, 3, 4]], [[1, 2, 4]], [[1, 2, 2]]])
def test_other_rows_under_a_version_that_was_written_are_refused(frame: Frame) -> None:
    writes = Writes()
    writes.save(7, [[1, 2], [3]])
    with pytest.raises(ReplayMismatchError, match=r"VERSION_HAS_OTHER_ROWS.*txnVersion 7.*txnCompareRows=false"):
        writes.save(7, frame)
    assert writes.rows() == [1, 2, 3]


def test_a_frame_that_is_not_the_same_each_time_leaves_its_version_as_it_was_where_that_is_accepted() -> None:
    writes = Writes()
    writes.save(7, [[1, 2]])
    with pytest.raises(ReplayMismatchError, match=r"VERSION_HAS_OTHER_ROWS.*txnCompareRows=false"):
        writes.save(7, [[3, 4]])
    writes.save(7, [[3, 4]], compare=False)
    writes.save(8, [[5]])
    assert writes.rows() == [1, 2, 5]


def test_what_was_written_is_known_after_its_checkpoint_was_trimmed_and_over_a_snapshot() -> None:
    writes = Writes(retained=1)
    for version in range(4):
        writes.save(version, [[version]])
    journal = writes.journal()
    journal.load()
    journal.fold(every=1)
    writes.save(1, [[1]])
    with pytest.raises(ReplayMismatchError, match="VERSION_HAS_OTHER_ROWS"):
        writes.save(1, [[9]])
    assert writes.rows() == [0, 1, 2, 3]


def test_digests_of_two_encodings_are_not_compared_but_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer release wrote the version."""
    writes = Writes()
    with monkeypatch.context() as newer:
        for module in ("digest", "recovery.rows"):
            newer.setattr(f"transactional.{module}.ENCODING_VERSION", 3)
        writes.save(7, [[1, 2]])
    with pytest.raises(JournalError, match=r"FORMAT_UNKNOWN.*txnVersion 7.*another encoding.*encoding 2"):
        writes.save(7, [[1, 2]])
    with pytest.raises(ReplayMismatchError, match="VERSION_HAS_OTHER_ROWS"):
        writes.save(7, [[1]])
    assert writes.rows() == [1, 2]


def test_after_an_accepted_difference_nobody_knows_the_version_s_rows() -> None:
    writes = Writes()
    plan = writes.plan(0)
    messages = writes.tasks(plan, [[1], [2]])
    lose_after_decision(writes, messages, 0, committed=1)
    assert writes.plan(0, "B").mode is Mode.REPAIR
    journal = writes.journal()
    ledger = journal.load()
    body = {"checkpoint": ledger.unsettled()[0].id, "batch": 0, "partition": 1, "decision": "accept-difference"}
    journal.append(fact_of(EntryKind.RESOLVE, body), lambda found: None)
    repaired = writes.tasks(writes.plan(0, "B"), [[1], [5]])
    writes.coordinator(0, "B").commit(repaired, 0)
    drained = writes.tasks(writes.plan(0, "B"), [[1], [6]])
    writes.coordinator(0, "B").commit(drained, 0)
    assert writes.rows() == [1, 5]


def lose_after_decision(
    writes: Writes, messages: Sequence[Acknowledgement | None], version: int, committed: int = 0
) -> None:
    """The version is decided, so many of its transactions are committed, the others expire, and the driver dies."""
    coordinator = writes.coordinator(version)

    def die(handles: Sequence[Any], checkpoint: Any) -> None:
        for number, handle in enumerate(handles):
            act = writes.transactions.commit if number < committed else writes.transactions.abort
            act(handle["transaction"])
        raise KeyboardInterrupt

    coordinator._sink.commit = die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        coordinator.commit(messages, version)


# -- a version that was lost -----------------------------------------------------------------------------------------------


def test_a_version_that_lost_transactions_is_written_again_as_the_error_of_the_next_one_says() -> None:
    for committed in (0, 1):
        writes = Writes()
        lose_after_decision(writes, writes.tasks(writes.plan(3), [[1], [2]]), 3, committed)
        with pytest.raises(RetriableError, match=r"VERSION_LOST.*txnVersion 3 .*Write that version again") as refused:
            writes.save(4, [[5]])
        assert "rewind" not in str(refused.value)
        writes.save(3, [[1], [2]])
        writes.save(4, [[5]])
        assert writes.rows() == [1, 2, 5]


def test_a_lost_version_whose_rows_nobody_has_is_resolved_as_the_error_says(tmp_path: Path) -> None:
    writes = Writes(location=CheckpointLocation(str(tmp_path)))
    lose_after_decision(writes, writes.tasks(writes.plan(3), [[1], [2]]), 3, committed=1)
    with pytest.raises(RetriableError, match=r"VERSION_LOST.*`barrier resolve LOCATION`"):
        writes.plan(4)
    lost = writes.ledger().unsettled()[0].id
    chosen = ["--checkpoint", str(lost), "--part", "3/1", "--as", "accept-loss", "--unchecked"]
    assert main(["resolve", str(tmp_path), *chosen, "--yes"]) == 0
    writes.save(4, [[5]])
    assert writes.rows() == [1, 5]
    assert writes.ledger().unsettled() == []


# -- two frames at once -------------------------------------------------------------------------------------------------


def test_of_two_frames_that_were_planned_under_one_version_the_later_one_is_refused() -> None:
    writes = Writes()
    first, second = writes.plan(3), writes.plan(3)
    one = writes.tasks(first, [[1, 2]])
    writes.commit(one, 3)
    for frame in ([[8, 9, 10]], [[1, 2]]):  # the same rows, too: which frame they are of, nobody knows
        with pytest.raises(FencedError, match=r"VERSION_OVERTAKEN.*txnVersion 3"):
            writes.commit(writes.tasks(second, frame), 3)
        assert writes.transactions.unfinished() == [], "what it prepared would hold readers back until the next write"
    assert writes.rows() == [1, 2]


def test_a_commit_that_is_repeated_with_the_same_transactions_is_no_other_frame() -> None:
    writes = Writes()
    messages = writes.tasks(writes.plan(3), [[1, 2], [3], []])
    for _ in range(2):
        writes.commit(messages, 3)
    writes.commit(list(reversed(messages)), 3)
    assert writes.rows() == [1, 2, 3]


def test_a_commit_that_died_after_its_decision_is_repeated_with_the_same_transactions() -> None:
    writes = Writes()
    messages = writes.tasks(writes.plan(3), [[1, 2], [3]])
    coordinator = writes.coordinator(3)
    coordinator._sink.commit = lambda handles, checkpoint: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        coordinator.commit(messages, 3)
    assert writes.rows() == []
    writes.commit(messages, 3)
    assert writes.rows() == [1, 2, 3]


# -- the target ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["A", "B"])
@pytest.mark.parametrize("version", [0, 1])
def test_another_target_is_refused_before_anything_is_written(driver: str, version: int) -> None:
    writes = Writes()
    writes.save(0, [[1]])
    before = writes.ledger().position
    writes.identity = {"cluster": "two"}
    with pytest.raises(LocationError, match=r"LOCATION_TAKEN.*cluster.*one.*two"):
        writes.plan(version, driver)
    assert writes.ledger().position == before


def test_a_target_that_nothing_was_written_to_can_be_corrected() -> None:
    writes = Writes()
    writes.plan(0)
    writes.identity = {"cluster": "two"}
    writes.save(0, [[1]])
    assert writes.rows() == [1]


def test_rows_in_another_topic_than_the_one_that_was_planned_are_not_committed() -> None:
    writes = Writes()
    writes.identity, writes.written = {"cluster": "one", "topicId": "a"}, ["a"]
    writes.save(0, [[1]])
    writes.written = ["b"]
    with pytest.raises(LocationError, match="LOCATION_TAKEN"):
        writes.save(1, [[2]])
    assert writes.rows() == [1]


def test_a_topic_s_id_is_the_same_one_in_both_clients_spelling() -> None:
    writes = Writes()
    writes.identity = {"cluster": "one", "topicId": "4cd641bd-9ac3-4d38-9279-9b04cbfe826d"}
    writes.written = ["TNZBvZrDTTiSeZsEy/6CbQ"]
    writes.save(0, [[1]])
    assert writes.rows() == [1]


# -- an older copy of the location ---------------------------------------------------------------------------------------


def test_an_older_copy_of_the_location_names_what_works_for_batch_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(sink: NamedSink, history: History) -> Mapping[str, Any]:
        raise PutBackError("LOCATION_PUT_BACK", evidence="it has committed more")

    writes = Writes()
    writes.save(0, [[1]])
    monkeypatch.setattr(comparison, "history_seen", refuse)
    with pytest.raises(
        LocationError,
        match=r"VERSIONS_PUT_BACK.*it has committed more.*new checkpointLocation",
    ) as told:
        writes.plan(1, "B")
    assert "--as-is" not in str(told.value)
    assert writes.rows() == [1]


# -- digests ------------------------------------------------------------------------------------------------------------


def test_the_digest_of_all_rows_is_that_of_the_parts_however_they_are_cut() -> None:
    def digest(*rows: int) -> str:
        found = RowDigest()
        found.update(pa.record_batch([pa.array(rows, pa.int64())], schema=SCHEMA))
        return found.hexadecimal()

    assert digest_of_all([digest(1, 2), digest(3)]) == digest_of_all([digest(3, 1, 2)]) == digest(1, 2, 3)
    assert digest_of_all([digest(1, 2), digest(4)]) != digest(1, 2, 3)
    assert digest_of_all([]) == digest()
    assert digest_of_all(["2:ffffffffffffffff", "2:0000000000000002"]) == "2:0000000000000001"
    assert digest_of_all([digest(1), "1:0000000000000001"]) == "", "of two encodings"
    assert digest_of_all([digest(1), "1:0000000000000000"]) == digest(1), "no row is the same in both"
    assert digest_of_all([digest(1), ""]) == ""
    assert digest_of_all(["3:0000000000000001"]) == "", "of a newer release"


def test_rows_that_took_another_route_are_other_rows() -> None:
    """All in all they are the same, and one of the sinks would never get them."""

    def parts(left: int, right: int) -> list[Part]:
        sizes = {"left": left, "right": right}
        return [Part(0, None, rows, rows, f"2:{rows:016x}", route) for route, rows in sizes.items()]

    written = Written.of([part.to_json() for part in parts(2, 3)])
    found = BatchRecord(7, "", 1, 1, 1, [], 1, written=written)
    again, other = (Acknowledgement(1, 7, 0, 0, True, each) for each in (parts(2, 3), parts(3, 2)))
    check_written(found, [again], 7, True)
    with pytest.raises(ReplayMismatchError, match="VERSION_HAS_OTHER_ROWS"):
        check_written(found, [other], 7, True)
    check_written(found, [other], 7, False)
    ledger = Ledger(batches={7: found})
    kept = Ledger.from_json(json.loads(json.dumps(ledger.to_json()))).batches[7].written
    assert kept == written


def test_each_sinks_topic_is_compared_with_its_own() -> None:
    run = RunRecord(1, "d", "s", "2pc-multi", "/place", "p", {"left.topicId": "A", "right.cluster": "c"})
    ledger = Ledger(runs={1: run})
    check_topics(ledger, ["A"], "left")
    check_topics(ledger, ["B"], "right")
    with pytest.raises(LocationError, match=r"LOCATION_TAKEN.*left\.topicId was A, is now B"):
        check_topics(ledger, ["B"], "left")
