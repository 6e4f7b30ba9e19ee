"""The order of the durable steps, one row of the protocol a test, on the real coordinator and journal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.transactional.bodies import fact_of, lines, recorded, run_body, settled
from transactional.checkpoint import Acknowledgement, Mode, Part, TaskPlan
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entry import Entry, EntryKind, decode, encode
from transactional.errors import (
    AmbiguousOutcomeError,
    FencedError,
    JournalError,
    LocationError,
    ProtocolError,
    ReplayMismatchError,
    RetriableError,
    TransactionLostError,
)
from transactional.journal import Journal, JournalStore, LocalJournalStore, MemoryJournalStore
from transactional.journal.journal import SNAPSHOT_EVERY
from transactional.ledger import Ledger
from transactional.recovery import QueryView
from transactional.sink import HandleState, Options, Outcome, TransactionContext
from transactional.testing import MemoryTransactions, RecordingSink

SCHEMA = pa.schema([("n", pa.int64())])


class Query:
    """One query on one journal and one store; `driver` starts it as another driver."""

    def __init__(self, store: JournalStore | None = None) -> None:
        self.journal_store = store or MemoryJournalStore()
        self.transactions = MemoryTransactions()
        self.committed = -1
        self.sinks: list[RecordingSink] = []
        self.started: int | None = None

    def view(self, batch: int) -> QueryView:
        return QueryView("q", "/place", batch, self.committed, lines(f"line {batch}"), lines(f"line {batch - 1}"))

    def coordinator(self, batch: int, driver: str = "A") -> CheckpointCoordinator:
        sink = RecordingSink(Options({"transactionalIdPrefix": "p"}), SCHEMA, self.transactions)
        self.sinks.append(sink)
        settings = RunSettings(driver, sink.name(), "options", "p", started=self.started)
        return CheckpointCoordinator(Journal(self.journal_store), sink, settings, self.view(batch))

    def plan(self, batch: int, driver: str = "A") -> TaskPlan:
        return self.coordinator(batch, driver).plan()

    def tasks(self, plan: TaskPlan, partitions: int = 2, row: int = 0) -> list[Acknowledgement | None]:
        """What Spark's writer tasks do with the plan."""
        return [self.task(plan, partition, row) for partition in range(partitions)]

    def task(self, plan: TaskPlan, partition: int, row: int = 0) -> Acknowledgement:
        drained = plan.drains(partition)
        handle = None
        if not drained:
            sink = self.sinks[-1]
            context = TransactionContext("q", plan.batch, partition, partition, "p", "nonce")
            number = sink.beginTransaction(context)
            value = plan.batch * 10 + partition + row
            sink.write(number, pa.record_batch([pa.array([value])], schema=SCHEMA))
            handle = dict(sink.preCommit(number))
        part = Part(partition, handle, 1, 8, f"digest {row}")
        return Acknowledgement(plan.token, plan.batch, partition, partition, drained, [part], plan.sources)

    def commit(self, messages: Sequence[Acknowledgement | None], batch: int, driver: str = "A") -> None:
        self.coordinator(batch, driver).commit(messages, batch)

    def run(self, batch: int, driver: str = "A") -> None:
        """One micro-batch without trouble."""
        self.commit(self.tasks(self.plan(batch, driver)), batch, driver)
        self.committed = batch

    def rows(self) -> list[int]:
        return sorted(row["n"] for row in self.transactions.rows())

    def kinds(self) -> list[str]:
        names = sorted(
            (n for n in self.journal_store.names() if "snapshot" not in n), key=lambda n: int(n.split(".")[0])
        )
        return [decode(self.journal_store.read(name), name).kind for name in names]

    def ledger(self) -> Ledger:
        return Journal(self.journal_store).load()


