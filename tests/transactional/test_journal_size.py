"""A journal whose entries are large, and one that is loaded again and again."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.transactional.bodies import fact_of, recorded, run_body, settled
from transactional.entry import Entry, EntryKind, decode, encode
from transactional.journal import Journal, MemoryJournalStore
from transactional.journal.journal import SNAPSHOT_BYTES
from transactional.ledger import Ledger, apply

GOLDEN = Path(__file__).parents[1] / "golden" / "journal"
HANDLE_BYTES = 400_000


class CountingStore(MemoryJournalStore):
    """Remember what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.was_read: list[str] = []

    def read(self, name: str) -> bytes:
        data = super().read(name)
        self.was_read.append(name)
        return data

    def bytes_of_a_load(self) -> int:
        self.was_read.clear()
        Journal(self).load()
        return sum(len(self.files[name]) for name in self.was_read)


def anything(_: Ledger) -> None:
    """Judge nothing."""


def begun(store: MemoryJournalStore, driver: str = "d") -> Journal:
    journal = Journal(store)
    journal.append(fact_of(EntryKind.RUN, run_body(driver=driver)), anything)
    return journal


def large_parts(batch: int) -> list[dict[str, Any]]:
    return [
        {
            "partition": task,
            "handle": {"t": [batch, task], "pad": "x" * HANDLE_BYTES},
            "rows": 1,
            "bytes": 1,
            "digest": "1",
        }
        for task in range(2)
    ]


def prepare(journal: Journal, batch: int) -> None:
    journal.append(fact_of(EntryKind.PREPARED, recorded(batch, large_parts(batch))), anything)
    journal.fold()


def settle(journal: Journal, batch: int, covers: list[int]) -> None:
    entry = journal.append(fact_of(EntryKind.DECIDED, recorded(batch, large_parts(batch), covers=covers)), anything)
    journal.append(fact_of(EntryKind.SETTLED, settled(entry.number)), anything)
    journal.fold()


def test_a_load_reads_little_however_large_entries_are() -> None:
    store = CountingStore()
    journal = begun(store)
    read = []
    for batch in range(12):
        settle(journal, batch, [])
        read.append(store.bytes_of_a_load())
    assert max(read) < SNAPSHOT_BYTES + 2 * HANDLE_BYTES + 20_000
    assert sum(map(len, store.files.values())) < 4 * SNAPSHOT_BYTES  # and little is kept
    assert Journal(store).load() == journal.ledger


def test_what_is_prepared_is_not_written_again_and_again_into_snapshots() -> None:
    store = CountingStore()
    journal = begun(store)
    for batch in range(6):
        prepare(journal, batch)
        assert not [name for name in store.files if "snapshot" in name]
    settle(journal, 6, list(range(6)))
    assert [len(data) < 20_000 for name, data in store.files.items() if "snapshot" in name] == [True]


def test_a_journal_that_is_loaded_again_reads_what_came_since() -> None:
    store = CountingStore()
    here, elsewhere = begun(store), Journal(store)
    elsewhere.load()
    for batch in range(3):
        prepare(here, batch)
    assert elsewhere.load() == here.ledger
    store.was_read.clear()
    prepare(here, 3)
    assert elsewhere.load() == here.ledger
    assert sorted(set(store.was_read)) == ["4.json", "5.json"]  # the last that it knew, and the new one


@pytest.mark.parametrize("change", ["deleted", "older copy", "another journal", "folded"])
def test_a_journal_whose_folder_was_replaced_is_read_from_the_start(change: str) -> None:
    store = MemoryJournalStore()
    writer = begun(store)
    older = dict(store.files)
    for batch in range(3):
        prepare(writer, batch)
    journal = Journal(store)
    journal.load()
    if change == "deleted":
        store.files.clear()
    elif change == "older copy":
        store.files = older
    elif change == "another journal":
        other = MemoryJournalStore()
        another = begun(other, driver="another")
        for batch in range(4):
            prepare(another, batch)
        store.files = other.files
    else:
        for _ in range(3):
            writer.append(fact_of(EntryKind.REQUEST, {"what": "checkpoint"}), anything)
            writer.fold(1)
        assert "4.json" not in store.files
    assert journal.load() == Journal(store).load()


def test_a_fact_that_does_not_fit_leaves_the_ledger_as_it_was() -> None:
    journal = begun(MemoryJournalStore())
    before = copy.deepcopy(journal.ledger)
    with pytest.raises(Exception, match="JOURNAL_DAMAGED"):
        journal.append(fact_of(EntryKind.DECIDED, recorded(0, [], covers=[7])), anything)
    assert journal.ledger == before


@pytest.mark.parametrize("version", ["v2", "v2-stop"])
def test_a_copy_of_a_ledger_shares_nothing_that_an_entry_changes(version: str) -> None:
    ledger = Ledger()
    for number in range(1, len(list((GOLDEN / version).glob("*[0-9].json"))) + 1):
        entry = decode((GOLDEN / version / f"{number}.json").read_bytes(), f"{number}.json")
        before, after = copy.deepcopy(ledger), ledger.copy()
        assert after == ledger
        apply(after, entry)
        assert ledger == before, entry.kind
        ledger = after


def test_an_entry_s_own_checksum_is_the_last_one_in_it() -> None:
    entry = Entry(7, EntryKind.SETTLED, "n", 12, {"checkpoint": 3, "run": 1, "output": {"a": '"checksum":"'}})
    assert decode(encode(entry), "7.json") == entry
