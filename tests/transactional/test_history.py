"""What a new run asks its store before it begins: the real coordinator over a store that knows its newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.transactional.bodies import fact_of, lines, recorded, restored, run_body, settled
from transactional.capabilities import GuardsRuns, KeepsEvidence
from transactional.coordinator import CheckpointCoordinator, RunSettings
from transactional.entry import EntryKind
from transactional.errors import FencedError, LocationError, PutBackError, StoreReplacedError
from transactional.history import History, history_of
from transactional.journal import Journal, MemoryJournalStore
from transactional.ledger import Ledger, RunRecord
from transactional.recovery import QueryView
from transactional.restore import cut
from transactional.sink import Cutoff, Options
from transactional.testing import MemoryTransactions, RecordingSink

ASKED = RunRecord(0, "", "", "x", "", "p", {})
"""The run that asks for its history."""

SCHEMA = pa.schema([("n", pa.int64())])


class Asking(GuardsRuns, KeepsEvidence, RecordingSink):
    """Asks a function about its history."""

    answer: Callable[[History], Mapping[str, Any]] = staticmethod(lambda history: {})
    identity: Mapping[str, str] = {"cluster": "one"}
    replaced: Exception = StoreReplacedError("STORE_REPLACED", "it is another one")
    epoch = 1
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def identify(self) -> Mapping[str, str]:
        return self.identity

    def guardRun(self, mark: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if mark is not None and mark["epoch"] != self.epoch:
            self.meanwhile()
            raise self.replaced
        return mark or {"epoch": self.epoch}

    def checkHistory(self, history: History) -> Mapping[str, Any]:
        return self.answer(history)


class Place:
    """A journal, whose runs ask what a test says."""

    def __init__(self) -> None:
        self.store = MemoryJournalStore()
        self.asked: list[History] = []
        self.epoch = 1
        self.taken = False
        self.meanwhile: Callable[[], object] = lambda: None
        self.refuses: Callable[[History], bool] = lambda history: False

    def journal(self) -> Journal:
        found = Journal(self.store)
        found.load()
        return found

    def append(self, kind: str, body: Mapping[str, Any]) -> int:
        return self.journal().append(fact_of(kind, body), lambda ledger: None).number

    def answer(self, history: History) -> Mapping[str, Any]:
        self.asked.append(history)
        if self.refuses(history):
            raise PutBackError("LOCATION_PUT_BACK", evidence="it holds more")
        return {"holds": len(self.asked)}

    def coordinator(
        self,
        driver: str,
        prefix: str = "p",
        cluster: str = "one",
        batch: int = 0,
        sink: str | None = None,
        under: Callable[[str], Asking] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> CheckpointCoordinator:
        asking = Asking(Options({"transactionalIdPrefix": prefix}), SCHEMA, MemoryTransactions())
        asking.answer, asking.identity, asking.epoch = self.answer, {"cluster": cluster} if cluster else {}, self.epoch
        if self.taken:
            asking.replaced = FencedError("PREFIX_TAKEN", prefix=prefix, reason="epochs")
            asking.meanwhile = self.meanwhile
        view = QueryView("q", "/place", batch, batch - 1, lines(f"line {batch}"), None)
        setup = {} if options is None else {"options": dict(options)}
        settings = RunSettings(
            driver, sink or asking.name(), "options", prefix, setup=setup, host_options={"queryname"}
        )
        return CheckpointCoordinator(Journal(self.store), asking, settings, view, under)

    def claim(self, driver: str, prefix: str = "p", cluster: str = "one") -> History:
        """A new run; what it was told."""
        self.coordinator(driver, prefix, cluster).plan()
        return self.asked[-1]


def test_a_new_run_is_told_what_the_newest_one_has_seen_and_initialised() -> None:
    place = Place()
    first = place.claim("A")
    assert (first.binding, first.seen, first.mark, first.position) == (True, {}, None, 0)
    second = place.claim("B")
    assert (second.binding, second.seen, second.mark, second.position) == (True, {"holds": 1}, {"epoch": 1}, 2)
    place.coordinator("B").plan()
    assert len(place.asked) == 2, "a run that goes on is not asked"


def test_an_older_copy_stops_before_its_journal_grows_however_often_it_is_started() -> None:
    place = Place()
    place.claim("A")
    place.refuses = lambda history: history.binding
    for driver in ("B", "C"):
        with pytest.raises(LocationError, match=r"LOCATION_PUT_BACK.*it holds more.*restore --as-is LOCATION --claim"):
            place.claim(driver)
        with pytest.raises(LocationError, match="LOCATION_PUT_BACK"):
            place.coordinator(driver).close(1)
    assert place.journal().ledger.position == 2


def test_a_run_whose_store_went_on_elsewhere_ends_and_the_next_one_asks_the_store() -> None:
    """A failover, within one driver: what the store holds now is compared before anything is written."""
    place = Place()
    place.claim("A")
    place.epoch = 2
    plan = place.coordinator("A").plan()
    runs = place.journal().ledger.runs
    assert (plan.token, runs[plan.token].mark) == (max(runs), {"epoch": 2})
    assert (place.asked[-1].binding, place.asked[-1].mark) == (True, {"epoch": 1})
    assert place.coordinator("A").plan().token == plan.token
    place.epoch = 3
    place.refuses = lambda history: history.binding
    with pytest.raises(LocationError, match="LOCATION_PUT_BACK"):
        place.coordinator("A").plan()


def test_what_a_driver_journals_meanwhile_is_taken_into_account() -> None:
    """It did so before it changed anything at the store: the refusal is judged again by the journal as it is then."""
    place = Place()
    place.claim("A")

    def busy(history: History) -> bool:
        if history.position == 2:
            place.append(EntryKind.RUN, run_body(prefix="p", location="/place", sink="2pc-recording"))
            return True
        return False

    place.refuses = busy
    assert place.claim("B").position == 3


def test_after_an_adoption_the_next_run_reports_and_the_one_after_it_judges() -> None:
    place = Place()
    place.claim("A")
    place.append(EntryKind.ADOPT, {"location": "/place", "suffix": "", "base": -1, "drop": False})
    assert not place.claim("B", prefix="other").binding, "it accepts all that the stores hold"
    assert not place.claim("C").binding
    found = place.claim("D")
    assert (found.binding, found.seen) == (True, {"holds": 3})


def test_another_prefix_or_store_is_judged_by_its_own_newest_run() -> None:
    place = Place()
    place.claim("A")
    first = place.claim("B", prefix="other")
    assert (first.binding, first.seen, first.mark) == (True, {}, None)
    assert place.claim("C", cluster="two").seen == {}
    assert place.claim("D", prefix="other").seen == {"holds": 2}
    assert place.claim("E").seen == {"holds": 1}


@pytest.mark.parametrize("elsewhere", [{"cluster": "two"}, {"sink": "2pc-other"}])
def test_while_transactions_are_open_the_query_goes_on_where_they_are(elsewhere: Mapping[str, str]) -> None:
    place = Place()
    place.claim("A")
    place.append(EntryKind.PREPARED, recorded(0, []))
    coordinator = place.coordinator("B", cluster=elsewhere.get("cluster", "one"), batch=1, sink=elsewhere.get("sink"))
    with pytest.raises(LocationError, match="UNSETTLED_ELSEWHERE") as refused:
        coordinator.plan()
    assert refused.value.parameters["now"] in elsewhere.values()
    assert place.journal().ledger.position == 3


def test_a_sink_that_names_no_cluster_is_known_by_the_options_that_are_its_own() -> None:
    place = Place()
    place.coordinator("A", cluster="", options={"path": "/a", "queryname": "one"}).plan()
    place.append(EntryKind.PREPARED, recorded(0, []))
    with pytest.raises(LocationError, match="UNSETTLED_ELSEWHERE") as refused:
        place.coordinator("B", cluster="", batch=1, options={"path": "/b"}).plan()
    assert (refused.value.parameters["before"], refused.value.parameters["now"]) == ("path=/a", "path=/b")
    place.coordinator("C", cluster="", batch=1, options={"path": "/a", "queryname": "two"}).plan()


def test_nothing_is_swept_before_the_new_run_is_in_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the former run could still prepare what is swept, and journal it."""
    place = Place()
    place.claim("A")
    newest: list[str] = []

    def sweep(self: Asking, known: Sequence[Any], before: Cutoff) -> int:
        run = place.journal().ledger.newest_run
        newest.append(run.driver if run is not None else "")
        return 0

    monkeypatch.setattr(Asking, "sweep", sweep)
    place.claim("B")
    assert set(newest) == {"B"}