class CrashAt(MemoryJournalStore):
    """Raises instead of the create of the entry kind that is armed."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = ""

    def create(self, name: str, data: bytes) -> bool:
        if self.armed and json.loads(data)["kind"] == self.armed:
            raise KeyboardInterrupt(self.armed)
        return super().create(name, data)


def test_a_micro_batch_is_decided_before_its_first_handle_is_committed() -> None:
    query = Query(CrashAt())
    plan = query.plan(0)
    messages = query.tasks(plan)
    query.journal_store.armed = "decided"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        query.commit(messages, 0)
    assert query.rows() == []


def test_a_decided_checkpoint_is_committed_by_the_next_planning_and_its_replay_drains() -> None:
    query = Query(CrashAt())
    messages = query.tasks(query.plan(0))
    query.journal_store.armed = "settled"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        query.commit(messages, 0)
    query.journal_store.armed = ""  # type: ignore[attr-defined]
    plan = query.plan(0, "B")
    assert plan.mode is Mode.DRAIN
    assert query.rows() == [0, 1]
    query.commit(query.tasks(plan), 0, "B")
    assert query.rows() == [0, 1]
    assert query.kinds() == ["run", "mark", "decided", "run", "mark", "settled"]


def test_abort_of_a_decided_micro_batch_changes_nothing() -> None:
    query = Query()
    messages = query.tasks(query.plan(0))
    query.commit(messages, 0)
    query.coordinator(0).abort(messages, 0)
    assert query.rows() == [0, 1]
    assert EntryKind.ABORTED not in query.kinds()


def test_abort_is_journalled_before_a_handle_is_aborted() -> None:
    query = Query(CrashAt())
    messages = query.tasks(query.plan(0))
    query.journal_store.armed = "aborted"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        query.coordinator(0).abort(messages, 0)
    assert len(query.transactions.unfinished()) == 2


def test_an_aborted_run_has_ended_and_its_micro_batch_is_written_again() -> None:
    query = Query()
    messages = query.tasks(query.plan(0))
    query.coordinator(0).abort(messages, 0)
    assert query.transactions.unfinished() == []
    with pytest.raises(FencedError, match="RUN_ENDED"):
        query.commit(messages, 0)
    query.run(0)
    assert query.rows() == [0, 1]


def test_the_driver_that_was_overtaken_neither_commits_nor_aborts_anything() -> None:
    query = Query()
    old = query.tasks(query.plan(0, "A"))
    new = query.tasks(query.plan(0, "B"))
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        query.commit(old, 0, "A")
    query.coordinator(0, "A").abort([None, None], 0)
    query.coordinator(0, "A").abort(old, 0)
    assert len(query.transactions.unfinished()) == 2
    query.commit(new, 0, "B")
    assert query.rows() == [0, 1]
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        query.plan(1, "A")
    assert query.kinds()[-1] == EntryKind.FENCED


def test_the_driver_that_was_overtaken_records_no_micro_batch_without_messages() -> None:
    """No acknowledgement says whose it is: the driver that the newest run is of does."""
    query = Query()
    query.plan(0, "A")
    query.plan(0, "B")
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        query.commit([], 0, "A")
    assert EntryKind.DECIDED not in query.kinds()
    query.commit([], 0, "B")
    query.committed = 0
    assert query.ledger().accounted == 0
    query.run(1, "B")
    assert query.rows() == [10, 11]


@pytest.mark.parametrize(("left", "decides"), [(None, True), (5.1, True), (5.0, False), (0.0, False), (-1.0, False)])
def test_nothing_is_decided_on_a_transaction_with_too_little_time_left(
    left: float | None, decides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query()
    messages = query.tasks(query.plan(0))
    alive = [HandleState(Outcome.PREPARED), HandleState(Outcome.PREPARED, left, 5.0)]
    monkeypatch.setattr(RecordingSink, "inspect", lambda self, handles: alive[: len(handles)])
    if decides:
        query.commit(messages, 0)
    else:
        with pytest.raises(RetriableError, match=r"HANDLE_NOT_ALIVE.*s left.*5 s must remain: raise its timeout"):
            query.commit(messages, 0)
    assert (EntryKind.DECIDED in query.kinds()) is decides


def test_a_transaction_that_is_gone_at_the_look_is_not_decided() -> None:
    query = Query()
    messages = query.tasks(query.plan(0))
    query.transactions.expire(1)
    with pytest.raises(RetriableError, match="HANDLE_NOT_ALIVE"):
        query.commit(messages, 0)
    assert EntryKind.DECIDED not in query.kinds()
    query.coordinator(0).abort(messages, 0)
    query.run(0)
    assert query.rows() == [0, 1]


def lost_after_decision(committed: Sequence[int]) -> Query:
    """A decided micro-batch of two parts; those of `committed` were committed, the others expired, the driver died."""
    query = Query(CrashAt())
    messages = query.tasks(query.plan(0))
    query.journal_store.armed = "settled"  # type: ignore[attr-defined]
    outcomes = query.transactions
    query.transactions = query.sinks[-1].store
    for number in (1, 2):
        if number not in committed:
            outcomes.expire(number)
    look = RecordingSink.inspect
    RecordingSink.inspect = lambda self, handles: [HandleState(Outcome.PREPARED) for _ in handles]  # type: ignore[method-assign]
    try:
        with pytest.raises((KeyboardInterrupt, RetriableError)):
            query.commit(messages, 0)
    finally:
        RecordingSink.inspect = look  # type: ignore[method-assign]
    query.journal_store.armed = ""  # type: ignore[attr-defined]
    return query


def test_a_decision_of_which_nothing_was_committed_and_something_is_lost_is_void_and_written_anew() -> None:
    query = lost_after_decision(committed=[])
    plan = query.plan(0, "B")
    assert (plan.mode, query.kinds()[-1]) == (Mode.WRITE, EntryKind.VOID)
    query.commit(query.tasks(plan), 0, "B")
    assert query.rows() == [0, 1]


def test_the_lost_part_of_a_part_committed_decision_is_repaired_alone() -> None:
    query = lost_after_decision(committed=[1])
    plan = query.plan(0, "B")
    assert plan.mode is Mode.REPAIR
    assert set(plan.repairs) == {(1, "")}
    query.commit(query.tasks(plan), 0, "B")
    assert query.rows() == [0, 1]
    assert query.kinds()[-3:] == [EntryKind.VERDICT, EntryKind.REPAIR, EntryKind.SETTLED]


@pytest.mark.parametrize("others", [(0, 1), (1,)], ids=["all", "the lost part"])
def test_a_repair_with_other_rows_is_refused_with_both_figures(others: Sequence[int]) -> None:
    query = lost_after_decision(committed=[1])
    plan = query.plan(0, "B")
    messages = [query.task(plan, partition, row=5 if partition in others else 0) for partition in range(2)]
    with pytest.raises(ReplayMismatchError, match=r"digest 0.*digest 5"):
        query.commit(messages, 0, "B")
    assert query.rows() == [0]


def test_a_repair_with_another_number_of_writer_tasks_is_refused() -> None:
    query = lost_after_decision(committed=[1])
    plan = query.plan(0, "B")
    with pytest.raises(ReplayMismatchError, match="writer tasks: recorded 2, now 3"):
        query.commit(query.tasks(plan, partitions=3), 0, "B")


def test_a_repair_that_was_journalled_is_committed_by_the_next_planning() -> None:
    query = lost_after_decision(committed=[1])
    messages = query.tasks(query.plan(0, "B"))
    query.journal_store.armed = "settled"  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        query.commit(messages, 0, "B")
    query.journal_store.armed = ""  # type: ignore[attr-defined]
    assert query.plan(0, "C").mode is Mode.DRAIN
    assert query.rows() == [0, 1]


def test_an_unknown_outcome_stops_and_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    query = lost_after_decision(committed=[1])
    unknown = lambda self, handles: [HandleState(Outcome.UNKNOWN, evidence="no marker") for _ in handles]  # noqa: E731
    monkeypatch.setattr(RecordingSink, "inspect", unknown)
    with pytest.raises(AmbiguousOutcomeError, match=r"no marker.*resolve"):
        query.plan(0, "B")


def test_acknowledgements_of_two_runs_are_refused() -> None:
    query = Query()
    old = query.tasks(query.plan(0, "A"))
    new = query.tasks(query.plan(0, "B"))
    with pytest.raises(ProtocolError, match="PROTOCOL_VIOLATED"):
        query.commit([old[0], new[1]], 0, "B")


@pytest.mark.parametrize("batch", [0, 3])
def test_a_micro_batch_that_the_journal_does_not_expect_stops_the_query(batch: int) -> None:
    query = Query()
    query.run(0)
    query.run(1)
    query.committed = batch - 1
    with pytest.raises(LocationError, match=r"BATCHES_NOT_ACCOUNTED.*--as-is"):
        query.plan(batch)


def test_a_copied_location_stops_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query()
    query.run(0)
    elsewhere = QueryView("q", "/copy", 1, 0, lines("line 1"), lines("line 0"))
    monkeypatch.setattr(query, "view", lambda batch: elsewhere)
    with pytest.raises(LocationError, match=r"LOCATION_MOVED.*--as-is"):
        query.plan(1)


def test_a_query_runs_on_over_snapshots_and_reads_a_bounded_number_of_files() -> None:
    query = Query()
    for batch in range(75):
        query.run(batch)
    assert query.ledger().position > 2 * SNAPSHOT_EVERY
    assert len(query.journal_store.names()) < 2 * SNAPSHOT_EVERY
    assert query.ledger().accounted == 74
    assert len(query.rows()) == 150


# -- the journal --------------------------------------------------------------------------------------------------------

RUN = run_body(location="/l")


def append_runs(store: JournalStore, count: int) -> None:
    for _ in range(count):
        journal = Journal(store)
        journal.load()
        journal.append(fact_of(EntryKind.RUN, RUN), lambda ledger: None)
        journal.fold(every=4)


def test_of_two_creates_of_one_number_on_a_local_disk_one_succeeds(tmp_path: Path) -> None:
    store = LocalJournalStore(str(tmp_path / "log"))
    assert store.create("1.json", b"first")
    assert not store.create("1.json", b"second")
    assert store.read("1.json") == b"first"
    assert store.names() == ["1.json"]


def test_a_create_that_wakes_up_after_its_number_was_folded_and_deleted_counts_for_nothing(tmp_path: Path) -> None:
    store = LocalJournalStore(str(tmp_path / "log"))
    late = Journal(store)
    late.load()
    append_runs(store, 12)
    assert "1.json" not in store.names()
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        late.append(fact_of(EntryKind.RUN, RUN), lambda ledger: None)
    journal = Journal(store)
    assert journal.load().position == 12


def test_what_a_killed_create_left_is_deleted_with_the_entries_that_a_snapshot_folds(tmp_path: Path) -> None:
    store = LocalJournalStore(str(tmp_path / "log"))
    append_runs(store, 1)
    for name in ("1.json", "4.snapshot.json", "12.json"):
        (tmp_path / "log" / f".{name}.{'0' * 32}").write_bytes(b"half")
    append_runs(store, 11)
    assert [name for name in store.names() if name.startswith(".")] == [f".12.json.{'0' * 32}"]


class LostAnswer(MemoryJournalStore):
    """Creates, or does not, and raises in either case."""

    def __init__(self, creates: bool) -> None:
        super().__init__()
        self.creates = creates

    def create(self, name: str, data: bytes) -> bool:
        if self.creates:
            super().create(name, data)
        raise OSError("connection reset")


def test_a_create_whose_answer_was_lost_is_recognised_by_its_nonce() -> None:
    journal = Journal(LostAnswer(creates=True))
    assert journal.append(fact_of(EntryKind.RUN, RUN), lambda ledger: None).number == 1


class Late(MemoryJournalStore):
    """The first create of a decision fails, and takes place when it is tried again."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: tuple[str, bytes] | None = None

    def create(self, name: str, data: bytes) -> bool:
        if json.loads(data)["kind"] != EntryKind.DECIDED:
            return super().create(name, data)
        if self.under_way is None:
            self.under_way = name, data
            raise OSError("timed out")
        super().create(*self.under_way)
        return super().create(name, data)


