"""What a fold of the journal leaves, and what a reader or a writer beside it may believe."""

from __future__ import annotations

import pytest

from tests.transactional.bodies import fact_of, run_body
from transactional.clock import SystemClock
from transactional.entries import Request
from transactional.entry import Entry, EntryKind, encode
from transactional.errors import FencedError
from transactional.journal import Journal, MemoryJournalStore, snapshot_file
from transactional.ledger import Ledger

REQUEST = {"what": "checkpoint"}


def anyone(ledger: Ledger) -> None:
    """Let everybody record."""


def grown(store: MemoryJournalStore, entries: int, every: int = 0) -> Journal:
    """A journal of so many entries, folded after each where `every` says so."""
    journal = Journal(store)
    journal.append(fact_of(EntryKind.RUN, run_body(location="/l")), anyone)
    for _ in range(entries - 1):
        journal.append(fact_of(EntryKind.REQUEST, REQUEST), anyone)
        if every:
            journal.fold(every)
    return journal


def numbers(store: MemoryJournalStore, suffix: str) -> list[int]:
    return sorted(int(name.split(".")[0]) for name in store.names() if name.split(".", 1)[1] == suffix)


@pytest.mark.parametrize("entries", range(1, 30))
def test_the_two_newest_snapshots_stay_and_all_that_follows_the_older(entries: int) -> None:
    """A reader that has listed before the newer came finds all that it needs."""
    store = MemoryJournalStore()
    journal = grown(store, entries, every=5)
    snapshots, left = numbers(store, "snapshot.json"), numbers(store, "json")
    assert snapshots == [number for number in range(1, entries + 1) if number % 5 == 0][-2:]
    older = snapshots[0] if len(snapshots) == 2 else 0
    assert left == list(range(older + 1, entries + 1))
    assert Journal(store).load().to_json() == journal.ledger.to_json()


class Overtaken(MemoryJournalStore):
    """While a reader reads an entry, others fold and delete it, and a create that was on its way takes its number again."""

    def __init__(self) -> None:
        super().__init__()
        self.folds = False
        self.truth = Ledger()

    def read(self, name: str) -> bytes:
        if self.folds and name == "6.json":
            self.folds = False
            self.create(*snapshot_file(self.truth, SystemClock()))
            for number in range(1, 7):
                self.delete(f"{number}.json")
            late = Entry(6, EntryKind.REQUEST, "late", 0, {"what": "stop", "run": 1})
            self.create("6.json", encode(late))
        return super().read(name)


def test_a_load_that_a_fold_overtook_begins_again() -> None:
    store = Overtaken()
    store.truth = grown(store, 6).ledger
    store.folds = True
    found = Journal(store).load()
    assert not store.folds
    assert found.to_json() == store.truth.to_json()
    assert found.stop_asked is False


def test_nothing_follows_moved_whoever_asks() -> None:
    store = MemoryJournalStore()
    journal = grown(store, 2)
    journal.append(fact_of(EntryKind.MOVED, {"location": "/new", "savepoint": "s", "checkpoint": 1}), anyone)
    for asking in (journal, Journal(store)):
        asking.load()
        with pytest.raises(FencedError, match=r"LOCATION_MOVED_ON.*/new"):
            asking.append(fact_of(EntryKind.REQUEST, REQUEST), anyone)
    assert numbers(store, "json") == [1, 2, 3]


class Deaf(MemoryJournalStore):
    """Creates, and then its answer is lost; or says that the name is taken, by a client that has sent it twice."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.raises = raises

    def create(self, name: str, data: bytes) -> bool:
        if not super().create(name, data):
            return False
        if len(self.files) > 9:
            raise AssertionError("the entry is written again and again")
        if self.raises:
            raise OSError("no answer")
        return False


@pytest.mark.parametrize("raises", [False, True])
def test_a_create_whose_answer_was_lost_is_our_own(raises: bool) -> None:
    store = Deaf(raises)
    journal = Journal(store)
    entry = journal.append(fact_of(EntryKind.RUN, run_body(location="/l")), anyone)
    assert (entry.number, numbers(store, "json")) == (1, [1])
    assert journal.append(fact_of(EntryKind.REQUEST, REQUEST), anyone).number == 2


class FoldsAtOnce(MemoryJournalStore):
    """The query folds the journal between a create and the listing that follows; perhaps it records something first."""

    def __init__(self, goes_on: bool) -> None:
        super().__init__()
        self.folds, self.goes_on = False, goes_on

    def create(self, name: str, data: bytes) -> bool:
        made = super().create(name, data)
        if self.folds:
            self.folds = False
            query = Journal(self)
            query.load()
            if self.goes_on:
                query.append(fact_of(EntryKind.STOPPED, {"run": 1}), anyone)
            query.fold(1)
        return made


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_request_that_is_folded_at_once_counts_and_is_no_superseded_run(goes_on: bool) -> None:
    store = FoldsAtOnce(goes_on)
    journal = grown(store, 1)
    store.folds = True

    def due(ledger: Ledger) -> Request | None:
        return Request(what="checkpoint") if ledger.request is None else None

    number = journal.ask(due, anyone).request
    assert (number, Journal(store).load().request) == (2, 2)
    assert journal.ask(due, anyone).request == 2, "it is not asked for twice"