@pytest.mark.parametrize("taken", [False, True])
def test_what_a_run_left_under_its_former_prefix_is_swept_unless_another_query_has_that_now(taken: bool) -> None:
    place = Place()
    place.claim("A")
    swept: list[str] = []

    class Former(Asking):
        def sweep(self, known: Sequence[Any], before: Cutoff) -> int:
            swept.append(self.options["transactionalIdPrefix"])
            return 0

    def under(prefix: str) -> Former:
        sink = Former(Options({"transactionalIdPrefix": prefix}), SCHEMA, MemoryTransactions())
        sink.epoch = 2 if taken else 1
        return sink

    place.coordinator("B", prefix="new", under=under).plan()
    assert swept == ([] if taken else ["p"])


def test_a_run_that_died_before_it_recorded_its_mark_leaves_no_mark_to_compare() -> None:
    place = Place()
    place.claim("A")
    body = run_body(prefix="p", location="/place", sink="2pc-recording", identity={"cluster": "one"}, seen={"holds": 9})
    place.append(EntryKind.RUN, body)
    found = place.claim("B")
    assert (found.binding, found.mark, found.seen) == (True, None, {"holds": 9})


def test_a_driver_that_stood_still_before_it_took_the_prefix_does_not_shut_out_those_after_it() -> None:
    """It thaws when the next run has the prefix, takes it at the store, and then finds that it was superseded."""
    place = Place()
    body = run_body(prefix="p", location="/place", sink="2pc-recording", identity={"cluster": "one"}, driver="A")
    place.append(EntryKind.RUN, body)
    place.claim("B")
    at_store = {"epoch": 2}  # the late one's
    place.refuses = lambda history: history.mark is not None and history.mark != at_store
    assert place.claim("C").mark is None