def test_a_decision_that_takes_place_late_is_the_one_that_was_tried_again() -> None:
    query = Query(store := Late())
    query.run(0)
    assert query.kinds() == ["run", "mark", "decided", "settled"]
    assert query.rows() == [0, 1]
    assert store.under_way is not None
    assert store.read("3.json") == store.under_way[1]
    query.run(1)
    assert query.rows() == [0, 1, 10, 11]


def test_a_decision_that_takes_place_late_is_found_by_the_look_before_it_is_tried_again() -> None:
    query = Query(store := Late())
    plan = query.plan(0)
    messages = query.tasks(plan)
    coordinator, sink, looks = query.coordinator(0), query.sinks[-1], list[int]()
    inspect = sink.inspect

    def gone(handles: Sequence[Any]) -> Sequence[HandleState]:
        states = inspect(handles)
        looks.append(len(states))
        if store.under_way is None:
            return states
        MemoryJournalStore.create(store, *store.under_way)
        return [replace(state, outcome=Outcome.LOST) for state in states]

    sink.inspect = gone  # type: ignore[method-assign]
    coordinator.commit(messages, 0)
    assert looks == [2, 2]
    assert query.kinds() == ["run", "mark", "decided", "settled"]
    assert query.rows() == [0, 1]


def test_a_create_that_failed_is_an_error_that_names_the_file() -> None:
    with pytest.raises(JournalError, match=r"JOURNAL_STORE_FAILED.*1\.json"):
        Journal(LostAnswer(creates=False)).append(fact_of(EntryKind.RUN, RUN), lambda ledger: None)


