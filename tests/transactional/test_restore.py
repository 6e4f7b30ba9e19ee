"""What a savepoint takes of a journal, how one begins there, and that nothing follows `moved`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
import pytest

from tests.transactional.bodies import fact_of, lines, recorded, restore_begun, restored, run_body, settled
from transactional.barrier import sources_digest
from transactional.capabilities import KeepsEvidence
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entry import EntryKind
from transactional.errors import FencedError, JournalError, LocationError, PutBackError, TwoPhaseCommitError
from transactional.history import History
from transactional.journal import Journal, MemoryJournalStore
from transactional.ledger import Ledger
from transactional.recovery import QueryView, check_account, check_restored, unrecorded_repartitions
from transactional.restore import begins_at, begins_far_above, cut, may_move
from transactional.sink import Options, TransactionContext
from transactional.testing import MemoryTransactions, RecordingSink

LINE = '{"source": "barrier-kafka", "topics": {"in": {"0": 1}}, "barrier": null}'

SOURCES = sources_digest(lines(LINE))


def part(number: int) -> dict[str, Any]:
    return {"partition": number, "handle": {"h": number}, "rows": 1, "bytes": 1, "digest": "1:0"}


def journal_of(*entries: tuple[str, dict[str, Any]]) -> Journal:
    journal = Journal(MemoryJournalStore())
    for kind, body in entries:
        journal.append(fact_of(kind, body), lambda _: None)
    return journal


def three(*more: tuple[str, dict[str, Any]]) -> Journal:
    """Checkpoint 3 over the micro-batches 0 and 1, checkpoint 5 over 2; 3 is prepared."""
    return journal_of(
        (EntryKind.RUN, run_body()),
        (EntryKind.PREPARED, recorded(0, [part(0)])),
        (EntryKind.DECIDED, recorded(1, [part(1)], [0], hooks={"m:H": "c3RhdGU="})),
        (EntryKind.SETTLED, settled(3, out=7)),
        (EntryKind.DECIDED, recorded(2, [part(2)], [])),
        (EntryKind.SETTLED, settled(5)),
        (EntryKind.PREPARED, recorded(3, [part(3)])),
        (EntryKind.REQUEST, {"what": "checkpoint"}),
        *more,
    )


def test_a_ledger_is_cut_to_a_checkpoint_with_nothing_open() -> None:
    found = cut(three().ledger, 3)
    assert (sorted(found.checkpoints), sorted(found.batches), found.accounted) == ([3], [0, 1], 1)
    assert (found.undecided(), found.unsettled(), found.known_handles(), found.request) == ([], [], [], None)
    assert found.checkpoints[3].output == {"out": 7}
    assert found.position == 8, "numbers that were taken stay taken"
    assert Ledger.from_json(found.to_json()) == found


@pytest.mark.parametrize("checkpoint", [4, 9])
def test_only_a_settled_checkpoint_can_be_cut_to(checkpoint: int) -> None:
    ledger = three((EntryKind.DECIDED, recorded(4, [part(4)], [3]))).ledger
    with pytest.raises(LocationError, match="CHECKPOINT_NOT_SETTLED"):
        cut(ledger, checkpoint)
    assert cut(ledger, 5).accounted == 2


@pytest.mark.parametrize("again", [2, 3], ids=["its last micro-batch, which is over", "a later one"])
def test_what_a_rewind_lets_run_again_is_not_in_the_copy_of_a_checkpoint(again: int) -> None:
    ledger = three().ledger
    ledger.replay = again
    found = cut(ledger, 5)
    assert (found.replay, found.accounted) == (None, 2)


def test_a_checkpoint_of_which_a_micro_batch_is_void_can_t_be_cut_to() -> None:
    ledger = three().ledger
    ledger.voided = [2]
    with pytest.raises(LocationError, match=r"CHECKPOINT_NOT_SETTLED.*to run again: 2\."):
        cut(ledger, 5)
    ledger.voided = [3]
    assert cut(ledger, 5).voided == []


def test_a_copy_is_another_query_that_knows_whose_prefixes_it_must_not_use() -> None:
    found = restored(cut(three().ledger, 5), 5, False, "there", 8)
    assert (found.query, found.location, found.originals, found.runs) == ("", "there", ["p"], {})
    assert found.restored is not None
    assert (found.restored.origin, found.restored.batch, found.restored.claim) == ("here", 2, False)
    check_account(found, QueryView("new", "there", 3, 2, lines("x"), None))


def test_a_claimed_journal_is_the_querys_own_above_all_numbers_that_were_taken() -> None:
    found = restored(cut(three().ledger, 5), 5, True, "there", 12)
    assert (found.query, found.location, found.position, found.originals) == ("q", "there", 12, [])
    assert found.newest_run is not None
    assert found.newest_run.ended == "moved"
    assert (begins_at(12, found), begins_at(3, found)) == (12, 12)
    assert begins_far_above(12, 2) > begins_far_above(12, 1) > 100_000


# -- a journal that is closed ----------------------------------------------------------------------------------------


def begun(claim: bool = True) -> Journal:
    """The first entry of a restore."""
    return journal_of((EntryKind.RESTORING, restore_begun(cut(three().ledger, 5), 5, claim, "there").to_json()))


@pytest.mark.parametrize("kind", sorted(EntryKind.ALL - {EntryKind.SNAPSHOT, EntryKind.OPENED}))
def test_nothing_but_opened_follows_the_first_entry_of_a_restore(kind: str) -> None:
    journal = begun()
    with pytest.raises(LocationError, match=r"RESTORE_UNFINISHED.*claim: True") as caught:
        journal.append(fact_of(kind, {}), lambda _: None)
    assert (caught.value.parameters["location"], caught.value.parameters["savepoint"]) == ("there", "s")


def test_a_query_that_starts_where_a_restore_is_unfinished_touches_nothing() -> None:
    sink, journal = recording(), begun()
    with pytest.raises(LocationError, match="RESTORE_UNFINISHED"):
        coordinator(journal, sink, 3).plan()
    assert (journal.load().position, sink.calls) == (1, [])


@pytest.mark.parametrize("claim", [True, False])
def test_an_opened_journal_goes_on_far_above_its_two_entries(claim: bool) -> None:
    journal = begun(claim)
    closed = journal.ledger.restoring
    assert closed is not None
    assert journal.append(fact_of(EntryKind.OPENED, {"position": 40}), lambda _: None).number == 2
    assert journal.load() == journal.ledger == Ledger.opened(closed, 40)
    assert journal.ledger.accounted == 2
    assert journal.append(fact_of(EntryKind.RUN, run_body(location="there")), lambda _: None).number == 41
    again = Journal(journal._store)
    assert again.load() == journal.ledger
    for _ in range(2):
        again.fold(every=1)
        again.append(fact_of(EntryKind.MARK, {"run": 41, "mark": {}}), lambda _: None)
    assert Journal(journal._store).load() == again.ledger
    assert sorted(journal._store.names()) == ["41.snapshot.json", "42.json", "42.snapshot.json", "43.json"]


def test_a_restore_neither_begins_in_a_journal_in_use_nor_opens_one_that_is_open() -> None:
    body = begun().ledger.restoring
    assert body is not None
    with pytest.raises(JournalError, match="JOURNAL_DAMAGED"):
        three((EntryKind.RESTORING, asdict(body)))
    with pytest.raises(JournalError, match="JOURNAL_DAMAGED"):
        three((EntryKind.OPENED, {"position": 40}))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ((), r"run 1 has not ended there"),
        (((EntryKind.STOPPED, {"run": 1}),), ""),
        (((EntryKind.REWIND_BEGUN, {"checkpoint": 5}),), "a rewind was started"),
        (
            (
                (EntryKind.REWIND_BEGUN, {"checkpoint": 5}),
                (EntryKind.REWIND_DONE, {"begun": 7, "batch": 2, "keep": None}),
            ),
            "",
        ),
        (
            (
                (EntryKind.REWIND_BEGUN, {"checkpoint": 3}),
                (EntryKind.REWIND_DONE, {"begun": 7, "batch": 1, "keep": None}),
            ),
            "the last checkpoint there is 3",
        ),
        (((EntryKind.PREPARED, recorded(3, [part(3)])),), r"micro-batches \[3\] are not settled there"),
        (((EntryKind.DECIDED, recorded(3, [part(3)], [])),), r"micro-batches \[3\] are not settled there"),
        (
            (
                (EntryKind.DECIDED, recorded(3, [part(3)], [])),
                (EntryKind.SETTLED, settled(7)),
                (EntryKind.STOPPED, {"run": 1}),
            ),
            "the last checkpoint there is 7, but the savepoint has 5",
        ),
    ],
)
def test_a_query_is_moved_only_if_it_has_stopped_at_the_savepoint_s_checkpoint(
    more: tuple[tuple[str, dict[str, Any]], ...], why: str
) -> None:
    entries = (
        (EntryKind.RUN, run_body()),
        (EntryKind.PREPARED, recorded(0, [part(0)])),
        (EntryKind.DECIDED, recorded(1, [part(1)], [0])),
        (EntryKind.SETTLED, settled(3)),
        (EntryKind.DECIDED, recorded(2, [part(2)], [])),
        (EntryKind.SETTLED, settled(5)),
    )
    ledger = journal_of(*entries, *more).ledger
    saved = cut(journal_of(*entries).ledger, 5)
    saved.checkpoints[5].time = ledger.checkpoints[5].time if 5 in ledger.checkpoints else 0
    judge = may_move(saved, "s", 5, "there")
    if not why:
        judge(ledger)
        return
    with pytest.raises(LocationError, match=f"ORIGIN_NOT_AT_SAVEPOINT.*{why}.*`barrier rewind here --to 5`"):
        judge(ledger)


# -- moved -----------------------------------------------------------------------------------------------------------


def moved() -> tuple[str, dict[str, Any]]:
    return EntryKind.MOVED, {"begun": 9, "location": "there", "savepoint": "s", "checkpoint": 5}


@pytest.mark.parametrize("kind", sorted(EntryKind.ALL - {EntryKind.SNAPSHOT}))
def test_no_entry_of_any_kind_follows_moved(kind: str) -> None:
    journal = three((EntryKind.REWIND_BEGUN, {"checkpoint": None}), moved())
    with pytest.raises(FencedError, match=r"LOCATION_MOVED_ON.*there") as caught:
        journal.append(fact_of(kind, {}), lambda _: None)
    assert caught.value.parameters == {"location": "there", "entry": 10, "savepoint": "s", "checkpoint": 5}


def test_a_driver_whose_number_was_taken_by_moved_is_fenced_by_it() -> None:
    store = MemoryJournalStore()
    one, other = Journal(store), Journal(store)
    one.append(fact_of(EntryKind.RUN, run_body()), lambda _: None)
    other.load()
    one.append(fact_of(EntryKind.MOVED, moved()[1]), lambda _: None)
    with pytest.raises(FencedError, match="LOCATION_MOVED_ON"):
        other.append(fact_of(EntryKind.DECIDED, recorded(0, [], [])), lambda _: None)
    assert sorted(store.files) == ["1.json", "2.json"]


def recording() -> RecordingSink:
    return RecordingSink(Options({"transactionalIdPrefix": "p"}), pa.schema([]))


def coordinator(journal: Journal, sink: RecordingSink, batch: int) -> CheckpointCoordinator:
    view = QueryView("q", "here", batch, batch - 1, lines(LINE), lines(LINE))
    return CheckpointCoordinator(journal, sink, RunSettings("d", "x", "s", "p"), view)


@pytest.mark.parametrize(
    "call",
    [
        lambda each: each.plan(),
        lambda each: each.commit([], 3),
    ],
    ids=["planning", "commit"],
)
def test_a_query_that_runs_where_it_was_moved_away_touches_nothing(
    call: Callable[[CheckpointCoordinator], Any],
) -> None:
    sink = recording()
    journal = three((EntryKind.REWIND_BEGUN, {"checkpoint": None}), moved())
    before = journal.ledger.copy()
    with pytest.raises(FencedError, match=r"LOCATION_MOVED_ON.*there"):
        call(coordinator(journal, sink, 3))
    coordinator(journal, sink, 3).abort([None], 3)
    assert (journal.load(), sink.calls) == (before, [])


def test_a_driver_that_finds_its_query_s_rows_of_elsewhere_is_led_there() -> None:
    store = MemoryJournalStore()
    journal, other = Journal(store), Journal(store)
    other.append(fact_of(EntryKind.RUN, run_body()), lambda _: None)
    journal.load()

    class MovedMeanwhile(KeepsEvidence, RecordingSink):
        def checkHistory(self, history: History) -> dict[str, Any]:
            if other.ledger.moved is None:
                other.append(fact_of(*moved()), lambda _: None)
            raise PutBackError("LOCATION_PUT_BACK", evidence="it holds checkpoint 9 of the query")

    sink = MovedMeanwhile(Options({"transactionalIdPrefix": "p"}), pa.schema([]))
    with pytest.raises(FencedError, match=r"LOCATION_MOVED_ON.*there"):
        coordinator(journal, sink, 0).plan()


# -- state that nobody takes -----------------------------------------------------------------------------------------


def line(**topics: int) -> str:
    places = ", ".join(f'"{topic}": {{"0": {place}}}' for topic, place in topics.items())
    return f'{{"source": "barrier-kafka", "topics": {{{places}}}, "barrier": null}}'


def test_a_state_or_a_position_that_nobody_takes_any_more_is_named() -> None:
    begun = restored(cut(three().ledger, 3), 3, False, "there", 8)
    view = QueryView("new", "there", 2, 1, lines(line(a=5)), lines(line(a=3, b=4)))
    with pytest.raises(LocationError, match=r"STATE_NOT_RESTORED.*hook m:H.*topic b.*allowNonRestoredState") as caught:
        check_restored(begun, view, ["m:Other"])
    assert (caught.value.parameters["hooks"], caught.value.parameters["topics"]) == (["m:H"], ["b"])
    with pytest.raises(LocationError, match=r"the position in the topic b,"):
        check_restored(begun, view, ["m:H"])
    check_restored(begun, replace(view, lines=lines(line(a=5, b=4, c=1))), ["m:H", "m:New"])
    check_restored(three().ledger, view, [])


def test_after_its_first_micro_batch_a_restored_query_may_change_as_any_other() -> None:
    begun = restored(cut(three().ledger, 3), 3, False, "there", 8)
    begun.batches[2] = three().ledger.batches[2]
    check_restored(begun, QueryView("new", "there", 3, 2, lines(line(a=5)), lines(line(b=3))), [])


# -- Spark's repartition ---------------------------------------------------------------------------------------------


def repartitioned(ledger: Ledger, first: int, count: int = 1, committed: int | None = None) -> QueryView:
    batches = range(first, first + count)
    at_work = first + count
    return QueryView(
        "q",
        ledger.location,
        at_work,
        at_work - 1 if committed is None else committed,
        lines(LINE),
        lines(LINE),
        repartitions=lambda: batches,
    )


def test_micro_batches_of_a_repartition_are_accounted_for_and_no_others() -> None:
    ledger = three().ledger
    assert unrecorded_repartitions(ledger, repartitioned(ledger, 4, 2)) == [4, 5]
    check_account(ledger, repartitioned(ledger, 4, 2))
    with pytest.raises(LocationError, match="BATCHES_NOT_ACCOUNTED"):
        check_account(ledger, replace(repartitioned(ledger, 4, 2), repartitions=lambda: [5]))
    with pytest.raises(LocationError, match="BATCHES_NOT_ACCOUNTED"):
        check_account(ledger, replace(repartitioned(ledger, 5), repartitions=lambda: [5]))
    ledger.voided = [4]
    with pytest.raises(TwoPhaseCommitError, match="PREPARED_LOST"):
        check_account(ledger, repartitioned(ledger, 4))


def test_a_repartition_is_a_checkpoint_of_its_own_that_keeps_the_hooks_states() -> None:
    journal = journal_of(
        (EntryKind.RUN, run_body()),
        (EntryKind.DECIDED, recorded(0, [part(0)], [], hooks={"m:H": "c3RhdGU="}, sources=SOURCES)),
        (EntryKind.SETTLED, settled(2)),
    )
    sink = recording()
    view = repartitioned(journal.ledger, 1, 2)
    plan = CheckpointCoordinator(journal, sink, RunSettings("d", "x", "s", "p"), view).plan()
    found = journal.load()
    assert (plan.batch, plan.mode.value, found.accounted, found.decided) == (3, "write", 2, 2)
    newest = found.completed
    assert newest is not None
    assert (newest.batches, newest.reason, newest.hooks) == ([2], "REPARTITION", {"m:H": "c3RhdGU="})
    again = CheckpointCoordinator(journal, sink, RunSettings("d", "x", "s", "p"), view)
    before = journal.ledger.position
    again.plan()
    assert journal.load().position == before, "it is recorded once"


def test_a_repartition_behind_prepared_micro_batches_waits_with_them_for_the_next_decision() -> None:
    journal = journal_of((EntryKind.RUN, run_body()), (EntryKind.PREPARED, recorded(0, [], sources=SOURCES)))
    sink = recording()
    view = repartitioned(journal.ledger, 1)
    CheckpointCoordinator(journal, sink, RunSettings("d", "x", "s", "p"), view).plan()
    found = journal.load()
    assert [record.batch for record in found.undecided()] == [0, 1]
    assert found.decided == -1, "a rewind goes back behind both"


def test_a_copys_first_run_leaves_what_its_original_has_prepared_alone() -> None:
    store = MemoryTransactions()
    journal = journal_of((EntryKind.RUN, run_body(sink="x")), (EntryKind.MARK, {"run": 1, "mark": {"epoch": 0}}))
    number = store.begin(TransactionContext("q", 0, 0, 0, "p", "n"))
    store.prepare(number)
    journal.append(
        fact_of(EntryKind.ADOPT, {"location": "there", "suffix": "-1", "base": 0, "drop": True}), lambda _: None
    )

    def under(prefix: str) -> RecordingSink:
        return RecordingSink(Options({"transactionalIdPrefix": prefix}), pa.schema([]), store)

    view = QueryView("q", "there", 1, 0, lines(LINE), lines(LINE))
    CheckpointCoordinator(journal, under("q-1"), RunSettings("e", "x", "s", "q-1"), view, under).plan()
    assert store.unfinished() == [number]