def dies_before_its_mark(place: Place, driver: str) -> None:
    body = run_body(prefix="p", location="/place", sink="2pc-recording", identity={"cluster": "one"}, seen={})
    place.append(EntryKind.RUN, {**body, "driver": driver, "settings": "options"})


def test_a_planning_that_dies_before_its_mark_leaves_a_run_that_no_other_planning_takes() -> None:
    """It may have guarded the prefix, or do so late: with one run for both, who records its mark would deny the other's."""
    place = Place()
    dies_before_its_mark(place, "A")
    plan = place.coordinator("A").plan()
    runs = place.journal().ledger.runs
    assert [(run.driver, run.mark) for run in runs.values()] == [("A", None), ("A", {"epoch": 1})]
    assert (plan.token, place.coordinator("A").plan().token) == (max(runs), max(runs))


def test_a_late_guard_of_a_planning_that_died_stops_the_query_once_and_its_next_start_goes_on() -> None:
    """Nobody can tell it from another query: it has no mark."""
    place = Place()
    dies_before_its_mark(place, "A")
    first = place.coordinator("A").plan().token
    place.epoch, place.taken = 2, True
    with pytest.raises(FencedError, match="PREFIX_TAKEN"):
        place.coordinator("A").plan()
    place.refuses = lambda history: history.mark is not None
    assert place.coordinator("B").plan().token > first


def test_a_late_guard_of_a_planning_that_lives_starts_a_new_run_and_is_itself_superseded() -> None:
    place = Place()
    zombie = place.coordinator("A")
    zombie._journal.load()
    run = zombie._claimant._claim()
    first = place.coordinator("A").plan().token
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        zombie._claimant._record(run, {"epoch": 1})
    assert [*place.journal().ledger.runs] == [run.token, first]
    assert place.coordinator("A").plan().token > first


def test_an_outage_of_the_store_pushes_no_run_out_of_the_journal_that_had_its_prefix() -> None:
    place = Place()
    place.claim("A")
    for number in range(60):
        dies_before_its_mark(place, f"B{number}")
    runs = place.journal().ledger.runs
    assert [run.driver for run in runs.values()] == ["A", *(f"B{number}" for number in range(55, 60))]
    place.claim("C")
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        place.coordinator("A").plan()


def test_a_query_stops_for_another_one_that_has_taken_its_prefix() -> None:
    place = Place()
    place.claim("A")
    place.epoch, place.taken = 2, True
    with pytest.raises(FencedError, match="PREFIX_TAKEN"):
        place.coordinator("A").plan()
    assert len(place.journal().ledger.runs) == 1


def test_a_driver_whose_prefix_the_next_one_takes_meanwhile_says_that_it_is_superseded() -> None:
    place = Place()
    place.claim("A")
    place.epoch, place.taken = 2, True

    def next_one() -> None:
        place.meanwhile = lambda: None
        place.claim("B")

    place.meanwhile = next_one
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        place.coordinator("A").plan()
    assert place.journal().ledger.runs[1].ended == "fenced"