@pytest.mark.parametrize(
    ("change", "condition"),
    [
        (lambda data: data[:-20], "JOURNAL_DAMAGED"),
        (lambda data: data.replace(b'"driver":"d"', b'"driver":"e"'), "JOURNAL_DAMAGED"),
        (lambda data: data.replace(b'"format":2', b'"format":3'), "FORMAT_UNKNOWN"),
    ],
)
def test_a_torn_changed_or_newer_entry_is_refused_by_name(change: Any, condition: str) -> None:
    data = encode(Entry(1, EntryKind.RUN, "n", 0, RUN))
    assert decode(data, "1.json").body == RUN
    with pytest.raises(JournalError, match=rf"{condition}.*1\.json"):
        decode(change(data), "1.json")


def test_an_entry_that_does_not_fold_is_never_written() -> None:
    store = MemoryJournalStore()
    with pytest.raises(JournalError, match="JOURNAL_DAMAGED"):
        Journal(store).append(fact_of(EntryKind.SETTLED, settled(9)), lambda ledger: None)
    assert store.names() == []


def test_an_accepted_difference_may_have_no_rows() -> None:
    query = lost_after_decision(committed=[1])
    query.plan(0, "B")
    journal = Journal(query.journal_store)
    checkpoint = journal.load().unsettled()[0].id
    choice = {"checkpoint": checkpoint, "batch": 0, "partition": 1, "decision": "accept-difference"}
    journal.append(fact_of(EntryKind.RESOLVE, choice), lambda ledger: None)
    plan = query.plan(0, "C")
    empty = Acknowledgement(plan.token, 0, 1, 1, False, [Part(1, None, 0, 0, "none")], plan.sources)
    query.commit([query.task(plan, 0), empty], 0, "C")
    assert query.rows() == [0]
    assert query.ledger().unsettled() == []


def test_a_driver_that_was_started_before_another_claimed_its_run_claims_none() -> None:
    """What it has in memory of the micro-batch may be another file than the one that is there by now."""
    query = Query()
    query.run(0)
    query.started = query.ledger().position
    query.plan(1, "B")
    with pytest.raises(FencedError, match=r"RUN_SUPERSEDED.*driver B"):
        query.plan(1, "C")
    query.started = query.ledger().position
    query.run(1, "C")
    assert query.rows() == [0, 1, 10, 11]


def test_a_driver_that_was_started_before_a_rewind_was_done_claims_no_run() -> None:
    query = Query()
    query.run(0)
    query.committed = 0
    query.started = query.ledger().position
    journal = Journal(query.journal_store)
    journal.load()
    begun = journal.append(fact_of(EntryKind.REWIND_BEGUN, {"checkpoint": None}), lambda ledger: None).number
    journal.append(fact_of(EntryKind.REWIND_DONE, {"begun": begun, "batch": 0, "keep": None}), lambda ledger: None)
    for driver in ("A", "B"):  # also the one whose run was the newest before
        with pytest.raises(FencedError, match=r"RUN_SUPERSEDED.*a rewind"):
            query.plan(1, driver)
    query.started = query.ledger().position
    query.run(1, "B")
    assert query.rows() == [0, 1, 10, 11]