def test_who_takes_the_prefix_late_records_it_though_superseded_or_ended() -> None:
    place = Place()
    place.claim("A")
    late = place.coordinator("L")
    run = RunRecord(1, "L", "", "2pc-recording", "/place", "p", {})
    place.claim("B")
    late._journal.load()
    with pytest.raises(FencedError, match="RUN_SUPERSEDED"):
        late._claimant._record(run, {"epoch": 1})
    assert place.journal().ledger.runs[1].marks == [{"epoch": 1}]
    found = place.claim("C")
    assert {"epoch": 1} in found.late


def ledger_of(place: Place, *entries: tuple[str, Mapping[str, Any]]) -> Ledger:
    for kind, body in entries:
        place.append(kind, body)
    return place.journal().ledger


def part(number: int) -> dict[str, Any]:
    return {"partition": number, "handle": {"n": number}, "rows": 1, "bytes": 8, "digest": "1:0"}


def test_the_stamp_is_the_highest_of_all_checkpoints_and_outlives_them() -> None:
    place = Place()
    place.append(EntryKind.RUN, run_body())
    for batch, stamp in enumerate([7, 9, 8]):
        place.append(EntryKind.DECIDED, recorded(batch, [part(0)], []))
        place.append(EntryKind.SETTLED, {**settled(2 + 2 * batch), "stamp": stamp})
    journal = place.journal()
    journal.fold(every=1)
    assert history_of(place.journal().ledger, "q", ASKED).stamp == 9
    place.append(EntryKind.REWIND_BEGUN, {"checkpoint": 2})
    place.append(EntryKind.REWIND_DONE, {"begun": 8, "batch": 0, "keep": None})
    assert history_of(place.journal().ledger, "q", ASKED).stamp == 9


def test_every_handle_of_an_unsettled_checkpoint_is_named_also_of_a_part_that_was_repaired() -> None:
    place = Place()
    verdict = {"batch": 0, "partition": 0, "handle": 0, "verdict": "lost"}
    repair = {"batch": 0, "partition": 0, "replaces": 0, "handle": {"n": 5}}
    found = ledger_of(
        place,
        (EntryKind.RUN, run_body()),
        (EntryKind.DECIDED, recorded(0, [part(0), part(1)], [])),
        (EntryKind.VERDICT, {"checkpoint": 2, "run": 1, "parts": [verdict]}),
        (EntryKind.REPAIR, {"checkpoint": 2, "run": 1, "parts": [repair]}),
    )
    assert history_of(found, "q", ASKED).handles == [{"n": 0}, {"n": 5}, {"n": 1}]


def test_a_rewind_finds_out_itself_whether_another_program_has_committed_what_is_prepared() -> None:
    """So a commit of it is no evidence that the location is an older copy."""
    place = Place()
    found = ledger_of(place, (EntryKind.RUN, run_body()), (EntryKind.PREPARED, recorded(0, [part(0)], None)))
    assert history_of(found, "q", ASKED).handles == []
    assert history_of(found, "q", ASKED, rewind=True).handles == [{"n": 0}]


def test_only_decisions_raise_the_highest_known_id() -> None:
    place = Place()
    found = ledger_of(
        place,
        (EntryKind.RUN, run_body()),
        (EntryKind.DECIDED, recorded(0, [part(0)], [])),
        (EntryKind.SETTLED, settled(2)),
        (EntryKind.REQUEST, {"what": "checkpoint"}),
        (EntryKind.REWIND_BEGUN, {"checkpoint": None}),
    )
    assert (found.position, found.known, history_of(found, "q", ASKED).known) == (5, 2, 2)
    found = ledger_of(place, (EntryKind.REWIND_DONE, {"begun": 5, "batch": -1, "keep": None}))
    assert (found.checkpoints, found.known) == ({}, 2), "a store may still hold what a rewind has taken back"
    assert ledger_of(place, (EntryKind.RUN, run_body(above=40))).known == 40


def test_a_resolved_part_and_a_restored_savepoint_leave_nothing_to_judge() -> None:
    place = Place()
    decided = (EntryKind.RUN, run_body()), (EntryKind.DECIDED, recorded(0, [part(0)], []))
    found = ledger_of(place, *decided)
    assert history_of(found, "q", ASKED).binding
    resolve = {"checkpoint": 2, "batch": 0, "partition": 0, "decision": "accept-duplicates"}
    assert not history_of(ledger_of(place, (EntryKind.RESOLVE, resolve)), "q", ASKED).binding
    other = Place()
    saved = cut(ledger_of(other, *decided, (EntryKind.SETTLED, settled(2))), 2)
    claimed = restored(saved, 2, True, "/new", 10)
    assert claimed.runs
    assert not history_of(claimed, "q", ASKED).binding
    assert not history_of(restored(saved, 2, False, "/new", 10), "q", ASKED).binding