def test_nothing_is_decided_where_spark_has_another_file_of_offsets_than_the_tasks_read() -> None:
    """A former driver that stood still in Spark's rename has put its own over it: the next micro-batch would begin there."""
    query = Query()
    messages = query.tasks(query.plan(0))
    view = query.view
    query.view = lambda batch: replace(view(batch), lines=lines("another"))  # type: ignore[method-assign]
    with pytest.raises(RetriableError, match=r"CONCURRENT_COMMIT.*offsets/0 is not the file from which the tasks"):
        query.commit(messages, 0)
    assert "decided" not in query.kinds()


def test_a_driver_that_is_superseded_in_its_commit_does_not_call_the_rows_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query()
    messages = query.tasks(query.plan(0))
    coordinator = query.coordinator(0)

    def fenced(handles: Sequence[Any], checkpoint: Any) -> None:
        query.plan(0, "B")  # settles what A has decided
        raise TransactionLostError("TRANSACTION_LOST", handles=[dict(each) for each in handles], reason="fenced")

    monkeypatch.setattr(query.sinks[-1], "commit", fenced)
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        coordinator.commit(messages, 0)
    assert Journal(query.journal_store).load().settled == 0


@pytest.mark.parametrize("repairs", [False, True], ids=["C5", "repair"])
def test_a_driver_that_is_superseded_before_it_looks_does_not_call_its_rows_lost(repairs: bool) -> None:
    """Its successor has aborted them, or committed them: what the store answers is no news of this run's."""
    query = lost_after_decision(committed=[1]) if repairs else Query()
    messages = query.tasks(query.plan(0, "B"), row=0)
    coordinator, sink = query.coordinator(0, "B"), query.sinks[-1]
    inspect = sink.inspect

    def late(handles: Sequence[Any]) -> Sequence[HandleState]:
        query.plan(0, "C")
        return inspect(handles)

    sink.inspect = late  # type: ignore[method-assign]
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        coordinator.commit(messages, 0)


def test_a_driver_that_is_superseded_asks_no_store_before_it_says_so() -> None:
    query = Query()
    messages = query.tasks(query.plan(0))
    query.plan(0, "B")
    coordinator, sink = query.coordinator(0), query.sinks[-1]
    asked: list[Any] = []

    def inspect(handles: Sequence[Any]) -> Sequence[HandleState]:
        asked.extend(handles)
        return []

    sink.inspect = inspect  # type: ignore[method-assign]
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        coordinator.commit(messages, 0)
    assert asked == []


@pytest.mark.parametrize("decided", [True, False])
def test_a_planning_does_not_call_lost_what_a_former_commit_commits_meanwhile(decided: bool) -> None:
    """A commit of the query's former start, in the same driver, goes on; its sweep lets the store forget the handles."""
    query = Query()
    query.run(0)
    plan, former = query.plan(1), Journal(query.journal_store)
    parts = [part.to_json() for message in query.tasks(plan) if message for part in message.parts]
    body = recorded(1, parts, sources=plan.sources, run=plan.token)
    query.committed = 1
    coordinator, sink = query.coordinator(2), query.sinks[-1]

    def append(kind: str, body: dict[str, Any]) -> None:
        former.load()
        former.append(fact_of(kind, body), lambda ledger: None)

    if decided:
        append(EntryKind.DECIDED, {**body, "covers": []})
    else:
        append(EntryKind.PREPARED, body)

    def late(handles: Sequence[Any]) -> Sequence[HandleState]:
        if not decided:
            append(EntryKind.DECIDED, {**body, "covers": [1]})
        append(EntryKind.SETTLED, settled(former.ledger.unsettled()[0].id))
        return [HandleState(Outcome.LOST) for _ in handles]

    sink.inspect = late  # type: ignore[method-assign]
    with pytest.raises(FencedError, match=r"CONCURRENT_COMMIT.*in the meantime"):
        coordinator.plan()
